"""A node's GPU agent about itself."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from verl_prometheus.collectors.families import counter
from verl_prometheus.errors import ErrorLog


class AgentCollector(Collector):
    """What went wrong, by component."""

    def __init__(self, errors: ErrorLog) -> None:
        self._errors = errors

    def collect(self) -> Iterator[Metric]:
        family = counter("verl_exporter_errors_total")
        for component, times in self._errors.counts().items():
            family.add_metric((component,), times)
        yield family
