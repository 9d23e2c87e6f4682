"""Mean, deviation, minimum and maximum of values that come and go, in constant time and without subtracting sums."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

LARGEST = 1e100  # beyond it squares overflow; such a value counts as not finite


class Moments(NamedTuple):
    """Of `number` values: mean, sum of squared deviations from it, smallest and largest."""

    number: int
    mean: float
    deviations: float
    min: float
    max: float

    @property
    def stddev(self) -> float:
        """Population standard deviation; NaN of no values."""
        return math.sqrt(self.deviations / self.number) if self.number else math.nan

    @staticmethod
    def of(value: float | None) -> Moments:
        """Moments of one value; of none if it is missing or not finite."""
        return NOTHING if value is None or not abs(value) < LARGEST else Moments(1, value, 0.0, value, value)

    def merge(self, other: Moments) -> Moments:
        """Moments of both sets together (Chan, Golub, LeVeque: Updating Formulae, 1979)."""
        if not self.number:
            return other
        if not other.number:
            return self
        number = self.number + other.number
        delta = other.mean - self.mean
        return Moments(
            number,
            self.mean + delta * other.number / number,
            self.deviations + other.deviations + delta * delta * self.number * other.number / number,
            self.min if self.min < other.min else other.min,
            self.max if self.max > other.max else other.max,
        )


NOTHING = Moments(0, 0.0, 0.0, math.inf, -math.inf)


class RollingMoments:
    """Moments of the last `places` values, None being an empty place; `push` is amortised O(1).

    A queue of two stacks, each entry holding the moments of all below it: what leaves is dropped, never subtracted, so
    that an outlier of 1e30 leaves no rounding error behind.
    """

    def __init__(self, places: int, values: Iterable[float | None] = ()) -> None:
        self.places = places
        self.values: deque[float | None] = deque()
        self._older: list[Moments] = []  # the last entry is of all old values, the one before of all but the oldest ...
        self._newer = NOTHING
        for value in values:
            self.push(value)

    def push(self, value: float | None) -> None:
        if len(self.values) == self.places:
            if not self._older:
                self._turn_over()
            self._older.pop()
            self.values.popleft()
        self.values.append(value)
        self._newer = self._newer.merge(Moments.of(value))

    def mean_with(self, value: float) -> float:
        """Mean of the values and one more."""
        older, newer = self._older[-1] if self._older else NOTHING, self._newer
        number = older.number + newer.number + 1
        return older.mean * (older.number / number) + newer.mean * (newer.number / number) + value / number

    def moments(self) -> Moments:
        return self._older[-1].merge(self._newer) if self._older else self._newer

    def _turn_over(self) -> None:
        moments = NOTHING
        for value in reversed(self.values):
            moments = moments.merge(Moments.of(value))
            self._older.append(moments)
        self._newer = NOTHING
