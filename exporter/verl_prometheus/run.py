"""The state of a run: calls of `log` in, one immutable snapshot of a step out."""

from __future__ import annotations

import struct
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple

from verl_prometheus.catalog import Catalog, printable
from verl_prometheus.distribution import Distribution
from verl_prometheus.samples import BUCKETS, NONE, Samples
from verl_prometheus.signals import Signals, SignalsView
from verl_prometheus.values import NotANumber, number

PENDING = 500_000  # numbers that may wait for a reader, 8 bytes each
RECORD = 32  # numbers that a record takes the place of, itself
KEPT_PLANS = 64
STEP_TIME_KEYS = ("perf/time_per_step", "timing_s/step")


@dataclass(frozen=True)
class RunIdentity:
    """What does not change while a process tracks a run. `config` holds the hyperparameters that people compare."""

    project: str
    experiment: str
    run_id: str
    started: float  # Unix seconds
    step_target: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict)  # the other labels of verl_run_info
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StepSnapshot:
    """Everything a scrape needs to know of a run. Keys are verl's (printable), values as logged, times Unix seconds."""

    state: str = "starting"  # then running, then finished or failed
    step: int | None = None
    time: float | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    epoch: float | None = None
    validation: Mapping[str, float] = field(default_factory=dict)
    validation_step: int | None = None
    steps_total: int = 0
    tokens_total: float = 0.0
    step_seconds: float | None = None
    step_duration: Distribution = field(default_factory=Distribution)
    phase_duration: Mapping[str, Distribution] = field(default_factory=dict)
    rollout_latency: Distribution = field(default_factory=Distribution)
    samples: Samples = field(default_factory=dict)
    checkpoint_step: int | None = None
    checkpoint_time: float | None = None
    nonfinite: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    signals: SignalsView = field(default_factory=lambda: Signals().view())


class Call(NamedTuple):
    """One call of `log`: the numbers in it, copied, and the samples behind them. Time is in Unix seconds."""

    time: float
    step: int | None
    keys: tuple[Any, ...]
    numbers: bytes  # doubles, as struct packs them
    dropped: tuple[str, ...]  # why each other value is none
    samples: Samples = NONE


class _Plan(NamedTuple):
    """What the keys of a call mean, worked out once for each set of keys; indices into the call's numbers."""

    names: tuple[str, ...]
    retained: tuple[int, ...]
    phases: tuple[tuple[int, str], ...]
    step_time: int | None
    tokens: int | None


