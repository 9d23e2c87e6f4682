"""Metric families by name: type, help and label names come from catalog.yaml, the one place that defines them."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from verl_prometheus import catalog
from verl_prometheus.distribution import Distribution


def gauge(name: str, value: float | None = None) -> GaugeMetricFamily:
    """A gauge; with `value`, its only sample."""
    family = catalog.load().families[name]
    return GaugeMetricFamily(name, family.help, value=value, labels=None if value is not None else family.labels)


def counter(name: str, value: float | None = None) -> CounterMetricFamily:
    """A counter, by its full name with _total; with `value`, its only sample."""
    family = catalog.load().families[name]
    return CounterMetricFamily(name, family.help, value=value, labels=None if value is not None else family.labels)


def histogram(name: str, value: Distribution | None = None) -> HistogramMetricFamily:
    """A histogram; with `value`, its only sample. Add others with `add`."""
    family = catalog.load().families[name]
    if value is None:
        return HistogramMetricFamily(name, family.help, labels=family.labels)
    return HistogramMetricFamily(name, family.help, buckets=value.buckets(), sum_value=value.total)


def add(family: HistogramMetricFamily, labels: tuple[str, ...], value: Distribution) -> None:
    family.add_metric(labels, value.buckets(), value.total)
