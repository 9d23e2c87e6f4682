"""Reads what verl's `file` logger writes: steps and values, but no times."""

from __future__ import annotations

import datetime
import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verl_prometheus.backfill.source import Hints, Note, Progress, attempt, call
from verl_prometheus.journal import Entry
from verl_prometheus.run import STEP_TIME_KEYS

UNKNOWN_DURATION = 1.0  # seconds, where no step tells its own


def read(path: Path, hints: Hints, note: Note, progress: Progress) -> Iterator[Entry]:
    """The run, with times made from the steps' own durations.

    The last step ends when the file was last changed, unless `hints.start` says when the first one began. verl names the
    file <project>/<experiment>.jsonl, where no hint says otherwise.
    """
    durations = [_duration(data) for _, _, data in _lines(path)]
    known = [seconds for seconds in durations if seconds is not None]
    typical = statistics.median(known) if known else UNKNOWN_DURATION
    seconds = list(_step_seconds(path, durations, typical))
    total = sum(seconds)
    now = path.stat().st_mtime - total if hints.start is None else hints.start
    experiment = hints.experiment or path.stem
    note(
        f"{path}: verl's `file` logger writes no times. They are made from the steps' durations, from {_iso(now)} to "
        f"{_iso(now + total)}"
        + ("" if hints.start is not None else " (when the file was last changed; --start says it better)")
        + (f"; steps that tell none count as {typical:g} s" if len(known) < len(durations) else "")
    )
    yield attempt(path.absolute().parent.name, experiment, now, hints, {})
    for (end, step, data), duration in zip(_lines(path), seconds, strict=True):
        now += duration
        yield call(now, step, data)
        progress(end)


def _step_seconds(path: Path, durations: list[float | None], typical: float) -> Iterator[float]:
    """How long each line took: nothing, if it belongs to the step of the line before, or comes before training."""
    before: int | None = None
    for (_, step, _), duration in zip(_lines(path), durations, strict=True):
        yield 0.0 if step in (before, 0) else typical if duration is None else duration
        before = step


def _lines(path: Path) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """(offset of the line's end, step, values); the last line may be torn."""
    with path.open("rb") as stream:
        offset = 0
        for number, line in enumerate(stream, 1):
            offset += len(line)
            if not line.endswith(b"\n"):
                return
            try:
                content = json.loads(line)
                step, data = int(content["step"]), content["data"]
                # this logger writes NaN and infinity as null
                yield offset, step, {key: math.nan if value is None else value for key, value in data.items()}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{path}, line {number}: not a line of verl's `file` logger: {error!r}") from error


def _duration(data: dict[str, Any]) -> float | None:
    for key in STEP_TIME_KEYS:
        value = data.get(key)
        if isinstance(value, (int, float)) and 0 <= value < math.inf:
            return float(value)
    return None


def _iso(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(timespec="seconds")
