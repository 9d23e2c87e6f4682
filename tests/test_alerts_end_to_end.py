"""From real training runs to notifications: the shipped Prometheus and Alertmanager configuration, receivers behind it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from helpers.alerting import PATIENCE, Receivers, shipped
from helpers.runs import training_folder
from helpers.waiting import wait_for
from verl_prometheus.demo import progress, training
from verl_prometheus.demo.process import TrainingProcess

pytestmark = pytest.mark.real_run

FAULTS = Path(__file__).parent / "scenarios" / "faults.py"
FOREVER = 100_000  # steps


class Run:
    """A real GRPO run whose reward function does what `fault` says. `settings`: of the logger."""

    def __init__(self, experiment: str, folder: Path, steps: int, **settings: object) -> None:
        self._experiment = experiment
        self._targets = folder / "targets"
        self._fault = folder / f"{experiment}.fault"
        self._log = folder / f"{experiment}.log"
        ours = {
            "port": 0,
            "address": "127.0.0.1",
            "targets_dir": self._targets,
            "linger_seconds": 30,
            "gpu.enabled": "false",
            **settings,
        }
        overrides = [
            *(f"+trainer.prometheus.{name}={value}" for name, value in ours.items()),
            f"reward.custom_reward_function.path={FAULTS}",
            "reward.custom_reward_function.name=scripted",
            "trainer.test_freq=-1",
        ]
        logger = ["console", "prometheus"]
        command = training.command(
            "grpo", training_folder(), steps=steps, logger=logger, experiment=experiment, overrides=overrides
        )
        environment = training.environment(training_folder()) | {"SCENARIO_FAULT_FILE": str(self._fault)}
        self.process = TrainingProcess(command, environment, self._log)

    def output(self) -> str:
        """The end of what the run printed, for messages of failed assertions."""
        return self._log.read_text()[-4000:]

    def fault(self, name: str) -> None:
        new = self._fault.with_suffix(".new")
        new.write_text(name)
        new.rename(self._fault)

    def recover(self) -> None:
        self._fault.unlink()

    @property
    def discovery_files(self) -> list[Path]:
        return [path for path, _ in progress.announced(self._targets, self._experiment)]

    def step(self) -> int:
        for _, url in progress.announced(self._targets, self._experiment):
            return progress.read(url).step or 0
        return 0

    def reach(self, step: int) -> None:
        def reached() -> bool:
            assert self.process.exit_status() is None, self.output()
            return self.step() >= step

        wait_for(reached, f"{self._experiment} to reach step {step}", seconds=PATIENCE, pause=0.5)


@pytest.fixture
def receivers() -> Iterator[Receivers]:
    one = Receivers()
    yield one
    one.close()


# A minute or so for each run to start; a notification waits for its group, and NaN is held for 5 minutes: 8 in all.
def test_each_fault_of_a_real_run_arrives_as_its_own_notification(
    newest_prometheus_bin: Path, receivers: Receivers, tmp_path: Path
) -> None:
    (tmp_path / "targets").mkdir()
    with ExitStack() as stack:
        stack.enter_context(shipped(newest_prometheus_bin, tmp_path, receivers))

        def start(experiment: str, steps: int = FOREVER, **settings: object) -> Run:
            run = Run(experiment, tmp_path, steps, **settings)
            stack.enter_context(run.process)
            return run

        killed = start("killed")
        killed.reach(20)
        os.kill(killed.process.pid, signal.SIGKILL)

        sick = start("sick", **{"thresholds.VerlRunStalled": 60})  # the default is 10 minutes for a phase this short
        sick.reach(4)
        assert killed.discovery_files == []  # cleared by the run that came next, and yet:
        sick.fault("nan")
        nan = receivers.wait("sick", "VerlNonFiniteValue")
        assert nan["labels"]["severity"] == "page"
        assert re.match(
            r"tiny/sick, step \d+, phase \w+: .* NaN or infinite, number of keys", nan["annotations"]["summary"]
        )
        sick.recover()

        sick.fault("hang")
        sound = start("sound", steps=12)
        stalled = receivers.wait("sick", "VerlRunStalled", phase="gen")
        assert stalled["labels"]["severity"] == "page"
        assert "phase gen: no progress in gen" in stalled["annotations"]["summary"]
        step = sick.step()
        sick.recover()
        sick.reach(step + 2)
        assert sound.process.wait(PATIENCE) == 0, sound.output()
        assert sound.discovery_files == []

        assert receivers.wait("killed", "VerlRunVanished")["labels"]["severity"] == "page"

        failing = start("failing")
        failing.reach(4)
        failing.fault("fail")
        assert receivers.wait("failing", "VerlRunFailed")["labels"]["severity"] == "page"

        receivers.wait("sick", "VerlRunStalled", "resolved", phase="gen")
        receivers.wait("killed", "VerlRunVanished", "resolved")
        receivers.wait("sick", "VerlNonFiniteValue", "resolved")

    assert receivers.urgent("sound") == set()
    assert {"VerlNonFiniteValue", "VerlRunStalled"} <= receivers.urgent("sick")
    assert receivers.urgent("killed") == {"VerlRunVanished"}
    assert receivers.urgent("failing") == {"VerlRunFailed"}
    assert all(one["annotations"]["runbook_url"] for one in receivers.alerts)
    page = nan["annotations"]["summary"]
    assert any(page in event["payload"]["summary"] for event in receivers.pagerduty if "payload" in event)
    assert any(page in message["text"] for message in receivers.slack if message["title"].startswith("FIRING: tiny/"))
