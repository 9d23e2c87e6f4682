"""Real runs that end badly and are resumed: what Prometheus holds of them afterwards."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from helpers.prometheus import Prometheus
from helpers.runs import RealRun
from helpers.waiting import wait_for
from verl_prometheus import catalog
from verl_prometheus.demo.training import EXTERNAL_MODULES, Kind
from verl_prometheus.journal import JournalReader
from verl_prometheus.run import Call

pytestmark = pytest.mark.real_run
EXPERIMENT = "crash"
LIMIT_SECONDS = 300.0
Kill = Callable[[psutil.Process], object]


def send(number: signal.Signals, to: str = "") -> Kill:
    """A signal for the process below the launcher that has `to` in its command line; without, for the launcher."""

    def kill(launcher: psutil.Process) -> None:
        below = [one for one in launcher.children(recursive=True) if to and to in " ".join(one.cmdline())]
        (below[-1] if to else launcher).send_signal(number)

    return kill


class ResumedRun:
    """Attempts at one run: with the same checkpoints, pushed to the same Prometheus."""

    def __init__(self, kind: Kind, folder: Path, server: Prometheus) -> None:
        self._kind: Kind = kind
        self._folder = folder
        self._server = server
        self._attempts = 0
        self.logged: list[tuple[int, dict[str, float]]] = []  # by verl's own `file` logger, in all attempts

    def attempt(self, kill: Kill | None = None, steps: int = 1000, environment: Mapping[str, str] | None = None) -> int:
        """Train until `kill` ends it after three steps, or it ends itself; the launcher's exit status."""
        self._attempts += 1
        folder = self._folder / str(self._attempts) / EXPERIMENT
        folder.mkdir(parents=True)
        overrides = (
            "trainer.resume_mode=auto",
            "trainer.save_freq=1",
            "trainer.test_freq=-1",
            f"trainer.default_local_dir={self._folder / 'checkpoints'}",
            f"+trainer.prometheus.remote_write.url={self._server.url}/api/v1/write",
        )
        run = RealRun(self._kind, folder, steps, overrides, environment)
        launcher = psutil.Process(run.process.pid)
        processes = [launcher]
        try:
            if kill is not None:
                wait_for(lambda: self._is_between_steps(run), f"three steps of attempt {self._attempts}", LIMIT_SECONDS)
                processes += launcher.children(recursive=True)
                kill(launcher)
            status = run.process.wait(LIMIT_SECONDS)
        except BaseException:
            print(run.output())
            raise
        finally:
            _, alive = psutil.wait_procs(processes, timeout=30)
            for process in alive:
                process.kill()
        self.logged += run.logged()
        return status

    def _is_between_steps(self, run: RealRun) -> bool:
        """Whether three steps are logged, and the last is in the journal, which takes it a moment."""
        journal = JournalReader(self._folder / "checkpoints" / "verl-prometheus" / "journal.jsonl")
        calls = sum(isinstance(entry, Call) for entry in journal.entries())
        return len(run.logged()) >= 3 and calls == len(self.logged) + len(run.logged())

    def states(self) -> set[str]:
        """What the run's state is, as Prometheus knows it."""
        samples = self._server.samples("verl_run_state")
        return {labels["state"] for labels, values in samples if values[-1][1] == 1}

    def attempts(self) -> list[str]:
        """The attempts that Prometheus knows; they are of one run."""
        labels = [labels for labels, _ in self._server.samples("verl_run_info")]
        assert len({one["run_id"] for one in labels}) == 1
        return sorted(one["attempt"] for one in labels)

    def is_complete(self) -> None:
        """Prometheus holds every value of every step that verl's `file` logger has written, in that order."""
        shipped = catalog.load()
        expected: dict[str, list[float]] = {}
        for _, data in self.logged:
            for key, value in data.items():
                expected.setdefault(key, []).append(value * shipped.series(key).scale)
        assert held(self._server, "verl_step") == changes(float(step) for step, _ in self.logged)
        for key, values in expected.items():
            selector = f"{shipped.series(key).family}{{key={json.dumps(key)}}}"
            assert held(self._server, selector) == changes(values), key


def held(server: Prometheus, selector: str) -> list[float]:
    ((_, samples),) = server.samples(selector)
    return changes(value for _, value in samples)


def changes(values: Iterator[float] | list[float]) -> list[float]:
    """Without repetitions: a step that takes long is sent again."""
    return [value for value, _ in itertools.groupby(values)]


def test_a_trainer_that_is_stopped_killed_or_fails(newest_prometheus_bin: Path, tmp_path: Path) -> None:
    """SFT, where the process that trains is the one that logs."""
    flags = ("--web.enable-remote-write-receiver",)
    with Prometheus(newest_prometheus_bin, tmp_path / "prometheus", {}, flags=flags) as server:
        run = ResumedRun("sft", tmp_path, server)
        assert run.attempt(send(signal.SIGKILL, "verl.trainer.sft_trainer")) != 0
        assert run.states() == {"running"}, "a killed process says nothing"
        assert run.attempt(send(signal.SIGTERM)) != 0
        assert run.states() == {"running"}
        assert run.attempt(send(signal.SIGINT, "verl.trainer.sft_trainer")) != 0
        assert run.states() == {"failed"}
        last = run.logged[-1][0]
        assert run.attempt(environment=bomb(last + 3)) != 0
        assert run.states() <= {"failed", "finished"}, "this trainer tells nobody that it failed"
        run.is_complete()
        assert run.attempt(steps=last + 5) == 0
        assert run.states() == {"finished"}
        run.is_complete()
        assert run.attempts() == ["1", "2", "3", "4", "5"]
        ((_, resets),) = server.query("resets(verl_steps_total[1h])")
        assert resets == 4, "rate() knows where attempts begin"


def bomb(step: int) -> dict[str, str]:
    """The environment of a trainer that fails at that step."""
    modules = ",".join((*EXTERNAL_MODULES, "helpers.bomb"))
    path = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    return {"VERL_USE_EXTERNAL_MODULES": modules, "PYTHONPATH": path, "BOMB_STEP": str(step)}


def test_a_task_runner_and_a_ray_head_that_are_killed_and_a_trainer_that_fails(
    newest_prometheus_bin: Path, tmp_path: Path
) -> None:
    """GRPO, where the launcher starts Ray, which starts the process that logs."""
    flags = ("--web.enable-remote-write-receiver",)
    with Prometheus(newest_prometheus_bin, tmp_path / "prometheus", {}, flags=flags) as server:
        run = ResumedRun("grpo", tmp_path, server)
        assert run.attempt(send(signal.SIGKILL, "TaskRunner")) != 0
        assert run.states() == {"running"}
        assert run.attempt(send(signal.SIGKILL, "gcs_server")) != 0
        assert run.states() <= {"running", "failed"}
        assert run.attempt(environment=bomb(run.logged[-1][0] + 2)) != 0
        assert run.states() == {"failed"}
        run.is_complete()
        assert run.attempts() == ["1", "2", "3"]
