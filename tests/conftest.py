"""Fixtures of many tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from helpers.prometheus import binary_folders
from verl_prometheus.backend import PrometheusBackend
from verl_prometheus.settings import Settings


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`prometheus_bin` is every Prometheus there is."""
    if "prometheus_bin" in metafunc.fixturenames:
        folders = binary_folders()
        metafunc.parametrize("prometheus_bin", folders, ids=[folder.parent.name for folder in folders], scope="session")


@pytest.fixture(scope="session")
def newest_prometheus_bin() -> Path:
    return binary_folders()[0]


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Callable[..., PrometheusBackend]]:
    """Builds backends on any free port that nobody lingers for, and finishes them."""
    built: list[PrometheusBackend] = []

    def build(config: dict[str, Any] | None = None, **settings: Any) -> PrometheusBackend:
        defaults = {"port": 0, "address": "127.0.0.1", "targets_dir": str(tmp_path / "targets"), "linger_seconds": 0}
        one = PrometheusBackend("project", "experiment", Settings(**{**defaults, **settings}), config)
        built.append(one)
        return one

    yield build
    for one in built:
        one.finish()
