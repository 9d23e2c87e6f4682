"""A real VictoriaMetrics, as Debian packages it."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
from pathlib import Path
from types import TracebackType

from helpers.prometheus import binary_folders, free_port, get
from helpers.waiting import wait_for


def victoria_binary() -> Path:
    """Raises RuntimeError if there is none beside any Prometheus."""
    for folder in binary_folders():
        if (folder / "victoria-metrics").exists():
            return folder / "victoria-metrics"
    raise RuntimeError("no victoria-metrics in PROMETHEUS_BIN: run the tests with `make test`")


class VictoriaMetrics:
    """Runs for the length of a `with` block."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.url = f"http://127.0.0.1:{free_port()}"

    def __enter__(self) -> VictoriaMetrics:
        self._process = subprocess.Popen(
            [
                victoria_binary(),
                f"-storageDataPath={self._data}",
                f"-httpListenAddr={self.url.removeprefix('http://')}",
                "-search.latencyOffset=0s",
                "-loggerLevel=ERROR",
                "-memory.allowedBytes=64MB",
            ]
        )
        wait_for(lambda: get(f"{self.url}/health"), "VictoriaMetrics to be ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)

    def samples(self, selector: str) -> list[tuple[dict[str, str], list[float]]]:
        """Every stored value: (labels, values) of each series."""
        get(f"{self.url}/internal/force_flush")
        lines = get(f"{self.url}/api/v1/export?{urllib.parse.urlencode({'match[]': selector})}").decode().splitlines()
        return [(one["metric"], one["values"]) for one in map(json.loads, lines)]
