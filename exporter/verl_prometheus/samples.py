"""What verl knows of every sample and logs as means: distributions, gathered until the step they belong to is logged."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from math import isfinite

from verl_prometheus.distribution import DURATION_BUCKETS, Distribution

REWARD = "reward"
RESPONSE_LENGTH = "response_length"  # tokens
LATENCY = "latency"  # seconds that a trajectory was generated for
BUCKETS = {
    REWARD: (-10.0, -5.0, -2.0, -1.0, -0.75, -0.5, -0.25, 0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 2.0, 5.0, 10.0),
    RESPONSE_LENGTH: tuple(float(2**power) for power in range(4, 18)),
    LATENCY: DURATION_BUCKETS,
}
Samples = Mapping[str, Distribution]  # by quantity
NONE: Samples = {}


class SampleTracker:
    """Takes samples from the trainer as they become known, gives them away once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gathered: dict[str, Distribution] = {}
        self.wanted = False  # whether there is a run that will take them
        self.error: Exception | None = None  # why the last ones could not be read

    def add(self, quantity: str, values: Iterable[float]) -> None:
        """Values that are not finite are left out."""
        with self._lock:
            distribution = self._gathered.setdefault(quantity, Distribution(BUCKETS[quantity]))
            for value in values:
                if isfinite(value):
                    distribution.observe(value)

    def take(self) -> Samples:
        """What was added since the last time."""
        if not self._gathered:
            return NONE
        with self._lock:
            gathered, self._gathered = self._gathered, {}
            return gathered


# verl's functions belong to the process, not to a run: so does this.
SAMPLES = SampleTracker()
