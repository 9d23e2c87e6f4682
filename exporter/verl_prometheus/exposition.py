"""A registry as text: run-wide labels on every series, both formats, gzip; one rendering at a time."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterable, Mapping

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from verl_prometheus.errors import ErrorLog


class Exposition:
    """What a scrape sees: the families of `collectors`, each series with `labels` as well.

    A collector that raises is counted and left out of that scrape; the others are rendered all the same.
    """

    def __init__(self, collectors: Iterable[Collector], labels: Mapping[str, str], errors: ErrorLog) -> None:
        self._collectors = tuple(collectors)
        self._labels = dict(labels)
        self._errors = errors
        self._rendering = (
            threading.Lock()
        )  # scrapers take turns, so that many of them slow the trainer no more than one

    def collect(self) -> Iterable[Metric]:
        for collector in self._collectors:
            try:
                families = list(collector.collect())
            except Exception as error:
                self._errors.add(f"collector {type(collector).__name__}", error)
                continue
            for family in families:
                family.samples = [one._replace(labels={**self._labels, **one.labels}) for one in family.samples]
                yield family

    def render(self, accept: str, accept_encoding: str) -> tuple[bytes, dict[str, str]]:
        """The body and its headers, by the request's Accept and Accept-Encoding headers."""
        encode, content_type = choose_encoder(accept)
        with self._rendering:
            body = encode(self)
        headers = {"Content-Type": content_type}
        if "gzip" in accept_encoding:
            body = gzip.compress(body, compresslevel=1)
            headers["Content-Encoding"] = "gzip"
        return body, headers
