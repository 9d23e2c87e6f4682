"""A logged run as Prometheus would have seen it: the real exporter's families on a virtual clock."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping

from prometheus_client.metrics_core import Metric

from verl_prometheus.attempt import Attempt
from verl_prometheus.collectors.active_phases import ActivePhaseCollector
from verl_prometheus.journal import End
from verl_prometheus.phases import PhaseTracker
from verl_prometheus.replay import JOB, Replay
from verl_prometheus.run_log import LoggedRun, moved
from verl_prometheus.timeline import Dies, Event, PhaseBegins, PhaseEnds, timeline

LEAD_SECONDS = 60.0  # before the run begins: rules look back from the first scrape on
NEVER = 2**62  # milliseconds

Series = tuple[str, tuple[tuple[str, str], ...]]  # name, sorted labels
Scrape = Mapping[Series, float]


class VirtualRun:
    """Plays a run. Scrape it at rising times, in seconds: it begins at `LEAD_SECONDS`.

    `names`: of the samples that are wanted.
    """

    def __init__(self, run: LoggedRun, names: Collection[str]) -> None:
        self.shift = LEAD_SECONDS - run.begin  # from the log's times to these
        self.end = run.end + self.shift
        self.is_up = False
        self._run = run
        self._names = names
        self._events = timeline(run)
        self._next = 0
        self._now = 0.0
        self._replay = Replay(fill_ms=NEVER)
        self._tracker = PhaseTracker(lambda: self._now)
        self._labels: Mapping[str, str] = {}
        self._is_target = False
        self._rendered: tuple[list[Metric] | None, dict[Series, float]] = (None, {})

    def scrape(self, now: float) -> Scrape:
        """What is stored for this time; nothing while there is no target."""
        if self._ended:
            self._is_target = self.is_up = False
        while self._next < len(self._events) and self._events[self._next][0] + self.shift <= now:
            when, event = self._events[self._next]
            self._now = when + self.shift
            self._happens(event)
            self._next += 1
        if not self._is_target:
            return {}
        if not self.is_up:
            return self.target(self._run.experiment, ())
        moment = next(self._replay.present())
        if self._rendered[0] is not moment.families:
            self._rendered = moment.families, self.target(self._run.experiment, moment.families)
        phases = ActivePhaseCollector(self._tracker).collect()
        return {**self._rendered[1], **self.target(self._run.experiment, phases)}

    def target(self, instance: str, families: Iterable[Metric], node: str = "") -> dict[Series, float]:
        """The samples of one target of this run, as they are stored, and its `up`."""
        run = {"job": JOB, "instance": instance, **self._labels}
        up = {"job": JOB, "instance": instance, "node": node}
        up.update((label, self._labels[label]) for label in ("project", "experiment"))
        samples = {_series("up", up): float(self.is_up)}
        for family in families:
            for sample in family.samples:
                if sample.name in self._names:
                    samples[_series(sample.name, {**run, **sample.labels})] = sample.value
        return samples

    @property
    def _ended(self) -> bool:
        """The run has said goodbye, and that has been seen."""
        return self._next == len(self._events) and isinstance(self._run.entries[-1], End)

    def _happens(self, event: Event) -> None:
        if isinstance(event, PhaseBegins):
            self._tracker.enter(event.phase)
        elif isinstance(event, PhaseEnds):
            self._tracker.leave(event.phase)
        elif isinstance(event, Dies):
            self.is_up = False
        else:
            if isinstance(event, Attempt):
                self._is_target = self.is_up = True
                self._labels = event.series_labels
                self._tracker = PhaseTracker(lambda: self._now)
            self._replay.skip(moved(event, self.shift))


def selector(series: Series) -> str:
    """As PromQL writes it."""
    name, labels = series
    return f"{name}{{{','.join(f'{label}={json.dumps(value, ensure_ascii=False)}' for label, value in labels)}}}"


def _series(name: str, labels: Mapping[str, str]) -> Series:
    return name, tuple(sorted((label, value) for label, value in labels.items() if value))
