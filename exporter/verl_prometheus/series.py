"""Which samples of successive moments are worth keeping: not each value, but each change, and each step's own values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

ALWAYS = "verl_step"


class Moment(NamedTuple):
    """All families of a run at one time.

    `time`: Unix milliseconds. `labels`: on every series. `last`: this is the last word on what is cumulative.
    """

    time: int
    labels: Mapping[str, str]
    families: list[Metric]
    last: bool = False


@dataclass(frozen=True, eq=False)
class Series:
    """A time series: `family` with its type and help, the sample's `name`, sorted labels without empty ones.

    Compared by identity: a `Selection` makes one object a series.
    """

    family: str
    type: str
    help: str
    name: str
    labels: tuple[tuple[str, str], ...]


class _Kept:
    """The last sample of a series that was chosen, and the last round in which the series was there."""

    __slots__ = ("round", "series", "time", "value")

    def __init__(self, series: Series) -> None:
        self.series = series
        self.value: float | None = None
        self.time = 0
        self.round = 0

    @property
    def is_nan(self) -> bool:
        return self.value is not None and isnan(self.value)


class Selection:
    """Chooses from each moment.

    Always: what verl logged (series with a `key`) and `verl_step`, so that no step is lost. Other gauges and counters:
    when they change, and in a `last` moment. Histograms, which are many series and cumulative: in a `last` moment. All of
    them: when they were last chosen `resend_ms` ago.
    """

    def __init__(self, resend_ms: int) -> None:
        self._resend = resend_ms
        self._labels: Mapping[str, str] = {}
        self._kept: dict[tuple[str, tuple[tuple[str, str], ...]], _Kept] = {}
        self._round = 0

    def choose(self, moment: Moment) -> tuple[list[tuple[Series, float]], list[Series]]:
        """The samples to keep, and the series that have ended: those of the moment before that are not in this one."""
        before = self._kept
        if moment.labels != self._labels:
            self._labels, self._kept = moment.labels, {}
        self._round += 1
        chosen: list[tuple[Series, float]] = []
        for family in moment.families:
            is_histogram = family.type == "histogram"
            for sample in family.samples:
                identity = sample.name, tuple(sample.labels.items())
                kept = self._kept.get(identity)
                if kept is None:
                    kept = self._kept[identity] = _Kept(_series(family, sample.name, sample.labels, moment.labels))
                kept.round = self._round
                if kept.time >= moment.time:
                    continue
                changed = sample.value != kept.value and not (isnan(sample.value) and kept.is_nan)
                if "key" in sample.labels or sample.name == ALWAYS:
                    due = changed or not moment.last
                else:
                    due = moment.last or (changed and not is_histogram)
                if due or moment.time - kept.time >= self._resend:
                    kept.value, kept.time = sample.value, moment.time
                    chosen.append((kept.series, sample.value))
        ended = [kept.series for kept in before.values() if kept.round != self._round]
        if ended and before is self._kept:
            self._kept = {identity: kept for identity, kept in before.items() if kept.round == self._round}
        return chosen, ended

    def assume_chosen(self, moment: Moment) -> None:
        """Go on after `moment`, of which all was chosen earlier but, maybe, the last state of histograms."""
        self.choose(moment)
        for kept in self._kept.values():
            if kept.series.type == "histogram":
                kept.time = 0


def _series(family: Metric, name: str, own: Mapping[str, str], common: Mapping[str, str]) -> Series:
    labels = sorted((label, value) for label, value in {**common, **own}.items() if value)
    return Series(family.name, family.type, family.documentation, name, tuple(labels))
