"""A remote write receiver that records what it gets and answers what a test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow

from verl_prometheus.remote_write import write_request_class

Answer = tuple[int, dict[str, str], str]
OK: Answer = (204, {}, "")


class Request(NamedTuple):
    headers: dict[str, str]  # names in lower case
    series: dict[tuple[tuple[str, str], ...], list[tuple[int, float]]]  # labels -> (Unix ms, value)

    def samples(self, name: str, **labels: str) -> list[tuple[int, float]]:
        """The samples of the series of that name with those labels, in the order sent."""
        wanted = {"__name__": name, **labels}.items()
        return [sample for key, samples in self.series.items() if wanted <= dict(key).items() for sample in samples]


class Receiver:
    """Listens for the length of a `with` block; `answer` says what the n-th request (from 0) gets."""

    def __init__(self, answer: Callable[[int, Request], Answer] = lambda number, request: OK) -> None:
        self.requests: list[Request] = []
        self.accepted: list[Request] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = Request(
                    {name.lower(): text for name, text in self.headers.items()},
                    _decode(self.rfile.read(int(self.headers["Content-Length"]))),
                )
                status, headers, text = answer(len(receiver.requests), request)
                receiver.requests.append(request)
                if status < 300:
                    receiver.accepted.append(request)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(text))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/api/v1/write"

    def samples(self, name: str, **labels: str) -> list[tuple[int, float]]:
        """What was accepted of those series."""
        return [sample for request in self.accepted for sample in request.samples(name, **labels)]

    def values(self, name: str, **labels: str) -> list[float]:
        return [value for _, value in self.samples(name, **labels)]

    def __enter__(self) -> Receiver:
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.server.shutdown()
        self.server.server_close()


def _decode(body: bytes) -> dict[tuple[tuple[str, str], ...], list[tuple[int, float]]]:
    size, shift = 0, 0
    for byte in body:  # snappy's block format begins with the size, as a varint
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    message: Any = write_request_class().FromString(
        pyarrow.decompress(body, decompressed_size=size, codec="snappy", asbytes=True)
    )
    return {
        tuple((label.name, label.value) for label in series.labels): [
            (sample.timestamp, sample.value) for sample in series.samples
        ]
        for series in message.timeseries
    }
