"""One target of the loaded Prometheus, as a process of its own, until it is killed: `python -m helpers.paced_run JSON`.

kind "run": a run that really was, from a log of verl's `file` logger, repeated with small variations at a steady pace.
kind "gpus": a node with simulated GPUs, one of them sick. kind "engine": a captured exposition whose counters rise.
"""

from __future__ import annotations

import json
import math
import platform
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from helpers.fixtures import calls

PHASES = (("gen", 0.55), ("update_actor", 0.3), ("update_weights", 0.05))  # and their shares of a step
CHECKPOINT_EVERY = 10


def run(spec: Mapping[str, Any]) -> None:
    """`fixture`, `experiment`, `steps`, `pace` (seconds a step), `targets_dir`, `config`, and `fail` if it ends badly."""
    from verl_prometheus.backend import PrometheusBackend
    from verl_prometheus.phases import TRACKER
    from verl_prometheus.settings import Settings

    settings = Settings.load(
        {"trainer": {"prometheus": {"window": 10, "baseline_steps": 8, "warmup_steps": 2, "port": 0,
                                    "address": "127.0.0.1", "targets_dir": spec["targets_dir"], "linger_seconds": 15}}},
        {},
    )  # fmt: skip
    reinforcement = spec["config"].get("algorithm") is not None
    backend = PrometheusBackend("tiny", spec["experiment"], settings, spec["config"], "Trainer", spec["target"])
    for step, data in _longer(spec["fixture"], spec["steps"]):
        if reinforcement:
            TRACKER.enter("step")
            for phase, share in PHASES:
                TRACKER.enter(phase)
                time.sleep(share * spec["pace"])
                TRACKER.leave(phase)
            TRACKER.leave("step")
            time.sleep((1 - sum(share for _, share in PHASES)) * spec["pace"])
            if step % CHECKPOINT_EVERY == 0 and step:
                data["timing_s/save_checkpoint"] = 0.2
        else:
            time.sleep(spec["pace"])
        if spec["fail"] and step == spec["steps"] // 2:
            data["actor/pg_loss"] = data["actor/grad_norm"] = math.nan
            backend.log(None, step)  # type: ignore[arg-type]
        backend.log({**data, "a/text": "no number"}, step)
    if spec["fail"]:
        backend.finish(exit_code=1)
    threading.Event().wait()


def _longer(fixture: str, steps: int) -> Iterator[tuple[int, dict[str, float]]]:
    """The fixture's first call, then its training calls again and again until `steps` are done."""
    logged = calls(fixture)
    if logged[0][0] == 0:
        yield logged[0]
    training = [data for step, data in logged if step]
    for step in range(1, steps + 1):
        yield step, {key: _varied(key, value, step) for key, value in training[(step - 1) % len(training)].items()}


def _varied(key: str, value: float, step: int) -> float:
    """A value of the same kind: whole numbers stay, shares stay shares."""
    if abs(value - round(value)) < 1e-6 or key.startswith(("training/global_step", "training/epoch")):
        return value
    varied = value * (1 + 0.03 * math.sin(0.7 * step + len(key)))
    return min(varied, 1.0) if value <= 1 else varied


def gpus(spec: Mapping[str, Any]) -> None:
    """`labels`, `targets_dir`."""
    from verl_prometheus.collectors.gpu import GpuCollector
    from verl_prometheus.errors import ErrorLog
    from verl_prometheus.exposition import Exposition
    from verl_prometheus.gpu.reading import NodeReading
    from verl_prometheus.gpu.sampler import GpuSampler
    from verl_prometheus.gpu.simulated import SimulatedGpus
    from verl_prometheus.server import MetricsServer

    class OneSick(SimulatedGpus):
        def read(self) -> NodeReading:
            reading = super().read()
            sick = replace(reading.gpus[3], last_xid=79, last_xid_timestamp=time.time(), uncorrectable_ecc_errors=2)
            return replace(reading, gpus=(*reading.gpus[:3], sick, *reading.gpus[4:]))

    errors = ErrorLog()
    reader = OneSick(8)
    sampler = GpuSampler(reader, reader.classify, errors, 0.25)
    sampler.start()
    exposition = Exposition((GpuCollector(sampler.snapshot, platform.node()),), spec["labels"], errors)
    server = MetricsServer(exposition, lambda: "", errors, "127.0.0.1", 0)
    _announce(spec, server.port, {"__meta_verl_node": platform.node()})
    threading.Event().wait()


def engine(spec: Mapping[str, Any]) -> None:
    """`exposition` (a file), `labels`, `targets_dir`."""
    template = Path(spec["exposition"]).read_text()
    began = time.monotonic()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = _grown(template, 1 + 0.05 * (time.monotonic() - began)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    _announce(spec, server.server_port, spec["labels"])
    server.serve_forever()


def _grown(exposition: str, factor: float) -> str:
    """All counters and buckets, times the factor."""
    counted = re.compile(r"^(\S+_(?:total|bucket|count|sum)\{.*\}) (\S+)$", re.MULTILINE)
    return counted.sub(lambda match: f"{match[1]} {float(match[2]) * factor}", exposition)


def _announce(spec: Mapping[str, Any], port: int, labels: Mapping[str, str]) -> None:
    file = Path(spec["targets_dir"], f"{spec['name']}.json")
    file.with_suffix(".new").write_text(json.dumps([{"targets": [f"127.0.0.1:{port}"], "labels": labels}]))
    file.with_suffix(".new").rename(file)


KINDS: Mapping[str, Callable[[Mapping[str, Any]], None]] = {"run": run, "gpus": gpus, "engine": engine}


def main(arguments: Iterable[str]) -> None:
    spec = json.loads(next(iter(arguments)))
    KINDS[spec["kind"]](spec)


if __name__ == "__main__":
    main(sys.argv[1:])
