"""A registry as text: run-wide labels on every series, both formats, gzip; one rendering at a time."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from verl_prometheus.errors import ErrorLog


class Rendering(NamedTuple):
    """A body and its headers; `began` is monotonic time."""

    began: float
    body: bytes
    headers: dict[str, str]


class Exposition:
    """What a scrape sees: the families of `collectors`, each series with `labels` as well.

    A collector that raises is counted and left out of that scrape; the others are rendered all the same. Scrapers take
    turns, and those who wait share what was rendered after they came: twenty at once cost the trainer little more than one.
    """

    def __init__(self, collectors: Iterable[Collector], labels: Mapping[str, str], errors: ErrorLog) -> None:
        self._collectors = tuple(collectors)
        self._labels = dict(labels)
        self._errors = errors
        self._turn = threading.Lock()
        self._last: dict[tuple[str, bool], Rendering] = {}

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
        """The body and its headers, by the request's Accept and Accept-Encoding headers; as of now or later."""
        came = time.monotonic()
        encode, content_type = choose_encoder(accept)
        kind = content_type, "gzip" in accept_encoding
        with self._turn:
            last = self._last.get(kind)
            if last is None or last.began < came:
                self._last.clear()  # one at a time is kept, bodies can be large
                last = self._last[kind] = self._render(encode, *kind)
        return last.body, last.headers

    def _render(self, encode: Callable[[Exposition], bytes], content_type: str, compress: bool) -> Rendering:
        began = time.monotonic()
        headers = {"Content-Type": content_type}
        body = encode(self)
        if compress:
            body = gzip.compress(body, compresslevel=1)
            headers["Content-Encoding"] = "gzip"
        return Rendering(began, body, headers)
