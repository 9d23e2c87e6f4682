"""Something to look at without a GPU or a training run: `python demo.py TARGETS_DIR` serves until it is stopped.

Real runs of verl (logs of its `file` logger: GRPO, PPO, SFT, and one that fails) go through the real exporter again and
again, back and forth with small variations, one after another step every `--pace` seconds; beside them simulated GPUs, one
of them sick, and what vLLM and SGLang expose, with rising counters. Each is a process and a Prometheus target of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import platform
import random
import re
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[2] / "tests"
PROJECT = "demo"
PHASES = (("gen", 0.55), ("update_actor", 0.3), ("update_weights", 0.05))  # and their shares of a step
CHECKPOINT_EVERY = 10
SAMPLES_A_STEP = 64
SETTINGS = {
    "port": 0,
    "address": "127.0.0.1",
    "window": 10,
    "baseline_steps": 8,
    "warmup_steps": 2,
    "linger_seconds": 30,
}
GRPO = {
    "algorithm": {"adv_estimator": "grpo"},
    "data": {"max_response_length": 16},
    "actor_rollout_ref": {"model": {"path": "tiny"}, "actor": {"optim": {"lr": 1e-6}}},
}
PPO = {**GRPO, "algorithm": {"adv_estimator": "gae"}, "critic": {"optim": {"lr": 1e-5}}}
SFT = {"model": {"path": "tiny"}, "optim": {"lr": 1e-5}}


@dataclass(frozen=True)
class Run:
    """A recorded run. `fails_at`: the step that is NaN, after which the run is over; `resumed`: it is a second attempt."""

    log: str
    experiment: str
    config: Mapping[str, Any]
    fails_at: int | None = None
    resumed: bool = False

    def play(self, targets: str, pace: float) -> None:
        from verl_prometheus.backend import PrometheusBackend
        from verl_prometheus.settings import Settings

        with tempfile.TemporaryDirectory() as checkpoints:
            trainer = {"default_local_dir": checkpoints, "prometheus": {**SETTINGS, "targets_dir": targets}}
            config = {**self.config, "trainer": trainer}

            def begin() -> PrometheusBackend:
                return PrometheusBackend(
                    PROJECT, self.experiment, Settings.load(config, {}), config, "Trainer", 100_000
                )

            backend = begin()
            if self.resumed:
                time.sleep(3 * pace)
                backend.finish()
                Path(checkpoints, "latest_checkpointed_iteration.txt").write_text("1")
                backend = begin()
            for step, data in self._steps():
                self._pass_a_step(pace)
                if step == self.fails_at:
                    backend.log({**data, "actor/pg_loss": math.nan, "actor/grad_norm": math.nan}, step)
                    backend.log(None, step)  # type: ignore[arg-type]
                    backend.finish(exit_code=1)
                    return
                _show_samples(data)
                backend.log({**data, "a/text": "is no number"}, step)

    def _pass_a_step(self, pace: float) -> None:
        from verl_prometheus.phases import TRACKER

        if self.config is SFT:  # verl's SFT trainers time no phases
            time.sleep(pace)
            return
        TRACKER.enter("step")
        for phase, share in PHASES:
            TRACKER.enter(phase)
            time.sleep(share * pace)
            TRACKER.leave(phase)
        TRACKER.leave("step")
        time.sleep(pace * (1 - sum(share for _, share in PHASES)))

    def _steps(self) -> Iterator[tuple[int, dict[str, float]]]:
        lines = [json.loads(line) for line in Path(RECORDED, "fixtures", f"{self.log}.jsonl").read_text().splitlines()]
        if lines[0]["step"] == 0:  # validation before training
            yield 0, lines[0]["data"]
        logged = [line["data"] for line in lines if line["step"] and None not in line["data"].values()]
        there_and_back = [*logged, *logged[-2:0:-1]]
        step = 0
        while True:
            data = there_and_back[step % len(there_and_back)]
            step += 1
            checkpoint = {"timing_s/save_checkpoint": 0.2} if step % CHECKPOINT_EVERY == 0 else {}
            yield step, {**{key: _varied(key, value, step) for key, value in data.items()}, **checkpoint}


def _show_samples(data: Mapping[str, float]) -> None:
    """Samples such as a step with these means may have had: the logs have only those."""
    from verl_prometheus.samples import LATENCY, RESPONSE_LENGTH, REWARD, SAMPLES

    for quantity, key in ((REWARD, "critic/rewards"), (RESPONSE_LENGTH, "response_length")):
        if f"{key}/mean" in data:
            low, mean, high = (data[f"{key}/{stat}"] for stat in ("min", "mean", "max"))
            SAMPLES.add(quantity, [random.triangular(low, high, mean) for _ in range(SAMPLES_A_STEP)])
    if "timing_s/gen" in data:
        SAMPLES.add(LATENCY, [random.triangular(0, data["timing_s/gen"]) for _ in range(SAMPLES_A_STEP)])


def _varied(key: str, value: float, step: int) -> float:
    """A value of the same kind: whole numbers stay, shares stay shares."""
    if abs(value - round(value)) < 1e-6:
        return value
    varied = value * (1 + 0.03 * math.sin(0.7 * step + len(key)))
    return min(varied, 1.0) if value <= 1 else varied


@dataclass(frozen=True)
class Node:
    """Eight simulated GPUs of a run, of which one has an XID and uncorrectable ECC errors."""

    experiment: str

    def play(self, targets: str, pace: float) -> None:
        from verl_prometheus.collectors.gpu import GpuCollector
        from verl_prometheus.errors import ErrorLog
        from verl_prometheus.exposition import Exposition
        from verl_prometheus.gpu.reading import NodeReading
        from verl_prometheus.gpu.sampler import GpuSampler
        from verl_prometheus.gpu.simulated import SimulatedGpus
        from verl_prometheus.server import MetricsServer

        fell_off_the_bus = time.time()

        class OneSick(SimulatedGpus):
            def read(self) -> NodeReading:
                reading = super().read()
                sick = replace(
                    reading.gpus[3], last_xid=79, last_xid_timestamp=fell_off_the_bus, uncorrectable_ecc_errors=2
                )
                return replace(reading, gpus=(*reading.gpus[:3], sick, *reading.gpus[4:]))

        errors = ErrorLog()
        reader = OneSick(8)
        sampler = GpuSampler(reader, reader.classify, errors, 0.25)
        sampler.start()
        labels = {"project": PROJECT, "experiment": self.experiment}
        exposition = Exposition((GpuCollector(sampler.snapshot, platform.node()),), labels, errors)
        server = MetricsServer(exposition, lambda: "", errors, "127.0.0.1", 0)
        _announce(targets, "demo-gpus", server.port, {"__meta_verl_node": platform.node()})
        threading.Event().wait()


@dataclass(frozen=True)
class Engine:
    """A rollout engine: a captured exposition whose counters rise, of a run or of nobody's."""

    name: str
    experiment: str | None = None

    def play(self, targets: str, pace: float) -> None:
        template = Path(RECORDED, "expositions", f"{self.name}.txt").read_text()
        counted = re.compile(r"^(\S+_(?:total|bucket|count|sum)\{.*\}) (\S+)$", re.MULTILINE)
        began = time.monotonic()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                grown = 1 + 0.05 * (time.monotonic() - began)
                body = counted.sub(lambda match: f"{match[1]} {float(match[2]) * grown}", template).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        labels = {"__meta_verl_project": PROJECT, "__meta_verl_experiment": self.experiment} if self.experiment else {}
        _announce(targets, f"demo-{self.name}", server.server_port, labels)
        server.serve_forever()


