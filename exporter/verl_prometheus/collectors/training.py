"""Every scalar that verl logged at the step, by the catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from verl_prometheus.catalog import Catalog
from verl_prometheus.run import StepSnapshot


class TrainingCollector:
    """One gauge a family, one series a verl key."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def collect(self, snapshot: StepSnapshot) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for key, value in chain(snapshot.values.items(), snapshot.validation.items()):
            series = self._catalog.series(key)
            family = families.get(series.family)
            if family is None:
                family = families[series.family] = GaugeMetricFamily(series.family, series.help)
            family.samples.append(Sample(series.family, dict(series.labels), value * series.scale))
        return families.values()