class RunState:
    """Merges what a trainer logs into snapshots.

    `log` is the trainer's thread and only copies numbers; whoever reads `snapshot` does the rest, under a lock that `log`
    does not wait for. Only a trainer that logs faster than anybody can read, for thousands of calls, helps out.

    A step may come in several calls (SFT, fully async): its values are their union, and are gone with the first call of
    another step. Steps may repeat and go backwards (resume). Validation keeps its last values, with a step of their own.
    """

    def __init__(
        self,
        catalog: Catalog,
        signals: Signals | None = None,
        max_series: int = 20_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._catalog = catalog
        self._signals = signals or Signals()
        self._max_series = max_series
        self._clock = clock
        self._pending: deque[Call] = deque()
        self._folding = threading.Lock()
        self._keys: tuple[Any, ...] = ()
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        self._snapshot = StepSnapshot(signals=self._signals.view())
        self._folded = False  # anything that the snapshot does not show yet
        self._exit_code: int | None = None

        self._step: int | None = None
        self._time: float | None = None
        self._values: dict[str, float] = {}
        self._epoch: float | None = None
        self._validation: dict[str, float] = {}
        self._validation_step: int | None = None
        self._train_step: int | None = None  # last step with anything but validation
        self._train_time = 0.0  # when its first call came
        self._timed_step: int | None = None  # last step whose duration is known
        self._trainer_times_steps = False
        self._steps_total = 0
        self._tokens_total = 0.0
        self._step_seconds: float | None = None
        self._step_duration = Distribution()
        self._phase_duration: dict[str, Distribution] = {}
        self._rollout_latency = Distribution()
        self._samples: dict[str, Distribution] = {}
        self._checkpoint: tuple[int, float] | None = None
        self._nonfinite: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()

    def log(self, data: Mapping[Any, Any], step: Any, samples: Samples = NONE) -> Call:
        """Take one call of verl's `Tracking.log`; raises only what a `data` that is no mapping raises."""
        keys = tuple(data)
        if keys == self._keys:
            keys = self._keys  # one copy for all the steps that wait
        self._keys = keys
        dropped: tuple[str, ...] = ()
        try:
            numbers = struct.pack(f"{len(keys)}d", *data.values())
        except Exception:
            keys, numbers, dropped = sift(data)
        if type(step) is not int:
            try:
                step = int(number(step))
            except (NotANumber, ValueError, OverflowError):
                step, dropped = None, (*dropped, "step")
        call = Call(self._clock(), step, keys, numbers, dropped, samples)
        self.replay(call)
        return call

    def replay(self, call: Call) -> None:
        """Take a call that was made earlier, maybe in another process."""
        self._pending.append(call)
        waiting = len(self._pending) * (len(call.keys) + RECORD)
        if waiting > PENDING and self._folding.acquire(blocking=waiting > 2 * PENDING):
            try:
                self._fold_pending(2)
            finally:
                self._folding.release()

    def finish(self, exit_code: int) -> None:
        self._exit_code = exit_code

    @property
    def snapshot(self) -> StepSnapshot:
        """The run as of the last call of `log`."""
        with self._folding:
            self._fold_pending()
            if self._folded or self._state() != self._snapshot.state:
                self._snapshot, self._folded = self._publish(), False
            return self._snapshot

    def history(self) -> dict[str, Any]:
        """The signals' history as of the last call of `log`; see `Signals.state`."""
        with self._folding:
            self._fold_pending()
            return self._signals.state()

    def _fold_pending(self, most: int = sys.maxsize) -> None:
        for _ in range(min(len(self._pending), most)):  # what comes meanwhile is left for later
            self._fold(self._pending.popleft())

    def _state(self) -> str:
        if self._exit_code is not None:
            return "failed" if self._exit_code else "finished"
        return "starting" if self._step is None and not self._pending else "running"

    def _publish(self) -> StepSnapshot:
        checkpoint_step, checkpoint_time = self._checkpoint or (None, None)
        return StepSnapshot(
            state=self._state(),
            step=self._step,
            time=self._time,
            values=dict(self._values),
            epoch=self._epoch,
            validation=dict(self._validation),
            validation_step=self._validation_step,
            steps_total=self._steps_total,
            tokens_total=self._tokens_total,
            step_seconds=self._step_seconds,
            step_duration=self._step_duration.copy(),
            phase_duration={phase: one.copy() for phase, one in self._phase_duration.items()},
            rollout_latency=self._rollout_latency.copy(),
            samples={quantity: one.copy() for quantity, one in self._samples.items()},
            checkpoint_step=checkpoint_step,
            checkpoint_time=checkpoint_time,
            nonfinite=dict(self._nonfinite),
            dropped=dict(self._dropped),
            signals=self._signals.view(),
        )

    def _fold(self, call: Call) -> None:
        self._folded = True
        plan = self._plan(call.keys)
        numbers = struct.unpack(f"{len(call.keys)}d", call.numbers)
        step = call.step if call.step is not None else self._step or 0
        self._time = call.time
        for quantity, distribution in call.samples.items():
            self._samples.setdefault(quantity, Distribution(BUCKETS[quantity])).add(distribution)
        if call.dropped:
            self._dropped.update(call.dropped)
        if not all(map(isfinite, numbers)):
            self._nonfinite.update(name for name, value in zip(plan.names, numbers, strict=True) if not isfinite(value))

        if plan.retained:
            if step != self._validation_step:
                self._validation = {}
                self._validation_step = step
            self._validation.update((plan.names[index], numbers[index]) for index in plan.retained)
            if len(plan.retained) == len(numbers):  # validation alone says nothing of the training step
                self._step = step if self._step is None else self._step
                return
        self._fold_training(plan, numbers, step, call.time)

    def _fold_training(self, plan: _Plan, numbers: tuple[float, ...], step: int, now: float) -> None:
        seconds = _amount(numbers, plan.step_time)
        if seconds is not None:
            self._trainer_times_steps = True
        elif not self._trainer_times_steps and self._train_step not in (None, step):
            seconds = max(now - self._train_time, 0.0)
        if seconds is not None and step != self._timed_step:
            self._timed_step, self._step_seconds = step, seconds
            self._step_duration.observe(seconds)
        if step != self._train_step:
            self._steps_total += step > 0  # verl logs the state before training at step 0
            self._train_step, self._train_time = step, now
        self._tokens_total += _amount(numbers, plan.tokens) or 0.0

        durations = {}
        for index, phase in plan.phases:
            if (seconds := _amount(numbers, index)) is not None:
                durations[phase] = seconds
                if phase not in self._phase_duration:
                    self._phase_duration[phase] = Distribution()
                self._phase_duration[phase].observe(seconds)
                if phase == "gen":
                    self._rollout_latency.observe(seconds)
                elif phase == "save_checkpoint":
                    self._checkpoint = step, now

        if step != self._step:
            self._step, self._values = step, {}
        self._values.update(zip(plan.names, numbers, strict=True))
        for index in plan.retained:
            del self._values[plan.names[index]]
        self._epoch = self._values.get("training/epoch", self._epoch)
        if (excess := len(self._values) - self._max_series) > 0:
            self._values = dict(list(self._values.items())[: self._max_series])
            self._dropped["max_series"] += excess
        self._signals.observe(step, self._values, self._step_seconds if step == self._timed_step else None, durations)

    def _plan(self, keys: tuple[Any, ...]) -> _Plan:
        plan = self._plans.get(keys)
        if plan is None:
            if len(self._plans) >= KEPT_PLANS:
                self._plans.clear()
            plan = self._plans[keys] = self._make_plan(keys)
        return plan

    def _make_plan(self, keys: tuple[Any, ...]) -> _Plan:
        names = tuple(map(key_name, keys))
        series = [self._catalog.series(name) for name in names]
        phases = [one.label("phase") if one.family == "verl_timing_seconds" else None for one in series]
        step_time = next((names.index(key) for key in STEP_TIME_KEYS if key in names), None)
        tokens = next((index for index, one in enumerate(series) if one.family == "verl_step_tokens"), None)
        return _Plan(
            names=names,
            retained=tuple(index for index, one in enumerate(series) if one.retained),
            phases=tuple((index, phase) for index, phase in enumerate(phases) if phase),
            step_time=step_time,
            tokens=tokens,
        )


def sift(data: Mapping[Any, Any]) -> tuple[tuple[Any, ...], bytes, tuple[str, ...]]:
    """The keys that have numbers, the numbers, and why the others have none."""
    kept: dict[Any, float] = {}
    dropped = []
    for key, value in data.items():
        try:
            kept[key] = number(value)
        except NotANumber as error:
            dropped.append(error.reason)
    return tuple(kept), struct.pack(f"{len(kept)}d", *kept.values()), tuple(dropped)


def _amount(numbers: tuple[float, ...], index: int | None) -> float | None:
    """The number at `index` if it can measure an amount: there, finite and not negative."""
    if index is None or not isfinite(value := numbers[index]) or value < 0:
        return None
    return value


def key_name(key: object) -> str:
    """A logged key as valid text; one that is no plain string, as text that no plain key is likely to have."""
    try:
        return printable(str(key) if isinstance(key, str) else f"{type(key).__name__}:{key!r}")
    except Exception:
        return printable(f"{type(key).__name__}:?")
