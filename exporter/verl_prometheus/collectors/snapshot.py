"""One snapshot for all of a scrape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from verl_prometheus.errors import ErrorLog
from verl_prometheus.run import RunState, StepSnapshot


class SnapshotPart(Protocol):
    """A collector that renders a snapshot instead of looking at the run itself."""

    def collect(self, snapshot: StepSnapshot) -> Iterable[Metric]: ...


class SnapshotCollector(Collector):
    """Hands the same snapshot to every part, so that a value and its step belong together."""

    def __init__(self, run: RunState, parts: Sequence[SnapshotPart], errors: ErrorLog) -> None:
        self._run = run
        self._parts = parts
        self._errors = errors

    def collect(self) -> Iterable[Metric]:
        snapshot = self._run.snapshot
        for part in self._parts:
            try:
                yield from list(part.collect(snapshot))
            except Exception as error:
                self._errors.add(f"collector {type(part).__name__}", error)
