"""What happened in a logged run, in order: phases begin and end, calls of `log`, attempts begin, end or die."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from verl_prometheus.attempt import Attempt
from verl_prometheus.journal import End, Entry
from verl_prometheus.run_log import LoggedRun


class PhaseBegins(NamedTuple):
    phase: str


class PhaseEnds(NamedTuple):
    phase: str


class Dies(NamedTuple):
    """The process is killed."""


Event = Entry | PhaseBegins | PhaseEnds | Dies


def timeline(run: LoggedRun) -> list[tuple[float, Event]]:
    """(when, what), in seconds of the run's log."""
    return [(when, what) for when, _, what in sorted(_events(run), key=lambda event: event[:2])]


def _events(run: LoggedRun) -> Iterator[tuple[float, int, Event]]:
    """With the rank among what happens at once: phases end before something is logged, others begin after it."""
    for phase, start, end in run.spans:
        yield start, 2, PhaseBegins(phase)
        yield end, 0, PhaseEnds(phase)
    for entry in run.entries:
        yield _time(entry), 1, entry
    for entry, following in pairwise(run.entries):
        if isinstance(following, Attempt) and not isinstance(entry, End):
            yield _time(entry), 3, Dies()
    if run.ending.how == "killed":
        yield run.end, 3, Dies()
    elif run.ending.how == "hung":
        yield _time(run.entries[-1]), 2, PhaseBegins("step")
        if run.ending.phase:
            yield run.end, 3, PhaseBegins(run.ending.phase)


def _time(entry: Entry) -> float:
    return entry.identity.started if isinstance(entry, Attempt) else entry.time
