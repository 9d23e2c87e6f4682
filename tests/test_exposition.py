"""Whatever is logged, the exposition is one that prometheus-client's parsers and real Prometheis accept, and complete."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from helpers.prometheus import Prometheus
from helpers.scrape import OPENMETRICS, Scrape
from helpers.waiting import wait_for
from verl_prometheus import catalog
from verl_prometheus.backend import PrometheusBackend
from verl_prometheus.settings import Settings


class Broken:
    """Its float() raises whatever comes to mind."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __float__(self) -> float:
        raise self.error("broken")


AWKWARD_KEYS = [
    *[
        "",
        " ",
        "a b",
        "a\nb",
        'a"b',
        "a\\b",
        "a\\nb",
        "é",
        "中文",
        "🙂",
        "\x00",
        "\r",
        "\t",
        "\x7f",
        "\u2028",
        "\ud800",
        "\ufffd",
    ],
    *[
        "#",
        "{",
        "}",
        "1",
        "a/b",
        "a_b",
        "a-b",
        "le",
        "__name__",
        "critic/score/mean",
        "val-core/数学/acc/mean@8",
        "timing_s/gen",
    ],
    *["step", "steps", "tokens", "run_info", "step_duration_seconds", "step_duration_seconds_count"],
    *["a_total", "a_bucket", "a_sum", "a_count", "a_created", "a_info"],
]
KEYS = st.one_of(
    st.sampled_from(AWKWARD_KEYS), st.text(), st.from_regex(r"[a-z_]{1,8}(/[a-z@0-9_]{1,8}){0,3}", fullmatch=True)
)
FINITE = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**63), 2**63),
    st.booleans(),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(np.float32),
    st.floats(allow_nan=False, allow_infinity=False).map(np.float64),
    st.integers(-1000, 1000).map(np.int64),
    st.floats(-1e6, 1e6).map(torch.tensor),
    st.floats(-1e6, 1e6).map(lambda value: np.array([value])),
)
NONFINITE = st.sampled_from([math.nan, math.inf, -math.inf])
USELESS = st.one_of(
    st.none(),
    st.text(),
    st.lists(st.floats()),
    st.just(np.zeros(3)),
    st.just(torch.zeros(2, 2)),
    st.just(10**400),
    st.sampled_from([ValueError, RuntimeError, ZeroDivisionError]).map(Broken),
)
VALUES = st.one_of(
    st.one_of(FINITE, NONFINITE).map(lambda value: (value, float(np.asarray(value).item()))),
    USELESS.map(lambda value: (value, None)),
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, float]]:
    """A dict to log, and what must be exported of it, by key."""
    pairs = draw(st.dictionaries(KEYS, VALUES, max_size=40))
    data = {key: value for key, (value, _) in pairs.items()}
    return data, {key: number for key, (_, number) in pairs.items() if number is not None}


def exported(numbers: dict[str, float]) -> dict[str, float]:
    """The same by the key that the label carries, in the unit that the series has."""
    shipped = catalog.load()
    by_label = {catalog.printable(key): number for key, number in numbers.items()}
    return {key: number * shipped.series(key).scale for key, number in by_label.items()}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusBackend]:
    targets = str(tmp_path_factory.mktemp("targets"))
    one = PrometheusBackend("p", "e", Settings(port=0, address="127.0.0.1", targets_dir=targets, linger_seconds=0))
    yield one
    one.finish()


STEPS = iter(range(1, 10**9))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(call=calls())
def test_the_parsers_of_prometheus_client_read_it_all(
    served: PrometheusBackend, call: tuple[dict[str, Any], dict[str, float]]
) -> None:
    data, numbers = call
    served.log({"anything": 1.0, **data}, next(STEPS))
    for accept in ("text/plain", OPENMETRICS):
        scrape = Scrape(served.url, accept)
        keyed = scrape.keyed()
        for key, value in exported(numbers).items():
            assert keyed[key] == pytest.approx(value, rel=0, abs=0, nan_ok=True)
        assert not scrape.values("verl_exporter_errors_total")
        series = [(one.name, tuple(sorted(one.labels.items()))) for one in scrape.samples]
        assert len(set(series)) == len(series)


@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(call=calls())
def test_a_real_prometheus_stores_it_all(
    served: PrometheusBackend, prometheus: Prometheus, call: tuple[dict[str, Any], dict[str, float]]
) -> None:
    check_prometheus(served, prometheus, *call)


def test_a_real_prometheus_stores_the_awkward_and_the_many(served: PrometheusBackend, prometheus: Prometheus) -> None:
    for numbers in (
        {key: float(index) for index, key in enumerate(AWKWARD_KEYS)},
        {f"key {index}/{chr(0x4E00 + index)}": index / 7 for index in range(10_000)},
    ):
        check_prometheus(served, prometheus, numbers, numbers)


def check_prometheus(
    served: PrometheusBackend, prometheus: Prometheus, data: dict[str, Any], numbers: dict[str, float]
) -> None:
    step = next(STEPS)
    served.log({"anything": 1.0, **data}, step)
    wait_for(lambda: step in [value for _, value in prometheus.query("verl_step")], f"step {step} in Prometheus")
    assert [value for _, value in prometheus.query("up")] == [1.0]
    found = prometheus.query('{__name__=~"verl_.*", job="verl"}')
    stored = {labels.get("key", ""): value for labels, value in found if labels["__name__"] not in OWN}
    for key, value in exported(numbers).items():
        assert stored[key] == pytest.approx(value, rel=0, abs=0, nan_ok=True), key


OWN = {f"{name}{suffix}" for name in catalog.load().families for suffix in ("", "_bucket", "_count", "_sum")}


@pytest.fixture(scope="module")
def prometheus(
    served: PrometheusBackend, prometheus_bin: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    target = served.url.removeprefix("http://")
    scrape = {"verl": {"static_configs": [{"targets": [target]}]}}
    with Prometheus(prometheus_bin, tmp_path_factory.mktemp("prometheus"), scrape, interval="500ms") as one:
        yield one
