"""What became of the samples that were pushed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from verl_prometheus.collectors.families import counter


class PushCollector(Collector):
    """Counts by outcome."""

    def __init__(self, samples: Mapping[str, int]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        pushed = counter("verl_exporter_pushed_samples_total")
        for outcome, number in dict(self._samples).items():
            pushed.add_metric((outcome,), number)
        yield pushed
