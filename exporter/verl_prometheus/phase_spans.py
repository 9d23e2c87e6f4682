"""When the phases of a logged step began and ended, worked out from the durations that verl logged with it."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple

PREFIX = "timing_s/"
STEP = "step"


class PhaseSpan(NamedTuple):
    """`start` and `end` in the unit and from the origin of the step's own time."""

    phase: str
    start: float
    end: float


def phase_durations(values: Mapping[str, float]) -> dict[str, float]:
    """Phase -> seconds, in the order in which they are logged; verl's timers have no "/" in their names."""
    durations = {}
    for key, value in values.items():
        phase = key.removeprefix(PREFIX)
        if key.startswith(PREFIX) and "/" not in phase and isfinite(value) and value > 0:
            durations[phase] = value
    return durations


def step_seconds(values: Mapping[str, float]) -> float | None:
    """How long the step took from the log of the one before to its own; None if it logs no durations."""
    durations = phase_durations(values)
    inside, after = _nested(durations)
    step = durations.get(STEP, values.get("perf/time_per_step", sum(inside.values())))
    total = step + sum(after.values())
    return total if isfinite(total) and total > 0 else None


def phase_spans(values: Mapping[str, float], logged: float, earliest: float) -> list[PhaseSpan]:
    """The phases of a step that was logged at `logged`, outer before inner, none before `earliest`.

    verl's timers log in the order in which they end: what comes before "step" lies within it, what comes after follows
    it. Within, one follows the other.
    """
    durations = phase_durations(values)
    inside, after = _nested(durations)
    step = durations.get(STEP, sum(inside.values()))
    begin = max(logged - sum(after.values()) - step, earliest)
    spans = [PhaseSpan(STEP, begin, min(begin + step, logged))] if step else []
    for phases, start, limit in ((inside, begin, begin + step), (after, begin + step, logged)):
        for phase, seconds in phases.items():
            end = min(start + seconds, limit, logged)
            if end > start:
                spans.append(PhaseSpan(phase, start, end))
            start = end
    return spans


def _nested(durations: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """The phases within the step and those after it; all of them within if there is no step."""
    names = list(durations)
    cut = names.index(STEP) if STEP in durations else len(names)
    inside = {name: durations[name] for name in names[:cut]}
    return inside, {name: durations[name] for name in names[cut + 1 :]}
