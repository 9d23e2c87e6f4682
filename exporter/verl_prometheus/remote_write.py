"""Prometheus remote write, version 1.0: samples as a snappy-compressed protobuf message in an HTTP POST.

Why not OTLP: Prometheus has an OTLP receiver only since 2.47, and it renames metrics and units on the way, so that pushed and
scraped series would differ. Remote write 1.0 is what Prometheus since 2.33, VictoriaMetrics, Mimir, Thanos and Grafana Cloud
take, with labels, timestamps and staleness markers as they are. The libraries come with verl: protobuf with ray, snappy's
block format with pyarrow. Without verl: `pip install verl-prometheus[remote-write]`.

Specification: https://prometheus.io/docs/specs/prw/remote_write_spec/
"""

from __future__ import annotations

import base64
import email.utils
import functools
import http.client
import math
import ssl
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from verl_prometheus import __version__
from verl_prometheus.series import Series
from verl_prometheus.settings import RemoteWriteSettings

STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]  # the NaN that ends a series
NAN = math.nan
LONGEST_PAUSE_SECONDS = 300.0
Sample = tuple[Series, int, float]  # Unix milliseconds, value


class Unavailable(Exception):
    """Try again later: network, 5xx, 429. `retry_after`: seconds that the receiver asks to wait, if it does."""

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class Rejected(Exception):
    """The receiver will never take it. `divisible`: it may take a part of it."""

    def __init__(self, reason: str, divisible: bool) -> None:
        super().__init__(reason)
        self.divisible = divisible


class RemoteWriteClient:
    """Sends samples to one endpoint. Files with secrets are read anew each time, since they rotate.

    Raises OSError or ssl.SSLError if the TLS files cannot be used, ImportError if the libraries are missing.
    """

    def __init__(self, settings: RemoteWriteSettings) -> None:
        self._settings = settings
        self._opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=_tls(settings)))
        _encode([])  # fails now if a library is missing

    def send(self, samples: Iterable[Sample]) -> None:
        """Send `samples`, those of a series in the order of time. Raises `Unavailable` or `Rejected`."""
        body = _encode(samples)
        try:
            request = urllib.request.Request(self._settings.url, body, self._headers(), method="POST")
            with self._opener.open(request, timeout=self._settings.timeout_seconds):
                pass
        except urllib.error.HTTPError as error:
            with error:
                reason = f"HTTP {error.code} {error.reason}: {error.read(500).decode(errors='replace').strip()}"
            if error.code == HTTPStatus.TOO_MANY_REQUESTS or error.code >= 500:
                raise Unavailable(reason, _retry_after(error.headers.get("Retry-After"))) from error
            divisible = error.code in (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            raise Rejected(reason, divisible) from error
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"{type(error).__name__}: {error}") from error

    def _headers(self) -> dict[str, str]:
        settings = self._settings
        headers = {
            "User-Agent": f"verl-prometheus/{__version__}",
            **settings.headers,
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "snappy",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }
        if settings.bearer_token_file:
            headers["Authorization"] = f"Bearer {Path(settings.bearer_token_file).read_text().strip()}"
        elif settings.username:
            password = Path(settings.password_file).read_text().rstrip("\r\n")
            encoded = base64.b64encode(f"{settings.username}:{password}".encode()).decode()
            headers["Authorization"] = f"Basic {encoded}"
        return headers


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST becomes a GET, which says nothing of the samples."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _tls(settings: RemoteWriteSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.tls_ca_file or None)
    if settings.tls_cert_file:
        context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
    if settings.tls_insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _retry_after(header: str | None) -> float | None:
    """Seconds, from a Retry-After header in either form."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(seconds, 0.0), LONGEST_PAUSE_SECONDS) if math.isfinite(seconds) else None


def _encode(samples: Iterable[Sample]) -> bytes:
    import pyarrow

    request = write_request_class()()
    by_series: dict[Series, Any] = {}
    for series, at, value in samples:
        entry = by_series.get(series)
        if entry is None:
            entry = by_series[series] = request.timeseries.add()
            for name, text in sorted((("__name__", series.name), *series.labels)):
                entry.labels.add(name=name, value=text)
        entry.samples.add(value=value, timestamp=at)
    return bytes(pyarrow.compress(request.SerializeToString(), codec="snappy", asbytes=True))


@functools.cache
def write_request_class() -> Any:
    """prometheus.WriteRequest, as far as it is used here."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    schema = text_format.Parse(_SCHEMA, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(schema)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("prometheus.WriteRequest"))


_SCHEMA = """
name: "remote.proto" package: "prometheus" syntax: "proto3"
message_type {
  name: "WriteRequest"
  field { name: "timeseries" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: "TimeSeries" }
}
message_type {
  name: "TimeSeries"
  field { name: "labels" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: "Label" }
  field { name: "samples" number: 2 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: "Sample" }
}
message_type {
  name: "Label"
  field { name: "name" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING }
}
message_type {
  name: "Sample"
  field { name: "value" number: 1 label: LABEL_OPTIONAL type: TYPE_DOUBLE }
  field { name: "timestamp" number: 2 label: LABEL_OPTIONAL type: TYPE_INT64 }
}
"""
