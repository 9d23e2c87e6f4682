"""Makes the logs in this folder anew: real verl runs of the tiny model, sound ones and ones that go wrong on purpose.

    cd tests; python -m scenarios.generate [NAME ...]        default: all, about an hour on two cores

A log is what verl's `file` logger wrote, each line with the time at which it was written, between a line with the run's
configuration and one with its end, both as the run's own endpoint told them. See `verl-prometheus replay --help`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from prometheus_client.parser import text_string_to_metric_families

from scenarios.faults import FAULT_FILE, SLOW_SECONDS
from verl_prometheus.demo import progress, training
from verl_prometheus.demo.process import TrainingProcess
from verl_prometheus.demo.training import Kind

HERE = Path(__file__).parent
DIGITS = 7  # significant ones in the logs
POLL_SECONDS = 0.02
SCRAPE_SECONDS = 1.0
HANGS_FOR_SECONDS = 20.0
BASE = "healthy_sft"  # RL starts from its checkpoint
BASE_STEP = 150


@dataclass(frozen=True)
class Scenario:
    """A run; its fault begins after step `fault_after`, if it has one that does not begin with the run.

    `reward`: a function in faults.py. `end`: how the run ends: by itself, killed after its last step, or hung.
    """

    kind: Kind
    steps: int
    overrides: tuple[str, ...] = ()
    reward: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    fault_after: int | None = None
    end: Literal["by itself", "killed", "hung"] = "by itself"


LEGACY = "trainer.use_v1=False"  # the trainer with the shorter steps
RL = ("trainer.test_freq=20", "actor_rollout_ref.actor.optim.lr=1e-4", "actor_rollout_ref.actor.kl_loss_coef=0.1")
LR = "actor_rollout_ref.actor.optim.lr"
KL = "actor_rollout_ref.actor.kl_loss_coef"

SCENARIOS = {
    BASE: Scenario(
        "sft",
        300,
        ("checkpoint.save_contents=[model,hf_model]", "trainer.save_freq=50", "trainer.test_freq=20", "optim.lr=5e-4"),
    ),
    "healthy_grpo": Scenario("grpo", 300, (*RL, LEGACY)),
    "healthy_ppo": Scenario("ppo", 200, (*RL, LEGACY, "critic.optim.lr=1e-3")),
    "learning_rate_too_high": Scenario("grpo", 60, (*RL, LEGACY, f"{LR}=2e-3")),
    "first_step_breaks": Scenario("grpo", 25, (*RL, LEGACY, f"{LR}=10")),
    "kl_too_strong": Scenario("grpo", 130, (*RL, LEGACY, f"{LR}=1e-5", f"{KL}=100")),
    "entropy_collapse": Scenario("grpo", 100, (*RL, LEGACY, f"{LR}=3e-4", "actor_rollout_ref.actor.entropy_coeff=-1")),
    "reward_always_0": Scenario("grpo", 50, (*RL, LEGACY), "zero"),
    "reward_always_1": Scenario("grpo", 50, (*RL, LEGACY), "one"),
    "reward_nan": Scenario("grpo", 60, (*RL, LEGACY), "not_a_number", fault_after=40),
    "truncation": Scenario("grpo", 80, (*RL, LEGACY, f"{LR}=3e-4"), "length"),
    "reward_hangs": Scenario("grpo", 60, (*RL, LEGACY), "hang", fault_after=40, end="hung"),
    "reward_raises": Scenario("grpo", 60, RL, "fail", fault_after=40),
    "killed": Scenario("grpo", 45, (*RL, LEGACY), end="killed"),
    "slow_rollout": Scenario(
        "grpo",
        70,
        (*RL, LEGACY),
        environment={
            SLOW_SECONDS: "1.5",
            "VERL_USE_EXTERNAL_MODULES": "scenarios.faults",
            "PYTHONPATH": str(HERE.parent),
        },
        fault_after=40,
    ),
}


class Recorder:
    """Follows a run while it trains: its log, line by line with the times, and its endpoint."""

    def __init__(self, log: Path, experiment: str, targets: Path) -> None:
        self.lines: list[dict[str, Any]] = []
        self.config: dict[str, Any] = {}
        self.state = "starting"
        self.phases: dict[str, float] = {}  # active phase -> since when, outermost first
        self._log = log
        self._experiment = experiment
        self._targets = targets
        self._unread = b""
        self._position = 0
        self._scraped = 0.0

    @property
    def step(self) -> int:
        return int(self.lines[-1]["step"]) if self.lines else 0

    def poll(self) -> None:
        if self._log.exists():
            with self._log.open("rb") as stream:
                stream.seek(self._position)
                self._unread += stream.read()
                self._position = stream.tell()
        *complete, self._unread = self._unread.split(b"\n")
        for line in complete:
            self.lines.append({"time": round(time.time(), 3), **json.loads(line)})
        if time.time() - self._scraped >= SCRAPE_SECONDS:
            self._scraped = time.time()
            for _, url in progress.announced(self._targets, self._experiment):
                self._scrape(url)

    def _scrape(self, url: str) -> None:
        try:
            with progress.DIRECT.open(f"{url}/metrics", timeout=progress.TIMEOUT_SECONDS) as response:
                text = response.read().decode()
        except OSError:  # the run has just ended
            return
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        starts = {one.labels["phase"]: one.value for one in samples if one.name == "verl_phase_start_timestamp_seconds"}
        self.phases = dict(sorted(starts.items(), key=lambda item: item[1]))
        for one in samples:
            if one.name == "verl_run_state" and one.value:
                self.state = one.labels["state"]
            elif one.name == "verl_run_config_info" and not one.labels["path"].endswith("model.path"):
                _put(self.config, one.labels["path"], yaml.safe_load(one.labels["value"]))

    def end(self, hung: bool) -> dict[str, Any]:
        if hung:
            phase, began = list(self.phases.items())[-1]
            return {"time": round(began, 3), "end": "hung", "phase": phase}
        return {
            "time": round(time.time(), 3),
            "end": {"running": "killed", "starting": "killed"}.get(self.state, self.state),
        }


def _put(config: dict[str, Any], path: str, value: Any) -> None:
    *sections, name = path.split(".")
    for section in sections:
        config = config.setdefault(section, {})
    config[name] = value


def train(name: str, scenario: Scenario, folder: Path) -> Iterator[dict[str, Any]]:
    """Run the scenario; the lines of its log."""
    log, fault, targets = folder / f"{name}.jsonl", folder / f"{name}.fault", folder / "targets"
    log.unlink(missing_ok=True)
    fault.unlink(missing_ok=True)
    ours = {"port": 0, "address": "127.0.0.1", "targets_dir": targets, "linger_seconds": 10, "gpu.enabled": "false"}
    overrides = [*scenario.overrides, *(f"+trainer.prometheus.{setting}={value}" for setting, value in ours.items())]
    if scenario.kind != "sft":
        overrides.append(f"actor_rollout_ref.model.path={base_model(folder)}")
    if scenario.kind == "ppo":
        overrides.append(f"critic.model.path={base_model(folder)}")
    if scenario.reward:
        reward = {"path": HERE / "faults.py", "name": scenario.reward}
        overrides += [f"reward.custom_reward_function.{setting}={value}" for setting, value in reward.items()]
    command = training.command(
        scenario.kind,
        folder,
        steps=scenario.steps + (1000 if scenario.end == "killed" else 0),
        logger=["console", "file", "prometheus"],
        experiment=name,
        overrides=overrides,
    )
    environment = environment_of(scenario, folder) | {"VERL_FILE_LOGGER_PATH": str(log), FAULT_FILE: str(fault)}
    recorder = Recorder(log, name, targets)
    with TrainingProcess(command, environment, folder / f"{name}.log") as process:
        moved, step = time.time(), 0
        while process.exit_status() is None:
            recorder.poll()
            if recorder.step != step:
                moved, step = time.time(), recorder.step
            if scenario.fault_after is not None and step >= scenario.fault_after:
                fault.touch()
                if scenario.end == "hung" and time.time() - moved > HANGS_FOR_SECONDS:
                    break
            if scenario.end == "killed" and step >= scenario.steps:
                os.kill(process.pid, signal.SIGKILL)
                break
            time.sleep(POLL_SECONDS)
        recorder.poll()
        yield {"config": recorder.config}
        yield from recorder.lines
        yield recorder.end(scenario.end == "hung")
        fault.unlink(missing_ok=True)
    for discovery_file, _ in progress.announced(targets, name):
        discovery_file.unlink(missing_ok=True)


def environment_of(scenario: Scenario, folder: Path) -> dict[str, str]:
    inherited = training.environment(folder)
    for name, value in scenario.environment.items():
        separator = {"PYTHONPATH": os.pathsep, "VERL_USE_EXTERNAL_MODULES": ","}.get(name)
        inherited[name] = f"{value}{separator}{inherited[name]}" if separator and inherited.get(name) else value
    return inherited


def base_model(folder: Path) -> Path:
    return folder / "checkpoints" / BASE / f"global_step_{BASE_STEP}" / "huggingface"


def rounded(value: Any) -> Any:
    if isinstance(value, float) and value == value and abs(value) != float("inf"):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return value


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    text = "".join(
        json.dumps({**line, "data": rounded(line["data"])} if "data" in line else line, separators=(",", ":")) + "\n"
        for line in lines
    )
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SCENARIOS))
    parser.add_argument("--folder", type=Path, default=Path("/tmp/verl-prometheus-scenarios"))
    parser.add_argument("--output", type=Path, default=HERE)
    options = parser.parse_args()
    training.prepare(options.folder)
    for name in options.names or SCENARIOS:
        if name != BASE and not base_model(options.folder).is_dir():
            parser.error(f"{name} starts from a checkpoint of {BASE}: name that one first")
        began = time.time()
        lines = list(train(name, SCENARIOS[name], options.folder))
        write(options.output / f"{name}.jsonl.gz", lines)
        print(f"{name}: {len(lines) - 2} calls in {time.time() - began:.0f} s, ended {lines[-1]}", flush=True)


if __name__ == "__main__":
    main()
