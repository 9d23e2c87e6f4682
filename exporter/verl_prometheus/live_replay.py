"""Serves a logged run again, at its own pace or faster: the real exporter, fed when the run logged."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from verl_prometheus.backend import PrometheusBackend
from verl_prometheus.collectors.gpu import GpuCollector
from verl_prometheus.discovery import TargetsFile
from verl_prometheus.errors import ErrorLog
from verl_prometheus.exposition import Exposition
from verl_prometheus.gpu.recorded import RecordedGpus, Sample
from verl_prometheus.gpu.sampler import GpuSampler
from verl_prometheus.network import announced_address, host_and_port
from verl_prometheus.phases import TRACKER
from verl_prometheus.run import Call
from verl_prometheus.run_log import LoggedRun, numbers
from verl_prometheus.server import MetricsServer
from verl_prometheus.settings import Settings
from verl_prometheus.timeline import Dies, Event, PhaseBegins, PhaseEnds, timeline


def serve(run: LoggedRun, speed: float, settings: Settings, gpus: Mapping[str, list[Sample]]) -> int:
    """Play the last attempt of a run to its end: say goodbye, be killed, or hang until interrupted. Its exit status.

    Times in the metrics are of now; durations are as they were logged, whatever the speed.

    Args:
        speed: seconds of the log in a second.
        gpus: recorded samples of each node.
    """
    identity = run.attempts[-1].identity
    events = [(when, event) for when, event in timeline(run) if when >= identity.started]
    began, interrupted = time.monotonic(), threading.Event()

    def now() -> float:
        """In the log's time."""
        return identity.started + (time.monotonic() - began) * speed

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: interrupted.set())
    with ExitStack() as agents:
        backend = PrometheusBackend(
            identity.project, identity.experiment, settings, run.config, step_target=identity.step_target
        )
        for node, samples in gpus.items():
            agents.enter_context(_agent(node, samples, now, run.attempts[-1].series_labels, settings))
        for when, event in events:
            if interrupted.wait(max((when - now()) / speed, 0.0)):
                break
            _happens(event, backend)
        else:
            if run.ending.how == "hung":
                interrupted.wait()
        backend.finish(int(run.ending.how == "failed"))
    return 0


def _happens(event: Event, backend: PrometheusBackend) -> None:
    if isinstance(event, PhaseBegins):
        TRACKER.enter(event.phase)
    elif isinstance(event, PhaseEnds):
        TRACKER.leave(event.phase)
    elif isinstance(event, Call):
        backend.log(numbers(event), 0 if event.step is None else event.step)
    elif isinstance(event, Dies):
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def _agent(
    node: str, samples: list[Sample], now: Callable[[], float], labels: Mapping[str, str], settings: Settings
) -> Iterator[None]:
    """The GPU agent of a node."""
    errors = ErrorLog()
    reader = RecordedGpus(samples, now)
    sampler = GpuSampler(reader, reader.classify, errors, settings.gpu.interval)
    sampler.start()
    exposition = Exposition([GpuCollector(sampler.snapshot, node)], labels, errors)
    server = MetricsServer(exposition, lambda: "", errors, settings.address, 0)
    file = TargetsFile(settings.targets_dir, node, "gpus") if settings.targets_dir else None
    if file:
        target = host_and_port(announced_address(settings.address), server.port)
        run = {f"__meta_verl_{name}": labels[name] for name in ("project", "experiment")}
        file.write([{"targets": [target], "labels": {**run, "__meta_verl_node": node}}])
    try:
        yield
    finally:
        if file:
            file.remove()
        server.close()
        sampler.stop()