def _announce(targets: str, name: str, port: int, labels: Mapping[str, str]) -> None:
    file = Path(targets, f"{name}.json")
    file.with_suffix(".new").write_text(json.dumps([{"targets": [f"127.0.0.1:{port}"], "labels": dict(labels)}]))
    file.with_suffix(".new").rename(file)


EVERYTHING: tuple[Run | Node | Engine, ...] = (
    Run("grpo_v1", "grpo", GRPO),
    Run("grpo_legacy", "grpo-legacy-trainer", GRPO),
    Run("ppo_v1", "ppo", PPO),
    Run("sft", "sft", SFT),
    Run("grpo_2gpu", "resumed", GRPO, resumed=True),
    Run("grpo_vllm", "failing", GRPO, fails_at=15),
    Node("grpo"),
    Engine("vllm", "grpo"),
    Engine("sglang"),
)


def _play(one: Run | Node | Engine, targets: str, pace: float) -> None:
    signal.signal(signal.SIGTERM, _stop)
    one.play(targets, pace)


def _stop(*_: object) -> None:
    raise SystemExit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", help="folder for the discovery files, which Prometheus reads")
    parser.add_argument("--pace", type=float, default=4.0, help="seconds a step (%(default)s)")
    arguments = parser.parse_args()
    Path(arguments.targets).mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, _stop)
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_play, args=(one, arguments.targets, arguments.pace), daemon=True) for one in EVERYTHING
    ]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
        for file in Path(arguments.targets).glob("demo-*.json"):
            file.unlink()


if __name__ == "__main__":
    main()
