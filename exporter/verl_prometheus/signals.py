"""Health signals of a run and their statistics, counted in steps.

A signal is one quantity under one name, whichever verl key carries it (`signals.yaml`). Its statistics are a window
over the last N steps, a baseline frozen after warm-up, and the highest and lowest mean of a full window.

How steps arrive:

* A step may come in several calls, each with everything known of it so far (SFT, fully async). A call with the step of
  the call before amends that step: what it brings replaces, what it lacks stays.
* Any other step takes a new place in every window, in order of arrival: after a resume steps repeat or go back.
* A step without a finite value leaves its place empty: it counts towards the N steps and towards nothing else.
* Sources only improve: once a preferred key of a signal has been logged, lesser ones are ignored. A signal whose source
  changes, in a run or across a resume, starts anew, since two estimators are not comparable.
"""

from __future__ import annotations

import copy
import functools
import importlib.resources
import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from verl_prometheus.moments import LARGEST, NOTHING, Moments, RollingMoments

BACKLOG = 1024  # steps that may wait for a reader before each new one folds the oldest
STATE_VERSION = 1


@dataclass(frozen=True)
class Source:
    """Where a signal's value comes from: `key`, less `minus`, divided by `over`."""

    key: str
    minus: str | None = None
    over: str | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(name for name in (self.key, self.minus, self.over) if name is not None)

    def value(self, inputs: Mapping[str, float | None]) -> float | None:
        """The signal's value; None unless every input is there."""
        value = inputs[self.key]
        if value is None:
            return None
        if self.minus is not None:
            subtrahend = inputs[self.minus]
            return None if subtrahend is None else value - subtrahend
        if self.over is not None:
            divisor = inputs[self.over]
            return value / divisor if divisor else None
        return value


@functools.cache
def definitions() -> Mapping[str, tuple[Source, ...]]:
    """Every signal and its sources, preferred first, as `signals.yaml` lists them."""
    table = yaml.safe_load(importlib.resources.files(__package__).joinpath("signals.yaml").read_text("utf-8"))
    return {
        signal: tuple(Source(**entry) if isinstance(entry, dict) else Source(entry) for entry in sources)
        for signal, sources in table.items()
    }


@dataclass(frozen=True)
class Lengths:
    """How many steps make a window and a baseline, and how many come before it. Raises ValueError if too few."""

    window: int = 20
    baseline: int = 20
    warmup: int = 5

    def __post_init__(self) -> None:
        if self.window < 2 or self.baseline < 2 or self.warmup < 0:
            raise ValueError(f"{self}: window and baseline need at least 2 steps, warmup at least 0")


@dataclass(frozen=True)
class SignalView:
    """One signal at one step. `last` may be NaN or infinite; None stands for what there is not (yet)."""

    last: float | None
    window: Moments | None
    baseline: Moments | None
    peak: float | None
    trough: float | None
    steps: int


@dataclass(frozen=True)
class SignalsView:
    """All signals seen so far, as of `step`; `phase_typical`: median duration of each phase's last window, seconds."""

    step: int | None
    window_steps: int
    signals: Mapping[str, SignalView]
    phase_typical: Mapping[str, float]


