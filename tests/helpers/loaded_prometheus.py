"""A real Prometheus with the shipped configuration and rules, filled by runs of every kind, in about a minute.

Scrapes and evaluations come every second, and steps twice as often as in no run, so that windows and baselines are full.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from helpers.prometheus import free_port, get
from helpers.waiting import wait_for

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"

# name -> what it is; experiments are called like their fixtures but for the last two
GRPO, PPO, SFT, LEGACY, FAILING, RESUMED = "grpo_v1", "ppo_v1", "sft", "grpo_legacy", "failing", "resumed"
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
    """Runs of every kind, GPUs and engines, scraped by a Prometheus until each run has done its steps."""
    targets = folder / "targets"
    targets.mkdir(parents=True)
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir()
    processes: list[subprocess.Popen[bytes]] = []
    began = time.time()
    try:
        port = free_port()
        processes.append(_prometheus(bin_folder, folder, port))
        loaded = Loaded(f"http://127.0.0.1:{port}", began, began)
        # the last call of SFT's may be a validation, which is no step
        first_attempt = _target(_run(targets, RESUMED, "grpo_2gpu", trainer={"default_local_dir": str(checkpoints)}))
        processes += [first_attempt, *map(_target, _targets(targets))]
        wait_for(lambda: loaded_step(loaded, RESUMED) >= 5, "the first attempt to do some steps", seconds=120)
        first_attempt.kill()
        checkpoints.joinpath("latest_checkpointed_iteration.txt").write_text("5")
        processes.append(
            _target(
                _run(
                    targets,
                    RESUMED,
                    "grpo_2gpu",
                    trainer={"default_local_dir": str(checkpoints), "resume_mode": "auto"},
                )
            )
        )
        for experiment in (GRPO, PPO, SFT, LEGACY, RESUMED):
            wait_for(
                lambda one=experiment: loaded_step(loaded, one) >= STEPS - 1, f"{experiment} to do its steps", seconds=300
            )
        yield Loaded(loaded.url, began, time.time())
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def loaded_step(loaded: Loaded, experiment: str) -> float:
    now = Loaded(loaded.url, loaded.began, time.time())
    answer = now.query(f'max(verl_step{{experiment="{experiment}"}})')
    return float(answer[0]["value"][1]) if answer else 0.0


def _targets(targets: Path) -> Iterator[dict[str, Any]]:
    yield _run(targets, GRPO, "grpo_v1")
    yield _run(targets, PPO, "ppo_v1", adv_estimator="gae", lr=2e-6)
    yield _run(targets, LEGACY, "grpo_legacy", lr=5e-6)
    yield _run(targets, FAILING, "grpo_vllm", fail=True)
    yield _run(targets, SFT, "sft")
    labels = {"project": "tiny", "experiment": GRPO}
    yield {"kind": "gpus", "name": "gpus", "targets_dir": str(targets), "labels": labels}
    of_the_run = {f"__meta_verl_{name}": value for name, value in labels.items()}
    for engine, engine_labels in (("vllm", of_the_run), ("sglang", {})):
        exposition = str(TESTS / "expositions" / f"{engine}.txt")
        yield {
            "kind": "engine",
            "name": engine,
            "targets_dir": str(targets),
            "exposition": exposition,
            "labels": engine_labels,
        }


def _run(
    targets: Path,
    experiment: str,
    fixture: str,
    *,
    adv_estimator: str = "grpo",
    lr: float = 1e-6,
    fail: bool = False,
    trainer: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    reinforcement = {
        "algorithm": {"adv_estimator": adv_estimator},
        "data": {"max_response_length": 16},
        "actor_rollout_ref": {"actor": {"optim": {"lr": lr}}, "model": {"path": "tiny"}},
    }
    fine_tuning = {"optim": {"lr": lr}, "model": {"path": "tiny"}}
    config: dict[str, Any] = fine_tuning if fixture == SFT else reinforcement
    return {
        "kind": "run",
        "experiment": experiment,
        "fixture": fixture,
        "steps": STEPS,
        "target": 2 * STEPS,
        "pace": PACE,
        "targets_dir": str(targets),
        "config": {**config, "trainer": dict(trainer or {})},
        "fail": fail,
    }


def _target(spec: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))}
    command = [sys.executable, "-m", "helpers.paced_run", json.dumps(spec)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def _prometheus(bin_folder: Path, folder: Path, port: int) -> subprocess.Popen[bytes]:
    """The shipped configuration, but a second between scrapes, and nothing to send alerts to."""
    config = yaml.safe_load((ROOT / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(ROOT / "prometheus" / "rules" / "*.yml")]
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
        process = subprocess.Popen(command, stdout=log, stderr=log)
    wait_for(lambda: get(f"http://127.0.0.1:{port}/-/ready"), "Prometheus to be ready")
    return process
