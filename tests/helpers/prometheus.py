"""A real Prometheus, as Debian or anybody else packages it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from helpers.waiting import wait_for


def binary_folders() -> list[Path]:
    """Where the programs are: PROMETHEUS_BIN (folders, colons between them), else wherever PATH has them."""
    named = os.environ.get("PROMETHEUS_BIN")
    if named:
        return [Path(folder) for folder in named.split(":")]
    found = shutil.which("prometheus")
    if found is None:
        raise RuntimeError(
            "no prometheus: run the tests with `make test`, or set PROMETHEUS_BIN to the folder that has it"
        )
    return [Path(found).parent]


def free_port() -> int:
    """A free port that nobody takes by chance meanwhile: neither ephemeral (from 32768) nor of Ray's workers (to 19999)."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def get(url: str, headers: dict[str, str] | None = None) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}), timeout=10) as response:
        return bytes(response.read())


class Prometheus:
    """A Prometheus that scrapes what `scrape_configs` say (job -> scrape_config), for the length of a `with` block.

    A second `with` block starts it again, on the same port and data.
    """

    def __init__(
        self,
        bin_folder: Path,
        data: Path,
        scrape_configs: dict[str, dict[str, Any]],
        interval: str = "200ms",
        flags: Sequence[str] = (),
    ) -> None:
        self._data = data
        self._port = free_port()
        data.mkdir(parents=True, exist_ok=True)
        config = data / "prometheus.yml"
        config.write_text(
            yaml.safe_dump(
                {
                    "global": {"scrape_interval": interval, "scrape_timeout": interval},
                    "scrape_configs": [{"job_name": job, **config} for job, config in scrape_configs.items()],
                }
            )
        )
        self._command = [
            str(bin_folder / "prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={data / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--log.level=warn",
            *flags,
        ]

    def __enter__(self) -> Prometheus:
        self._log = (self._data / "prometheus.log").open("a")
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=subprocess.STDOUT)
        wait_for(lambda: get(f"{self.url}/-/ready"), "Prometheus to be ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        self._log.close()

    def stop(self) -> None:
        """Stop it before the block ends."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=30)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def query(self, promql: str) -> list[tuple[dict[str, str], float]]:
        """An instant query, now: (labels, value) of each series."""
        return [(one["metric"], float(one["value"][1])) for one in self._get("query", query=promql)]

    def samples(self, selector: str, minutes: int = 60) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Every stored sample of the last minutes: (labels, [(Unix time, value), ...]) of each series."""
        result = self._get("query", query=f"{selector}[{minutes}m]")
        return [(one["metric"], [(float(at), float(text)) for at, text in one["values"]]) for one in result]

    def _get(self, endpoint: str, **parameters: str) -> list[dict[str, Any]]:
        answer = json.loads(get(f"{self.url}/api/v1/{endpoint}?{urllib.parse.urlencode(parameters)}"))
        assert answer["status"] == "success", answer
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result
