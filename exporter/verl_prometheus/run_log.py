"""Runs that were logged: lines of verl's `file` logger or of the journal, with what is known of how they ended.

Lines of JSON, the whole file gzipped or not:

* `{"step": n, "data": {verl key: number}, "time": seconds}`: a call of `log`, as verl's `file` logger writes it, for
  which null is NaN. `time` may be missing; then a step takes as long as the durations in its data say.
* `{"config": {...}}`, in front: verl's config, as far as it is known.
* `{"end": "finished", "time": seconds}`, at the end; or failed, killed, hung; with `"phase"`, the active one, if it hung.
* lines of the journal (`verl_prometheus.journal`), several attempts included.
"""

from __future__ import annotations

import gzip
import json
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from verl_prometheus import __version__, catalog, hyperparameters, journal
from verl_prometheus.attempt import Attempt
from verl_prometheus.journal import End, Entry
from verl_prometheus.phase_spans import PhaseSpan, phase_spans, step_seconds
from verl_prometheus.run import Call, RunIdentity, RunState
from verl_prometheus.settings import Settings
from verl_prometheus.signals import Lengths

ENDS = ("finished", "failed", "killed", "hung")


@dataclass(frozen=True)
class Ending:
    """How a run ended; `phase`: the one in which it hung, if that is known. `time` None: with its last step."""

    how: str = "finished"
    phase: str = ""
    time: float | None = None


@dataclass
class LoggedRun:
    """A run, its entries and phases in order of time (seconds, from any origin)."""

    experiment: str
    config: Mapping[str, Any] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    spans: list[PhaseSpan] = field(default_factory=list)
    ending: Ending = field(default_factory=Ending)

    @property
    def attempts(self) -> list[Attempt]:
        return [entry for entry in self.entries if isinstance(entry, Attempt)]

    @property
    def begin(self) -> float:
        return self.attempts[0].identity.started

    @property
    def end(self) -> float:
        last = self.entries[-1]
        known = last.identity.started if isinstance(last, Attempt) else last.time
        return max(known, self.ending.time or known)

    def step_at(self, time: float) -> int | None:
        """The step that was logged last by then."""
        steps = [entry.step for entry in self.entries if isinstance(entry, Call) and entry.time <= time]
        return steps[-1] if steps else None

    @property
    def step_durations(self) -> list[float]:
        """Seconds from each call of a step to the next step's."""
        calls = [entry for entry in self.entries if isinstance(entry, Call)]
        return [later.time - call.time for call, later in pairwise(calls) if later.step != call.step]


def read(path: Path, config: Mapping[str, Any], ending: Ending | None, seconds_per_step: float) -> LoggedRun:
    """The run in a file.

    Args:
        config: verl's, where the file has none.
        ending: in place of what the file says; None: as it says, or finished.
        seconds_per_step: where neither times nor durations are logged (SFT).

    Raises OSError if there is no file, ValueError naming file and line if it has no run.
    """
    reader = _Reader(path, config, seconds_per_step)
    for number, line in enumerate(_lines(path), 1):
        try:
            reader.take(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"{path}, line {number}: {type(error).__name__}: {error}") from error
    return reader.run(ending)


def _lines(path: Path) -> list[bytes]:
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, zlib.error, OSError) as error:
            raise ValueError(f"{path}: not a whole gzip file: {error}") from error
    return [line for line in content.splitlines() if line.strip()]


class _Reader:
    def __init__(self, path: Path, config: Mapping[str, Any], seconds_per_step: float) -> None:
        self._path = path
        self._run = LoggedRun(path.name.removesuffix(".gz").removesuffix(".jsonl"), config)
        self._default = seconds_per_step
        self._log = RunState(catalog.load(), clock=lambda: self._now)  # makes calls of what is logged
        self._now: float = 0.0
        self._step: int | None = None
        self._ending: Ending | None = None

    def take(self, line: Mapping[str, Any]) -> None:
        if "data" in line:
            self._call(line)
        elif "begin" in line or "exit_code" in line:
            entry = journal.decode(json.dumps(line).encode())
            self._add(entry, line["time"])
            self._ending = Ending("failed" if entry.exit_code else "finished") if isinstance(entry, End) else None
        elif "config" in line:
            self._run.config = line["config"]
        elif "end" in line:
            if line["end"] not in ENDS:
                raise ValueError(f"the end {line['end']!r} is none of {', '.join(ENDS)}")
            self._ending = Ending(line["end"], line.get("phase", ""), line.get("time"))
        else:
            raise ValueError('no "step" and "data", as verl\'s file logger writes them')

    def run(self, ending: Ending | None) -> LoggedRun:
        run = self._run
        if not any(isinstance(entry, Call) for entry in run.entries):
            raise ValueError(f"{self._path}: no step is logged in it")
        journaled = isinstance(run.entries[0], Attempt) and run.entries[0].identity.run_id
        run.ending = ending or self._ending or Ending("killed" if journaled else "finished")
        if run.ending.how in ("finished", "failed") and not isinstance(run.entries[-1], End):
            run.entries.append(End(run.end, int(run.ending.how == "failed")))
        return run

    def _call(self, line: Mapping[str, Any]) -> None:
        data = {key: _number(value) for key, value in line["data"].items()}
        numbers = {key: value for key, value in data.items() if isinstance(value, float)}
        seconds = step_seconds(numbers)
        if seconds is None:
            seconds = self._default if line["step"] not in (self._step, 0) else 0.0
        before, self._step = self._now, line["step"]
        self._now = max(self._now, float(line.get("time", self._now + seconds)))
        if not self._run.entries:
            before = self._now - seconds
            self._run.entries.append(self._attempt(before))
        self._run.spans += phase_spans(numbers, self._now, before)
        self._run.entries.append(self._log.log(data, line["step"], dict(journal.samples(line.get("samples", {})))))

    def _add(self, entry: Entry, time: float) -> None:
        self._now = max(self._now, float(time))
        self._run.entries.append(entry)

    def _attempt(self, started: float) -> Attempt:
        """What the exporter makes of verl's config and the settings in it."""
        config = self._run.config
        settings = Settings.load(config, {})
        identity = RunIdentity(
            project=str(hyperparameters.look_up(config, "trainer.project_name") or "replay"),
            experiment=self._run.experiment,
            run_id="",
            started=started,
            step_target=hyperparameters.step_target(config),
            facts={"exporter_version": __version__, "algorithm": hyperparameters.algorithm(config)},
            config=hyperparameters.compared(config),
        )
        return Attempt(
            identity=identity,
            labels=settings.labels,
            thresholds=settings.thresholds,
            lengths=Lengths(settings.window, settings.baseline_steps, settings.warmup_steps),
            response_limit=hyperparameters.response_limit(config),
            max_series=settings.max_series,
        )


def _number(value: Any) -> Any:
    """null is NaN; the journal's words for what JSON has no numbers for."""
    if value is None:
        return math.nan
    if isinstance(value, str) and value.lstrip("-") in ("nan", "inf"):
        return float(value)
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def numbers(call: Call) -> dict[str, float]:
    """The data of a call, without what is no number."""
    return dict(zip(call.keys, struct.unpack(f"{len(call.keys)}d", call.numbers), strict=True))


def moved(entry: Entry, seconds: float) -> Entry:
    """The same at a later time."""
    if isinstance(entry, Attempt):
        return replace(entry, identity=replace(entry.identity, started=entry.identity.started + seconds))
    if isinstance(entry, Call):
        return entry._replace(time=entry.time + seconds)
    return replace(entry, time=entry.time + seconds)
