"""A histogram that can be copied, so that a snapshot holds one state of it for good."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

# Steps and phases last from a tenth of a second (tiny SFT) to hours (agentic rollouts).
DURATION_BUCKETS = (
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1200.0,
    1800.0,
    3600.0,
    7200.0,
    14400.0,
)


class Distribution:
    """Counts per bucket (upper bounds inclusive, the last bucket open) and the sum of what was observed."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = DURATION_BUCKETS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, other: Distribution) -> None:
        """Count what `other` has counted in the same buckets."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def copy(self) -> Distribution:
        twin = Distribution(self.bounds)
        twin.counts, twin.total = self.counts.copy(), self.total
        return twin

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound as Prometheus writes it, cumulative count), as metric families want it."""
        bounds = (*map(str, self.bounds), "+Inf")
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))
