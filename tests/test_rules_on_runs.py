"""The rules on whole runs, step by step: sound ones alert nobody, faults are found, whatever the length of a step."""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from verl_prometheus.collectors.signals import SignalCollector
from verl_prometheus.signals import Signals, SignalsView

RULE_FILES = sorted((Path(__file__).parent.parent / "prometheus" / "rules").glob("*.yml"))
# Prometheus evaluates groups side by side. At worst, an alert sees the records and limits of the evaluation before.
WORST_ORDER = ["verl-run", "verl-training", "verl-gpu", "verl-limits", "verl-records"]
STEPS = 120
FAULT = 46  # first step that goes wrong: the baseline is frozen and has left the window
WINDOW = 20
VALIDATE, SAVE = 50, 20
PHASES = {"gen": 0.6, "reward": 0.03, "old_log_prob": 0.07, "update_actor": 0.25, "update_weights": 0.05}

Values = dict[str, float]
Exposition = dict[str, float]
Step = Callable[[random.Random, int], Values]


@dataclass
class Snapshot:
    signals: SignalsView


class Trainer:
    """A run on a virtual clock. `frames`: what its endpoint shows since when; None once its target is withdrawn.

    The families about the run are made here; the signals are the exporter's own.
    """

    def __init__(self, experiment: str, seconds: float, resumed: Trainer | None = None) -> None:
        self.experiment = experiment
        self.seconds = seconds
        self.now: float = 60.0 if resumed is None else resumed.now + 45
        self.frames: list[tuple[float, Exposition | None]] = [] if resumed is None else resumed.frames
        self.logged: dict[int, float] = {}  # step -> when it was logged
        self.signals = Signals(response_limit=8192)
        if resumed is not None:
            self.signals.restore(resumed.signals.state())
        self._shown: Exposition = {"up": 1, "verl_run_start_timestamp_seconds": self.now}
        self._active: dict[str, float] = {}
        self._took: dict[str, float] = {}
        self._steps = 0
        self._state("running")

    def train(self, steps: Sequence[int], step_of: Step, timed: bool = True) -> Trainer:
        """Steps with values from `step_of`. `timed`: the trainer has phases and logs their times (SFT has not)."""
        noise = random.Random(self.experiment)
        for step in steps:
            values = step_of(noise, step)
            began = self.now
            if timed:
                self._phases(step, values)
            else:
                self.now += self.seconds
            self._log(step, values, self.now - began if not timed else None)
        return self

    def hang(self, phase: str) -> None:
        self._active = {"step": self.now, phase: self.now}
        self._show()

    def end(self, state: str, linger: float) -> None:
        """Say goodbye, wait for the last scrape, withdraw the target."""
        self._state(state)
        self.now += linger
        self.frames.append((self.now, None))

    def kill(self) -> None:
        """The target stays in its discovery file and does not answer."""
        self.frames.append((self.now, {"up": 0}))

    def scrapes(self, interval: float, until: float) -> dict[str, list[str]]:
        """Every series as promtool wants it: a value for each scrape."""
        starts = [start for start, _ in self.frames]
        seen = [bisect_right(starts, interval * number) - 1 for number in range(int(until / interval) + 1)]
        expositions = [(self.frames[index][1] or {}) if index >= 0 else {} for index in seen]
        series: dict[str, list[str]] = {}
        for number, exposition in enumerate(expositions):
            for name, value in exposition.items():
                values = series.setdefault(name, ["_"] * (len(expositions) + 1))
                values[number] = f"{value:.9g}".replace("nan", "NaN").replace("inf", "Inf")
                values[number + 1] = "stale"
        labels = f'project="math",experiment="{self.experiment}",job="verl",instance="{self.experiment}:9400"'
        return {
            f"{name[:-1]},{labels}}}" if name.endswith("}") else f"{name}{{{labels}}}": values
            for name, values in series.items()
        }

    def _phases(self, step: int, values: Mapping[str, float]) -> None:
        self._active["step"] = self.now
        for phase, share in PHASES.items():
            self._phase(phase, share * self.seconds * values.get(f"slowdown of {phase}", 1.0))
        if step % SAVE == 0:
            self._phase("save_checkpoint", max(20.0, 0.02 * self.seconds))
            self._shown["verl_checkpoint_step"] = step
        del self._active["step"]
        self._took["step"] = sum(self._took.values())
        if step % VALIDATE == 0:
            self._phase("testing", 770.0)
            accuracy = 'verl_validation{tier="core",data_source="gsm8k",variable="acc",stat="mean",n="1"}'
            self._shown.update({accuracy: 0.2 + step / 500, "verl_validation_step": step})

    def _phase(self, name: str, seconds: float) -> None:
        self._active[name] = self.now
        self._show()
        self.now += seconds
        del self._active[name]
        self._took[name] = self._took.get(name, 0.0) + seconds

    def _log(self, step: int, values: Mapping[str, float], wall: float | None) -> None:
        if "step" in self._took:
            values = {**values, "perf/time_per_step": self._took["step"]}
        self.signals.observe(step, values, wall, self._took)
        self._took = {}
        self._steps += 1
        self.logged[step] = self.now
        for key in (key for key, value in values.items() if not math.isfinite(value)):
            counter = f'verl_nonfinite_values_total{{key="{key}"}}'
            self._shown[counter] = self._shown.get(counter, 0) + 1
        self._shown = {name: value for name, value in self._shown.items() if not name.startswith("verl_signal")}
        for family in SignalCollector({}).collect(Snapshot(self.signals.view())):
            for sample in family.samples:
                labels = ",".join(f'{label}="{text}"' for label, text in sample.labels.items())
                self._shown[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        self._shown.update(
            verl_step=step,
            verl_steps_total=self._steps,
            verl_step_target=STEPS,
            verl_last_step_timestamp_seconds=self.now,
        )
        self._show()

    def _state(self, current: str) -> None:
        for state in ("starting", "running", "finished", "failed"):
            self._shown[f'verl_run_state{{state="{state}"}}'] = float(state == current)
        self._show()

    def _show(self) -> None:
        phases = {f'verl_phase_active{{phase="{phase}"}}': 1.0 for phase in self._active}
        begun = {f'verl_phase_start_timestamp_seconds{{phase="{phase}"}}': at for phase, at in self._active.items()}
        self.frames.append((self.now, {**self._shown, **phases, **begun}))


def grpo(noise: random.Random, step: int) -> Values:
    """A sound step within the magnitudes of public LLM runs."""

    def about(value: float, spread: float = 0.1) -> float:
        return value * max(0.1, noise.gauss(1, spread))

    learned = 1 - math.exp(-step / 60)
    reward = about(0.2 + 0.4 * learned, 0.06)
    return {
        "actor/kl_loss": about(0.0005 + 0.02 * learned, 0.2),
        "actor/ppo_kl": noise.gauss(0.0003, 0.001),
        "actor/entropy": about(0.7 - 0.5 * learned),
        "critic/rewards/mean": reward,
        "critic/score/mean": reward + 0.01,
        "critic/advantages/max": about(1.5),
        "critic/advantages/min": -about(1.3),
        "actor/grad_norm": about(0.1 + 0.3 * learned, 0.4),
        "actor/pg_loss": noise.gauss(0, 0.02),
        "actor/pg_clipfrac": about(0.008, 0.5),
        "response_length/mean": about(1500 + 800 * learned),
        "response/aborted_ratio": 0.0,
        "training/rollout_probs_diff_mean": about(0.003),
        "training/off_policy/trajectory_staleness_worst/max": 0.0,
        "perf/throughput": about(1800, 0.05),
    }


def ppo(noise: random.Random, step: int) -> Values:
    values = grpo(noise, step)
    values["actor/reward_kl_penalty"] = values.pop("actor/kl_loss")
    critic = {"critic/vf_loss": 0.1, "critic/vf_explained_var": noise.gauss(min(0.6, step / 50 - 0.5), 0.1)}
    return {**values, **critic, "rollout_corr/rollout_is_eff_sample_size": 0.97}


def sft(noise: random.Random, step: int) -> Values:
    return {"train/loss": 2 * math.exp(-step / 80) + noise.gauss(0.5, 0.05), "train/grad_norm": noise.uniform(0.5, 2)}


class Promtool:
    """Evaluates the rules on scrapes. promtool prints what it got when it is told to expect nothing."""

    QUERY = 'count by (alertname, experiment, severity) (ALERTS{alertstate="firing"})'
    GOT = re.compile(r"time: (\S+?),\s+exp: nil\s+got: (.*)")
    ALERT = re.compile(r'alertname="(\w+)", experiment="(\w+)", severity="(\w+)"')

    def __init__(self, program: Path, folder: Path) -> None:
        self._program = program
        self._file = folder / "runs.yml"

    def first_times(
        self, trainers: Sequence[Trainer], interval: float, until: float
    ) -> dict[str, dict[tuple[str, str], float]]:
        """Experiment -> (alert, severity) -> when it fired for the first time."""
        series = {name: values for one in trainers for name, values in one.scrapes(interval, until).items()}
        step = f"{interval:.0f}s"
        times = [f"{interval * number:.0f}s" for number in range(int(until / interval) + 1)]
        test = {
            "interval": step,
            "input_series": [{"series": name, "values": " ".join(values)} for name, values in series.items()],
            "promql_expr_test": [{"expr": self.QUERY, "eval_time": time, "exp_samples": []} for time in times],
        }
        document = {
            "rule_files": [*map(str, RULE_FILES)],
            "evaluation_interval": step,
            "group_eval_order": WORST_ORDER,
            "tests": [test],
        }
        self._file.write_text(json.dumps(document))  # JSON is YAML
        result = subprocess.run(
            [self._program, "test", "rules", self._file], capture_output=True, text=True, check=False
        )
        got = self.GOT.findall(result.stdout + result.stderr)
        assert got or result.returncode == 0, result.stdout + result.stderr
        first: dict[str, dict[tuple[str, str], float]] = {trainer.experiment: {} for trainer in trainers}
        for time, alerts in got:
            for alert, experiment, severity in self.ALERT.findall(alerts):
                first[experiment].setdefault((alert, severity), self._seconds(time))
        return first

    @staticmethod
    def _seconds(duration: str) -> float:
        units = {"d": 86400, "h": 3600, "m": 60, "s": 1}
        return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([dhms])", duration))


@pytest.fixture
def promtool(newest_prometheus_bin: Path, tmp_path: Path) -> Promtool:
    return Promtool(newest_prometheus_bin / "promtool", tmp_path)


def healthy(seconds: float, linger: float) -> list[Trainer]:
    """Sound runs; `resumed` is killed, goes on from an earlier checkpoint, and says goodbye."""
    everything = range(1, STEPS + 1)
    runs = [
        Trainer("grpo", seconds).train(everything, grpo),
        Trainer("ppo", seconds).train(everything, ppo),
        Trainer("sft", seconds).train(everything, sft, timed=False),
    ]
    killed = Trainer("resumed", seconds).train(range(1, 68), grpo)
    killed.kill()
    runs.append(Trainer("resumed", seconds, killed).train(range(61, STEPS + 1), grpo))
    for run in runs:
        run.end("finished", linger)
    return runs


def scored_alike(values: Values, _: int) -> Values:
    constant = {"critic/score/mean": 0.0, "critic/rewards/mean": 0.0}
    return {**values, **constant, "critic/advantages/max": 0.0, "critic/advantages/min": 0.0}


def without_entropy(values: Values, _: int) -> Values:
    return {key: value for key, value in values.items() if key != "actor/entropy"}


@dataclass
class Fault:
    """`change` gets a sound step's values and the number of steps since the fault, which anybody can see after `visible`."""

    change: Callable[[Values, int], Values]
    visible: int = 0
    sound: Step = grpo
    timed: bool = True

    def step(self, noise: random.Random, step: int) -> Values:
        values = self.sound(noise, step)
        return self.change(values, step - FAULT) if step >= FAULT else values


FAULTS = {
    "VerlKLCollapse": Fault(lambda values, n: {**values, "actor/kl_loss": 0.0002}),
    "VerlKLExplosion": Fault(lambda values, n: {**values, "actor/reward_kl_penalty": 0.02 * 1.3**n}, 16, ppo),
    "VerlUpdateKLHigh": Fault(lambda values, n: {**values, "actor/ppo_kl": 0.08}),
    "VerlEntropyCollapse": Fault(lambda values, n: {**values, "actor/entropy": 0.4 * 0.7**n}, 8),
    "VerlEntropyExplosion": Fault(lambda values, n: {**values, "actor/entropy": 0.3 * 1.2**n}, 12),
    "VerlRewardCollapse": Fault(lambda values, n: {**values, "critic/rewards/mean": 0.05}),
    "VerlNoLearningSignal": Fault(scored_alike),
    "VerlGradNormSpike": Fault(lambda values, n: {**values, "train/grad_norm": 60.0 if n == 0 else 1.0}, 0, sft, False),
    "VerlClipFractionHigh": Fault(lambda values, n: {**values, "actor/pg_clipfrac": 0.35}),
    "VerlResponseLengthSaturated": Fault(lambda values, n: {**values, "response_length/mean": 8000}),
    "VerlRolloutMismatch": Fault(lambda values, n: {**values, "training/rollout_probs_diff_mean": 0.04}),
    "VerlImportanceWeightsDegenerate": Fault(
        lambda values, n: {**values, "rollout_corr/rollout_is_eff_sample_size": 0.05}, 0, ppo
    ),
    "VerlStaleRollouts": Fault(lambda values, n: {**values, "training/off_policy/trajectory_staleness_worst/max": 12}),
    "VerlValueFunctionUseless": Fault(lambda values, n: {**values, "critic/vf_explained_var": -0.4}, 0, ppo),
    "VerlAbortedRollouts": Fault(lambda values, n: {**values, "response/aborted_ratio": 0.4}),
    "VerlThroughputRegression": Fault(
        lambda values, n: {**values, "perf/throughput": 900.0, "slowdown of update_actor": 2.5}
    ),
    "VerlRolloutLatencyHigh": Fault(lambda values, n: {**values, "perf/throughput": 900.0, "slowdown of gen": 2.5}),
    "VerlNonFiniteValue": Fault(lambda values, n: {**values, "train/loss": math.nan}, 0, sft, False),
    "VerlSignalMissing": Fault(without_entropy, WINDOW),
}

SPEEDS = pytest.mark.parametrize(
    ("seconds", "interval"), [(2.0, 15.0), (2400.0, 240.0)], ids=["2-second steps", "40-minute steps"]
)


@SPEEDS
def test_sound_runs_alert_nobody(promtool: Promtool, seconds: float, interval: float) -> None:
    runs = healthy(seconds, interval)
    first = promtool.first_times(runs, interval, max(run.now for run in runs) + 10 * interval)
    assert {run: alerts for run, alerts in first.items() if any(severity != "info" for _, severity in alerts)} == {}


@pytest.mark.parametrize(
    ("seconds", "interval", "names"),
    [
        (2.0, 15.0, sorted(FAULTS)),
        (
            2400.0,
            240.0,
            ["VerlKLExplosion", "VerlNonFiniteValue", "VerlRolloutLatencyHigh", "VerlThroughputRegression"],
        ),
    ],
    ids=["2-second steps", "40-minute steps"],
)
def test_a_fault_is_found_by_its_own_alert_within_a_window_of_steps(
    promtool: Promtool, seconds: float, interval: float, names: list[str]
) -> None:
    slack = 4 * interval  # a scrape, and the evaluations of a limit and of what it is made of
    deadlines: dict[str, float] = {}
    runs = {}
    for name in names:
        fault = FAULTS[name]
        last = FAULT + fault.visible + WINDOW
        runs[name] = Trainer(name, seconds).train(range(1, last + 1), fault.step, fault.timed)
        deadlines[name] = runs[name].now + slack
        runs[name].train(range(last + 1, last + 2 + int(slack / seconds)), fault.step, fault.timed)
    first = promtool.first_times([*runs.values()], interval, max(deadlines.values()))
    for name, run in runs.items():
        times = {alert: time for (alert, _), time in first[name].items() if time <= deadlines[name]}
        assert name in times, f"{name}: {times}"
        assert min(times.values()) >= run.logged[FAULT], f"{name}: {times}"
        assert len(times) <= 3, f"{name}: {times}"


@SPEEDS
def test_a_run_that_stops_is_found(promtool: Promtool, seconds: float, interval: float) -> None:
    names = ("hung", "killed", "failed", "died in silence")
    runs = {name: Trainer(name.replace(" ", "_"), seconds).train(range(1, FAULT), grpo) for name in names}
    runs["hung"].hang("gen")
    runs["killed"].kill()
    runs["failed"].end("failed", interval)
    runs["died in silence"].end("finished", interval)
    stopped = runs["hung"].now
    limit = max(600, 3 * PHASES["gen"] * seconds)
    first = promtool.first_times([*runs.values()], interval, stopped + limit + 6 * interval)
    delays = {run: {alert: time - stopped for alert, time in times.items()} for run, times in first.items()}
    assert set(delays["hung"]) == {("VerlRunStalled", "page")}
    assert limit <= delays["hung"]["VerlRunStalled", "page"] <= limit + 4 * interval
    assert set(delays["killed"]) == {("VerlRunVanished", "page")}
    assert delays["killed"]["VerlRunVanished", "page"] <= 60 + 3 * interval
    assert set(delays["failed"]) == {("VerlRunFailed", "page")}
    assert set(delays["died_in_silence"]) == {("VerlRunFailed", "warn")}


def test_the_first_nan_pages_within_a_minute(promtool: Promtool) -> None:
    fault = Fault(lambda values, n: {**values, "actor/grad_norm": math.nan if n == 0 else 0.3})
    run = Trainer("nan", 20.0).train(range(1, FAULT + 30), fault.step)
    first = promtool.first_times([run], 15, run.now)["nan"]
    group_wait = 10
    assert first["VerlNonFiniteValue", "page"] - run.logged[FAULT] + group_wait <= 60
