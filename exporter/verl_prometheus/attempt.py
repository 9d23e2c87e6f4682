"""One attempt at a run: all that must be known, besides the calls of `log`, to make its series again later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_prometheus import catalog
from verl_prometheus.collectors.phases import PhaseCollector
from verl_prometheus.collectors.run import RunCollector
from verl_prometheus.collectors.samples import SampleCollector
from verl_prometheus.collectors.signals import SignalCollector
from verl_prometheus.collectors.snapshot import SnapshotPart
from verl_prometheus.collectors.training import TrainingCollector
from verl_prometheus.run import RunIdentity, RunState
from verl_prometheus.signals import Lengths, Signals


@dataclass(frozen=True)
class Attempt:
    """What one process tracks of a run, from its start to its end.

    `labels` are the user's. `response_limit`: see `Signals`. `history`: of the signals, from the attempt before.
    """

    identity: RunIdentity
    labels: Mapping[str, str] = field(default_factory=dict)
    thresholds: Mapping[str, float] = field(default_factory=dict)
    lengths: Lengths = field(default_factory=Lengths)
    response_limit: float | None = None
    max_series: int = 20_000
    history: Mapping[str, Any] | None = None

    @property
    def series_labels(self) -> dict[str, str]:
        """The labels that every series has."""
        return {"project": self.identity.project, "experiment": self.identity.experiment, **self.labels}

    def run_state(self) -> RunState:
        """A run of which nothing is logged yet. Raises ValueError for a `history` that is none."""
        signals = Signals(self.lengths, self.response_limit)
        if self.history is not None:
            signals.restore(self.history)
        return RunState(catalog.load(), signals, self.max_series)

    def parts(self) -> Sequence[SnapshotPart]:
        """What renders the families that belong to a step."""
        return (
            RunCollector(self.identity),
            TrainingCollector(catalog.load()),
            PhaseCollector(),
            SampleCollector(),
            SignalCollector(self.thresholds),
        )
