import gzip
import os
import socket
import threading
import time
import urllib.error
from collections.abc import Callable, Iterable, Iterator

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from helpers.prometheus import free_port, get
from helpers.scrape import OPENMETRICS, Scrape
from verl_prometheus.errors import ErrorLog
from verl_prometheus.exposition import Exposition
from verl_prometheus.server import MetricsServer


class One(Collector):
    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("verl_one", "One.", value=1.0)


class Raises(Collector):
    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("verl_half", "Half.", value=0.5)
        raise RuntimeError("no more")


ERRORS = ErrorLog()


def serve(port: int = 0, *collectors: Collector) -> MetricsServer:
    exposition = Exposition(collectors or (One(),), {"project": "p\n", "experiment": 'e"'}, ERRORS)
    return MetricsServer(exposition, lambda: "<p>page</p>", ERRORS, "127.0.0.1", port)


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    one = serve()
    yield one
    one.close()


def url(server: MetricsServer) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.mark.parametrize("accept", ["text/plain", OPENMETRICS])
def test_both_formats_with_the_runs_labels(server: MetricsServer, accept: str) -> None:
    scrape = Scrape(url(server), accept)
    assert scrape.value("verl_one", project="p\n", experiment='e"') == 1.0
    assert scrape.text.endswith("# EOF\n") == (accept == OPENMETRICS)


def test_gzip(server: MetricsServer) -> None:
    assert b"verl_one" in gzip.decompress(get(f"{url(server)}/metrics", {"Accept-Encoding": "gzip"}))


def test_pages(server: MetricsServer) -> None:
    assert get(f"{url(server)}/-/healthy") == b"OK\n"
    assert get(f"{url(server)}/?x=1") == b"<p>page</p>"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(f"{url(server)}/nothing")


def test_a_collector_that_raises_costs_only_its_own_families() -> None:
    server = serve(0, Raises(), One())
    before = ERRORS.counts().get("collector Raises", 0)
    try:
        scrape = Scrape(url(server))
    finally:
        server.close()
    assert list(scrape.families) == ["verl_one"]
    assert ERRORS.counts()["collector Raises"] == before + 1


def test_a_taken_port_is_answered_with_the_next_free_one(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        server = serve(port)
    try:
        assert port < server.port < port + 200
        assert f"port {port} is taken, serving on {server.port}" in caplog.text
    finally:
        server.close()


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(OSError, match="assign"):
        MetricsServer(Exposition((), {}, ERRORS), lambda: "", ERRORS, "192.0.2.77", 0)


def test_nothing_listens_after_close() -> None:
    server = serve()
    get(f"{url(server)}/metrics")
    server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=1)


def test_a_forked_child_does_not_keep_the_port() -> None:
    server = serve()
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        server.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), timeout=1)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_scrapers_that_come_together_share_a_rendering_that_began_after_they_came() -> None:
    rendering, go_on = threading.Event(), threading.Event()

    class Slow(Collector):
        times = 0

        def collect(self) -> Iterable[Metric]:
            self.times += 1
            yield GaugeMetricFamily("verl_rendering", "Which one.", value=self.times)
            rendering.set()
            go_on.wait(30)

    slow = Slow()
    exposition = Exposition([slow], {}, ERRORS)
    seen: list[bytes] = []
    threads = [threading.Thread(target=lambda: seen.append(exposition.render("", "")[0])) for _ in range(21)]
    threads[0].start()
    assert rendering.wait(30)
    for one in threads[1:]:
        one.start()
    time.sleep(0.5)  # they all wait for their turn now
    go_on.set()
    for one in threads:
        one.join()
    assert slow.times == 2
    assert sorted(body.splitlines()[-1] for body in seen) == [b"verl_rendering 1.0"] + 20 * [b"verl_rendering 2.0"]


def later(action: Callable[[], object], seconds: float = 0.3) -> None:
    threading.Timer(seconds, action).start()


def test_nobody_scrapes_nobody_is_waited_for(server: MetricsServer) -> None:
    get(f"{url(server)}/-/healthy")
    get(f"{url(server)}/")
    assert server.wait_for_scrapers(600)


def test_the_one_who_scrapes_is_waited_for(server: MetricsServer) -> None:
    get(f"{url(server)}/metrics")
    assert not server.wait_for_scrapers(0.5), "the scrape from before the call is not enough"
    later(lambda: get(f"{url(server)}/metrics"))
    assert server.wait_for_scrapers(600)


def test_everybody_who_scrapes_is_waited_for_and_a_visitor_is_not(server: MetricsServer) -> None:
    for agent in ("Prometheus/3.5", "Prometheus/2.42", "Prometheus/3.5", "Prometheus/2.42", "curl"):
        get(f"{url(server)}/metrics", {"User-Agent": agent})
    later(lambda: get(f"{url(server)}/metrics", {"User-Agent": "Prometheus/3.5"}))
    assert not server.wait_for_scrapers(1)
    for agent in ("Prometheus/3.5", "Prometheus/2.42"):
        later(lambda agent=agent: get(f"{url(server)}/metrics", {"User-Agent": agent}))  # type: ignore[misc]
    assert server.wait_for_scrapers(600)


def test_jobs_of_one_prometheus_with_parameters_of_their_own_are_all_waited_for(server: MetricsServer) -> None:
    for job in ("a", "b", "a", "b"):
        get(f"{url(server)}/metrics?job={job}")
    later(lambda: get(f"{url(server)}/metrics?job=a"))
    assert not server.wait_for_scrapers(1)


def test_a_client_that_hangs_up_or_says_nothing_harms_nobody(server: MetricsServer) -> None:
    idle = socket.create_connection(("127.0.0.1", server.port))
    rude = socket.create_connection(("127.0.0.1", server.port))
    rude.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    rude.close()
    garbage = socket.create_connection(("127.0.0.1", server.port))
    garbage.sendall(b"\xff\xfe\r\n\r\n")
    assert Scrape(url(server)).value("verl_one") == 1.0
    idle.close()
    garbage.close()
