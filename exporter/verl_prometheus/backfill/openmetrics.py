"""Writes series as OpenMetrics text, with timestamps: what `promtool tsdb create-blocks-from openmetrics` reads."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import groupby
from operator import attrgetter, itemgetter, lt
from typing import TextIO

from verl_prometheus.series import Moment, Selection, Series

ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class OpenMetricsColumns:
    """Collects moments; the format wants all samples of a series together, so they wait here, 16 bytes each."""

    def __init__(self) -> None:
        self._columns: dict[tuple[str, tuple[tuple[str, str], ...]], _Column] = {}
        self._of: dict[Series, _Column] = {}

    def add(self, moment: Moment, selection: Selection) -> None:
        chosen, _ = selection.choose(moment)  # text cannot say that a series ends
        for series, value in chosen:
            column = self._of.get(series)
            if column is None:
                column = self._columns.setdefault((series.name, series.labels), _Column(series))
                self._of[series] = column
            column.times.append(moment.time)
            column.values.append(value)

    @property
    def samples(self) -> int:
        return sum(len(column.times) for column in self._columns.values())

    def write(self, stream: TextIO) -> None:
        """Everything: by family, in it by label set, in it by time. Raises OSError."""
        columns = sorted(self._columns.values(), key=attrgetter("series.family"))
        for family, of_family in groupby(columns, key=attrgetter("series.family")):
            metrics: dict[tuple[tuple[str, str], ...], list[_Column]] = {}
            for column in of_family:
                labels = tuple(label for label in column.series.labels if label[0] != "le")
                metrics.setdefault(labels, []).append(column)
            stream.write(f"# HELP {family} {column.series.help.translate(ESCAPES)}\n")
            stream.write(f"# TYPE {family} {column.series.type}\n")
            for together in metrics.values():
                stream.writelines(map(itemgetter(1), merge(*(one.lines() for one in together), key=itemgetter(0))))
        stream.write("# EOF\n")


class _Column:
    """The samples of one series."""

    def __init__(self, series: Series) -> None:
        self.series = series
        self.times = array("q")  # Unix milliseconds
        self.values = array("d")

    def lines(self) -> Iterator[tuple[int, str]]:
        """(time, line), in the order of time."""
        labels = ",".join(f'{name}="{text.translate(ESCAPES)}"' for name, text in self.series.labels)
        start = f"{self.series.name}{{{labels}}} "
        for time, value in self._in_order():
            yield time, f"{start}{value if math.isfinite(value) else _SPECIAL[str(value)]} {time / 1000}\n"

    def _in_order(self) -> Iterable[tuple[int, float]]:
        """By time, one sample each: files may have come in any order, and overlap."""
        if all(map(lt, self.times, self.times[1:])):
            return zip(self.times, self.values, strict=True)
        return sorted(dict(zip(self.times, self.values, strict=True)).items())


_SPECIAL = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}
