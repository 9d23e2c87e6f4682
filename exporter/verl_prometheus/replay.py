"""Makes the series of a run from its journal, call by call, with the code that made them live: for push and backfill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from prometheus_client.metrics_core import Metric

from verl_prometheus.attempt import Attempt
from verl_prometheus.journal import End, Entry
from verl_prometheus.run import Call, RunState
from verl_prometheus.series import Moment

JOB = "verl"  # as in the scrape configuration that comes with the project


class Replay:
    """Turns entries into moments, one or more an entry.

    Times never repeat or go back, whatever the clock did: a step of the same millisecond comes one later. Where an attempt
    logs nothing for long, its moment is repeated every `fill_ms`, so that it stays visible as it was to a scraper.

    Args:
        fill_ms: milliseconds.
        after: Unix milliseconds; every moment is later.
    """

    def __init__(self, fill_ms: int, after: int = 0) -> None:
        self.time = after  # of the last moment
        self._fill = fill_ms
        self._playing: _Playing | None = None

    def feed(self, entry: Entry) -> Iterator[Moment]:
        """Take an entry; the moments that it makes."""
        if isinstance(entry, Attempt):
            if not self._goes_on(entry):
                yield from self.finish()
                self.skip(entry)
                yield from self.now(entry.identity.started)
            return
        while self.time + self._fill < entry.time * 1000 and self._is_open:
            yield from self.now((self.time + self._fill) / 1000)
        if self._is_open:
            self.skip(entry)
            self.time = max(round(entry.time * 1000), self.time + 1)
            yield from self.present(last=isinstance(entry, End))

    def skip(self, entry: Entry) -> None:
        """Take an entry whose moments nobody needs."""
        if isinstance(entry, Attempt):
            if not self._goes_on(entry):
                self._playing = _Playing(entry)
        elif self._playing is not None:
            self._playing.take(entry)

    def now(self, seconds: float) -> Iterator[Moment]:
        """The state again, at a later Unix time; nothing if no attempt is going on."""
        if self._is_open:
            self.time = max(round(seconds * 1000), self.time + 1)
            yield from self.present()

    def finish(self) -> Iterator[Moment]:
        """The last word on an attempt that has not said goodbye."""
        if self._is_open:
            yield from self.present(last=True)

    def present(self, last: bool = False) -> Iterator[Moment]:
        """The state at the time of the last moment; nothing before the first attempt."""
        if self._playing is not None:
            yield Moment(self.time, self._playing.labels, self._playing.families(), last)

    @property
    def _is_open(self) -> bool:
        return self._playing is not None and not self._playing.ended

    def _goes_on(self, attempt: Attempt) -> bool:
        """Whether it is not a new attempt, but the same in the next part of the journal."""
        return self._playing is not None and self._playing.identity == attempt.identity


class _Playing:
    """The attempt that is going on, or the last one."""

    def __init__(self, attempt: Attempt) -> None:
        self.identity = attempt.identity
        self.labels = {"job": JOB, **attempt.series_labels}
        self.ended = False
        self._run = _run_state(attempt)
        self._parts = attempt.parts()
        self._families: list[Metric] | None = None

    def take(self, entry: Call | End) -> None:
        self._families = None
        if isinstance(entry, Call):
            self._run.replay(entry)
        else:
            self._run.finish(entry.exit_code)
            self.ended = True

    def families(self) -> list[Metric]:
        if self._families is None:
            snapshot = self._run.snapshot
            self._families = [family for part in self._parts for family in part.collect(snapshot)]
        return self._families


def _run_state(attempt: Attempt) -> RunState:
    try:
        return attempt.run_state()
    except ValueError:  # a history that another version wrote
        return replace(attempt, history=None).run_state()
