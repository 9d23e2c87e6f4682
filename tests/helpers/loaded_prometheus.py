"""A real Prometheus with the shipped configuration and rules, filled by runs of every kind, in less than a minute."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from helpers.prometheus import free_port, get
from helpers.waiting import wait_for

ROOT = Path(__file__).parents[2]

GRPO, PPO, SFT, LEGACY, FAILING, RESUMED = "grpo", "ppo", "sft", "grpo-legacy-trainer", "failing", "resumed"
PACE = 0.5
STEPS = 70


@dataclass(frozen=True)
class Loaded:
    """`began` and `ended`: Unix times between which there is something to see."""

    url: str
    began: float
    ended: float

    def query(self, promql: str) -> list[dict[str, Any]]:
        return self._ask("query", query=promql, time=self.ended)

    def query_range(self, promql: str, step: float = 1.0) -> list[dict[str, Any]]:
        return self._ask("query_range", query=promql, start=self.began, end=self.ended, step=step)

    def label_values(self, label: str, selector: str) -> list[str]:
        answer = self._get(f"label/{label}/values", {"match[]": selector, "start": self.began, "end": self.ended})
        values: list[str] = answer["data"]
        return values

    def _ask(self, endpoint: str, **parameters: Any) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self._get(endpoint, parameters)["data"]["result"]
        return result

    def _get(self, endpoint: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        try:
            body = get(f"{self.url}/api/v1/{endpoint}?{urllib.parse.urlencode(parameters)}")
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{error.read().decode()} for {parameters}") from None
        answer: dict[str, Any] = json.loads(body)
        return answer


@contextmanager
def loaded_prometheus(bin_folder: Path, folder: Path) -> Iterator[Loaded]:
    """The demo of docker compose, faster, scraped by a Prometheus until each run has done its steps."""
    targets = folder / "targets"
    targets.mkdir(parents=True)
    port = free_port()
    began = time.time()
    loaded = Loaded(f"http://127.0.0.1:{port}", began, began)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes.append(_prometheus(bin_folder, folder, port))
        demo = [sys.executable, str(ROOT / "deploy" / "compose" / "demo.py"), str(targets), f"--pace={PACE}"]
        environment = os.environ | {"TMPDIR": str(folder)}
        processes.append(subprocess.Popen(demo, env=environment, stdout=subprocess.DEVNULL, start_new_session=True))
        for experiment in (GRPO, PPO, SFT, LEGACY, RESUMED):
            wait_for(partial(_has_done, loaded, experiment), f"{experiment} to do its steps", seconds=300)
        yield Loaded(loaded.url, began, time.time())
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)  # its children, too
        for process in processes:
            process.wait()


def _has_done(loaded: Loaded, experiment: str) -> bool:
    now = replace(loaded, ended=time.time())
    return bool(now.query(f'max(verl_step{{experiment="{experiment}"}}) >= {STEPS}'))


def _impatient_rules(folder: Path) -> Path:
    """The shipped rules, no group with an interval of its own."""
    rules = folder / "rules"
    rules.mkdir()
    for path in (ROOT / "prometheus" / "rules").glob("*.yml"):
        document = yaml.safe_load(path.read_text())
        for group in document["groups"]:
            group.pop("interval", None)
        (rules / path.name).write_text(yaml.safe_dump(document))
    return rules


def _prometheus(bin_folder: Path, folder: Path, port: int) -> subprocess.Popen[bytes]:
    """The shipped configuration, but a second between scrapes and evaluations, and nothing to send alerts to."""
    config = yaml.safe_load((ROOT / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [f"{_impatient_rules(folder)}/*.yml"]
    del config["alerting"]
    config["scrape_configs"] = [one for one in config["scrape_configs"] if one["job_name"] == "verl"]
    config["scrape_configs"][0]["file_sd_configs"] = [{"files": [f"{folder}/targets/*.json"], "refresh_interval": "1s"}]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    command = [
        str(bin_folder / "prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    wait_for(lambda: get(f"http://127.0.0.1:{port}/-/ready"), "Prometheus to be ready")
    return process