class _Signal:
    """Statistics of one signal. `last`, the open step's value, joins the window (one place short) when it closes."""

    def __init__(self, source: Source, lengths: Lengths) -> None:
        self.source = source
        self.rank = math.inf  # of the source among the signal's sources, once this process has seen it
        self.last: float | None = None
        self.steps = 0
        self.peak: float | None = None
        self.trough: float | None = None
        self._lengths = lengths
        self._window = RollingMoments(lengths.window - 1)
        self._baseline = NOTHING

    def close_step(self) -> None:
        value = self.last if self.last is not None and abs(self.last) < LARGEST else None
        if value is not None:
            self.steps += 1
            if self._baseline.number < self._lengths.baseline and self.steps > self._lengths.warmup:
                self._baseline = self._baseline.merge(Moments.of(value))
            if self.steps >= self._lengths.window:
                self.peak, self.trough = self._extremes(self._window.mean_with(value))
        self._window.push(value)
        self.last = None

    def view(self) -> SignalView:
        moments = Moments.of(self.last)
        window = self._window.moments().merge(moments)
        steps = self.steps + moments.number
        peak, trough = self.peak, self.trough
        if moments.number and steps >= self._lengths.window:
            peak, trough = self._extremes(window.mean)
        return SignalView(
            last=self.last,
            window=window if window.number else None,
            baseline=self._baseline if self._baseline.number >= self._lengths.baseline else None,
            peak=peak,
            trough=trough,
            steps=steps,
        )

    def _extremes(self, mean: float) -> tuple[float, float]:
        """Peak and trough once a full window with `mean` is counted."""
        if self.peak is None or self.trough is None:
            return mean, mean
        return max(self.peak, mean), min(self.trough, mean)

    def state(self) -> dict[str, Any]:
        return {
            "key": self.source.key,
            "steps": self.steps,
            "window": list(self._window.values),
            "baseline": list(self._baseline[:3]),
            "peak": self.peak,
            "trough": self.trough,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`. Raises AttributeError, KeyError, TypeError or ValueError if it is not one."""
        self.steps = int(state["steps"])
        self._window = RollingMoments(self._window.places, map(_optional_float, state["window"]))
        number, mean, deviations = state["baseline"]
        self._baseline = NOTHING._replace(number=int(number), mean=float(mean), deviations=float(deviations))
        self.peak, self.trough = _optional_float(state["peak"]), _optional_float(state["trough"])


class Signals:
    """All signals of one run. Nothing here locks: callers take turns.

    `observe` only copies its inputs; `view` and `state` fold what has gathered. `response_limit` is the configured
    maximum response length in tokens.
    """

    def __init__(self, lengths: Lengths | None = None, response_limit: float | None = None) -> None:
        self._lengths = lengths or Lengths()
        self._response_limit = response_limit
        self._inputs = tuple(
            dict.fromkeys(name for sources in definitions().values() for one in sources for name in one.inputs)
        )
        self._waiting: deque[tuple[int, list[float | None], float | None, Mapping[str, float]]] = deque()
        self._step: int | None = None
        self._signals: dict[str, _Signal] = {}
        self._phases: dict[str, deque[float]] = {}
        self._open_phases: dict[str, float] = {}
        self._view: SignalsView | None = None

    def observe(
        self, step: int, values: Mapping[str, float], step_seconds: float | None, phases: Mapping[str, float]
    ) -> None:
        """Take what is known of a step: `values` by verl key, durations of the step and of its phases in seconds."""
        self._waiting.append((step, [*map(values.get, self._inputs)], step_seconds, {**phases}))
        if len(self._waiting) > BACKLOG:
            self._fold(*self._waiting.popleft())

    def view(self) -> SignalsView:
        """Everything observed so far; the same object until more is."""
        self._fold_waiting()
        if self._view is None:
            self._view = SignalsView(
                step=self._step,
                window_steps=self._lengths.window,
                signals={name: signal.view() for name, signal in self._signals.items()},
                phase_typical={phase: statistics.median(seconds) for phase, seconds in self._durations().items()},
            )
        return self._view

    def state(self) -> dict[str, Any]:
        """The history as plain JSON, the open step counted: `restore` it in the run's next process."""
        self._fold_waiting()
        closed = copy.deepcopy(self._signals)
        for signal in closed.values():
            signal.close_step()
        return {
            "version": STATE_VERSION,
            "signals": {name: signal.state() for name, signal in closed.items()},
            "phases": self._durations(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue an earlier process's history. Raises ValueError, and changes nothing, if `state` is none.

        Momentary values are not part of it: a signal has no last value until this process observes one.
        """
        signals: dict[str, _Signal] = {}
        try:
            if state["version"] != STATE_VERSION:
                raise ValueError(f"version {state['version']!r} instead of {STATE_VERSION}")
            for name, entry in state["signals"].items():
                for source in definitions().get(name, ()):
                    if source.key == entry["key"]:
                        signals[name] = _Signal(source, self._lengths)
                        signals[name].restore(entry)
            phases = {
                str(phase): deque(map(float, seconds), self._lengths.window)
                for phase, seconds in state["phases"].items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no history of signals: {type(error).__name__}: {error}") from error
        self._signals, self._phases, self._view = signals, phases, None

    def _fold_waiting(self) -> None:
        while self._waiting:
            self._fold(*self._waiting.popleft())

    def _fold(
        self, step: int, values: list[float | None], step_seconds: float | None, phases: Mapping[str, float]
    ) -> None:
        if step != self._step:
            if self._step is not None:
                self._close_step()
            self._step = step
        self._view = None
        inputs = dict(zip(self._inputs, values, strict=True))
        inputs.update(response_limit=self._response_limit, step_seconds=step_seconds)
        for name, sources in definitions().items():
            signal = self._signals.get(name)
            for rank, source in enumerate(sources):
                if signal is not None and rank > signal.rank:
                    break
                value = source.value(inputs)
                if value is not None:
                    if signal is None or signal.source != source:
                        signal = self._signals[name] = _Signal(source, self._lengths)
                    signal.rank, signal.last = rank, value
                    break
        if step_seconds is not None:
            phases = {"step": step_seconds, **phases}
        self._open_phases.update((phase, seconds) for phase, seconds in phases.items() if 0 <= seconds < math.inf)

    def _close_step(self) -> None:
        for signal in self._signals.values():
            signal.close_step()
        for phase, seconds in self._open_phases.items():
            self._phases.setdefault(phase, deque(maxlen=self._lengths.window)).append(seconds)
        self._open_phases = {}

    def _durations(self) -> dict[str, list[float]]:
        """The last durations of every phase, the open step's included."""
        durations = {phase: list(seconds) for phase, seconds in self._phases.items()}
        for phase, seconds in self._open_phases.items():
            durations[phase] = [*durations.get(phase, ())[1 - self._lengths.window :], seconds]
        return durations


def _optional_float(value: Any) -> float | None:
    return None if value is None else float(value)
