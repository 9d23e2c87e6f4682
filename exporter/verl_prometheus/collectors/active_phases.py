"""The phases that run now."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from verl_prometheus.catalog import printable
from verl_prometheus.collectors.families import gauge
from verl_prometheus.phases import PhaseTracker


class ActivePhaseCollector(Collector):
    """What the trainer is doing at the time of the scrape, as verl's timers tell."""

    def __init__(self, tracker: PhaseTracker) -> None:
        self._tracker = tracker

    def collect(self) -> Iterator[Metric]:
        phases = self._tracker.read()
        active, began = gauge("verl_phase_active"), gauge("verl_phase_start_timestamp_seconds")
        for phase in phases.known:
            active.add_metric((printable(phase),), float(phase in phases.active))
        for phase, start in phases.active.items():
            began.add_metric((printable(phase),), start)
        yield active
        yield began
