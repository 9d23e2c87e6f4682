"""The exporter about itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.metrics_core import Metric

from verl_prometheus.collectors.families import counter, gauge, histogram
from verl_prometheus.distribution import Distribution
from verl_prometheus.errors import ErrorLog
from verl_prometheus.run import StepSnapshot


class ExporterCollector:
    """What log() costs, what went wrong, what was left out."""

    def __init__(self, log_duration: Callable[[], Distribution], errors: ErrorLog) -> None:
        self._log_duration = log_duration
        self._errors = errors

    def collect(self, snapshot: StepSnapshot) -> Iterable[Metric]:
        yield histogram("verl_exporter_log_duration_seconds", self._log_duration())
        errors = counter("verl_exporter_errors_total")
        for component, times in self._errors.counts().items():
            errors.add_metric((component,), times)
        yield errors
        dropped = counter("verl_exporter_dropped_values_total")
        for reason, times in snapshot.dropped.items():
            dropped.add_metric((reason,), times)
        yield dropped
        yield gauge("verl_exporter_series", len(snapshot.values) + len(snapshot.validation))
