"""What the trainer is doing right now: phases as they begin and end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Phases(NamedTuple):
    """`active`: phase -> when it began (Unix seconds), outermost first. `known`: every phase seen so far."""

    active: Mapping[str, float]
    known: tuple[str, ...]


class PhaseTracker:
    """Counts phases in and out. Safe from several threads and tasks; a phase inside itself is one phase."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._active: dict[str, tuple[int, float]] = {}  # phase -> (depth, when it began)
        self._known: dict[str, None] = {}
        self.missing: str | None = None  # why nobody will ever call `enter`

    def enter(self, phase: str) -> None:
        now = self._clock()
        with self._lock:
            depth, began = self._active.get(phase, (0, now))
            self._active[phase] = depth + 1, began
            self._known[phase] = None

    def leave(self, phase: str) -> None:
        with self._lock:
            depth, began = self._active.pop(phase, (0, 0.0))
            if depth > 1:
                self._active[phase] = depth - 1, began

    def read(self) -> Phases:
        with self._lock:
            return Phases({phase: began for phase, (_, began) in self._active.items()}, tuple(self._known))


# verl's timers belong to the process, not to a run: so does this.
TRACKER = PhaseTracker()
