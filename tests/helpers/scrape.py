"""What an endpoint says, parsed by prometheus-client's own parsers."""

from __future__ import annotations

from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from helpers.prometheus import get

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Scrape:
    """The samples of one scrape."""

    def __init__(self, url: str, accept: str = "text/plain") -> None:
        self.text = get(f"{url}/metrics", {"Accept": accept}).decode()
        parse = openmetrics.text_string_to_metric_families if accept == OPENMETRICS else text_string_to_metric_families
        self.families = {family.name: family for family in parse(self.text)}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def values(self, name: str, **labels: str) -> list[float]:
        """The values of the samples of that name with those labels."""
        return [one.value for one in self.samples if one.name == name and labels.items() <= one.labels.items()]

    def value(self, name: str, **labels: str) -> float:
        """The value of the only such sample."""
        (value,) = self.values(name, **labels)
        return value

    def keyed(self) -> dict[str, float]:
        """verl key -> value, of the series made from verl keys."""
        return {one.labels["key"]: one.value for one in self.samples if "key" in one.labels and not _counts(one.name)}

    def label_sets(self, name: str, value: float = 1.0) -> list[dict[str, str]]:
        """The labels of the samples of that name that have the value."""
        return [one.labels for one in self.samples if one.name == name and one.value == value]


def _counts(name: str) -> bool:
    return name.endswith("_total")
