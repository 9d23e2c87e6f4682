"""Time in phases: over all steps so far, and of the phases that run now."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

from verl_prometheus.catalog import printable
from verl_prometheus.collectors.families import add, gauge, histogram
from verl_prometheus.phases import PhaseTracker
from verl_prometheus.run import StepSnapshot


class PhaseCollector:
    """Phase durations as verl logged them, the active phases as its timers tell."""

    def __init__(self, tracker: PhaseTracker) -> None:
        self._tracker = tracker

    def collect(self, snapshot: StepSnapshot) -> Iterable[Metric]:
        durations = histogram("verl_phase_duration_seconds")
        for phase, distribution in snapshot.phase_duration.items():
            add(durations, (phase,), distribution)
        yield durations
        latency = histogram("verl_rollout_latency_seconds")
        add(latency, ("batch",), snapshot.rollout_latency)
        yield latency

        phases = self._tracker.read()
        active, began = gauge("verl_phase_active"), gauge("verl_phase_start_timestamp_seconds")
        for phase in phases.known:
            active.add_metric((printable(phase),), float(phase in phases.active))
        for phase, start in phases.active.items():
            began.add_metric((printable(phase),), start)
        yield active
        yield began
