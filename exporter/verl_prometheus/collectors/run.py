"""Identity, state and progress of a run."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from verl_prometheus.collectors.families import counter, gauge, histogram
from verl_prometheus.run import RunIdentity, StepSnapshot

STATES = ("starting", "running", "finished", "failed")


class RunCollector:
    """What the run is and how far it has come."""

    def __init__(self, identity: RunIdentity) -> None:
        self._identity = identity

    def collect(self, snapshot: StepSnapshot) -> Iterable[Metric]:
        yield self._info()
        yield self._config()
        state = gauge("verl_run_state")
        for name in STATES:
            state.add_metric((name,), float(name == snapshot.state))
        yield state
        yield gauge("verl_run_start_timestamp_seconds", self._identity.started)
        yield counter("verl_steps_total", snapshot.steps_total)
        yield counter("verl_tokens_total", snapshot.tokens_total)
        yield histogram("verl_step_duration_seconds", snapshot.step_duration)
        yield from self._optional(snapshot)
        nonfinite = counter("verl_nonfinite_values_total")
        for key, times in snapshot.nonfinite.items():
            nonfinite.add_metric((key,), times)
        yield nonfinite

    def _info(self) -> Metric:
        family = gauge("verl_run_info")
        facts = {"run_id": self._identity.run_id, **self._identity.facts}
        family.add_metric([facts.get(name, "") for name in family._labelnames], 1.0)
        return family

    def _config(self) -> Metric:
        family = gauge("verl_run_config_info")
        for path, value in self._identity.config.items():
            family.add_metric((path, value), 1.0)
        return family

    def _optional(self, snapshot: StepSnapshot) -> Iterable[GaugeMetricFamily]:
        pace = 1.0 / snapshot.step_seconds if snapshot.step_seconds else None
        for name, value in {
            "verl_step": snapshot.step,
            "verl_step_target": self._identity.step_target,
            "verl_epoch": snapshot.epoch,
            "verl_last_step_timestamp_seconds": snapshot.time,
            "verl_steps_per_second": pace,
            "verl_checkpoint_step": snapshot.checkpoint_step,
            "verl_checkpoint_timestamp_seconds": snapshot.checkpoint_time,
            "verl_validation_step": snapshot.validation_step,
        }.items():
            if value is not None:
                yield gauge(name, value)
