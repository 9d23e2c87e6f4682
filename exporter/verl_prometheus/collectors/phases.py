"""Time in phases, over all steps so far."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

from verl_prometheus.collectors.families import add, histogram
from verl_prometheus.run import StepSnapshot
from verl_prometheus.samples import LATENCY


class PhaseCollector:
    """Phase durations as verl logged them."""

    def collect(self, snapshot: StepSnapshot) -> Iterable[Metric]:
        durations = histogram("verl_phase_duration_seconds")
        for phase, distribution in snapshot.phase_duration.items():
            add(durations, (phase,), distribution)
        yield durations
        latency = histogram("verl_rollout_latency_seconds")
        add(latency, ("batch",), snapshot.rollout_latency)
        if LATENCY in snapshot.samples:
            add(latency, ("trajectory",), snapshot.samples[LATENCY])
        yield latency
