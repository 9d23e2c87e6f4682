"""HTTP: /metrics, /-/healthy, a landing page and /targets (http_sd), on threads of their own."""

from __future__ import annotations

import errno
import logging
import os
import socket
import socketserver
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from verl_prometheus.errors import ErrorLog
from verl_prometheus.exposition import Exposition
from verl_prometheus.protection import Protection, admits

PORTS_TO_TRY = 200
SCRAPERS_KNOWN = 1000
logger = logging.getLogger("verl_prometheus")


class MetricsServer:
    """Serves an `Exposition`, an HTML `page` and, for Prometheus's http_sd, `targets` as JSON, until closed.

    A taken `port` is answered with the next free one; 0 takes any. An empty `address` listens on all. Everything but
    /-/healthy asks for the `protection`'s password. Raises OSError if it cannot listen, or read the protection's files.
    """

    def __init__(
        self,
        exposition: Exposition,
        page: Callable[[], str],
        errors: ErrorLog,
        address: str = "",
        port: int = 9400,
        targets: Callable[[], str] = lambda: "[]",
        protection: Protection | None = None,
    ) -> None:
        protection = protection or Protection()
        self._scraped = threading.Condition()
        self._scrapers: dict[_Client, _Scraper] = {}
        pages = {
            "/": lambda: ("text/html; charset=utf-8", page()),
            "/targets": lambda: ("application/json", targets()),
        }
        context = protection.context()
        handler = _handler(self, exposition, pages, errors, protection.authorization())
        self._http = _listen(address, port, handler)
        self.port: int = self._http.server_address[1]
        if port and self.port != port:
            logger.warning("verl-prometheus: port %d is taken, serving on %d", port, self.port)
        if context is not None:  # handshakes are left to the request's thread: a slow client delays only itself
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        _close_in_children(self._http.socket)
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.2,), name="verl-prometheus", daemon=True
        )
        self._thread.start()

    def wait_for_scrapers(self, seconds: float) -> bool:
        """Wait until everybody who scrapes has begun a scrape after this call and got it; False if `seconds` were too few.

        Those who came once in the last 2 × `seconds` are one-off visitors, unless nobody came more often.
        """
        now = time.monotonic()
        with self._scraped:
            recent = {client: one for client, one in self._scrapers.items() if now - one.began <= 2 * seconds}
            awaited = [client for client, one in recent.items() if one.times > 1] or list(recent)
            return self._scraped.wait_for(
                lambda: all(self._scrapers[client].began > now for client in awaited), timeout=seconds
            )

    def close(self) -> None:
        """Stop listening; returns when the port is free."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(timeout=5)

    def scrape_begins(self, client: _Client, began: float) -> None:
        """`client` asks, at that monotonic time: from the first time on it is known."""
        with self._scraped:
            if len(self._scrapers) < SCRAPERS_KNOWN:
                self._scrapers.setdefault(client, _Scraper(began, 0))

    def scraped(self, client: _Client, began: float) -> None:
        """A scrape of `client` that began at that monotonic time was answered in full."""
        with self._scraped:
            if client in self._scrapers:
                self._scrapers[client] = _Scraper(began, self._scrapers[client].times + 1)
                self._scraped.notify_all()


class _Client(NamedTuple):
    """Who scrapes. `path` tells the jobs of one Prometheus apart if their parameters differ."""

    address: str
    agent: str
    path: str


class _Scraper(NamedTuple):
    began: float  # the last scrape, monotonic time
    times: int


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def server_bind(self) -> None:
        """Without the name look-up of HTTPServer, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: object, client_address: object) -> None:
        """A scraper that hangs up is nobody's error."""


def _listen(address: str, port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    class Server(_HTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

    for candidate in range(port, min(port + PORTS_TO_TRY, 65535) + 1) if port else (0,):
        try:
            return Server((address, candidate), handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"no free port from {port} to {candidate}")


def _close_in_children(listener: socket.socket) -> None:
    """Forked children (data loaders) would keep the port open after this process has closed it."""
    reference = weakref.ref(listener)

    def close() -> None:
        if (inherited := reference()) is not None:
            inherited.close()

    os.register_at_fork(after_in_child=close)


Page = Callable[[], tuple[str, str]]  # -> (content type, text)


def _handler(
    server: MetricsServer,
    exposition: Exposition,
    pages: Mapping[str, Page],
    errors: ErrorLog,
    authorization: bytes | None,
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 30  # of a client that says nothing
        server_version = "verl-prometheus"
        sys_version = ""

        def do_GET(self) -> None:
            began = time.monotonic()
            path = self.path.partition("?")[0]
            if path == "/-/healthy":
                self._send(b"OK\n", {"Content-Type": "text/plain; charset=utf-8"})
            elif not admits(authorization, self.headers.get("Authorization", "")):
                self._refuse()
            elif path == "/metrics":
                accept = self.headers.get("Accept", ""), self.headers.get("Accept-Encoding", "")
                client = _Client(str(self.client_address[0]), self.headers.get("User-Agent", ""), self.path)
                if self.command == "GET":
                    server.scrape_begins(client, began)
                if self._answer(path, lambda: exposition.render(*accept)) and self.command == "GET":
                    server.scraped(client, began)
            elif path in pages:
                self._answer(path, lambda: _encoded(*pages[path]()))
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        do_HEAD = do_GET

        def _answer(self, path: str, render: Callable[[], tuple[bytes, dict[str, str]]]) -> bool:
            """Send what `render` makes; False if that failed."""
            try:
                body, headers = render()
            except Exception as error:
                errors.add(f"page {path}", error)
                self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
                return False
            self._send(body, headers)
            return True

        def _send(self, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(HTTPStatus.OK)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
            self.wfile.flush()

        def _refuse(self) -> None:
            self.send_response(HTTPStatus.UNAUTHORIZED)
            self.send_header("WWW-Authenticate", 'Basic realm="verl-prometheus"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nobody wants a line per scrape."""

    return Handler


def _encoded(content_type: str, text: str) -> tuple[bytes, dict[str, str]]:
    return text.encode(errors="replace"), {"Content-Type": content_type}
