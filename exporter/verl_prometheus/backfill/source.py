"""What readers of old runs share."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from verl_prometheus import hyperparameters
from verl_prometheus.attempt import Attempt
from verl_prometheus.journal import Entry
from verl_prometheus.run import Call, RunIdentity, sift


@dataclass(frozen=True)
class Hints:
    """What the user says of a run; None: the file, or its place, shall say it. `start` is in Unix seconds."""

    project: str | None = None
    experiment: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    start: float | None = None


Note = Callable[[str], object]  # tells the user something of the result
Progress = Callable[[int], object]  # is told how many bytes of the file have been read


class Reader(Protocol):
    """The run in a file, as a journal would have it. Raises OSError, ValueError."""

    def __call__(self, path: Path, hints: Hints, note: Note, progress: Progress) -> Iterator[Entry]: ...


def attempt(project: str, experiment: str, started: float, hints: Hints, config: Mapping[str, Any]) -> Attempt:
    """The attempt that a log tells of which is no journal. `config`: verl's, as far as the log has it."""
    project, experiment = hints.project or project, hints.experiment or experiment
    identity = RunIdentity(
        project=project,
        experiment=experiment,
        run_id=uuid.uuid5(uuid.NAMESPACE_URL, f"{project}/{experiment}/{started}").hex,  # the same each time
        started=started,
        step_target=hyperparameters.step_target(config),
        facts={
            "attempt": "1",
            "algorithm": hyperparameters.algorithm(config),
            "model": hyperparameters.model(config),
        },
        config=hyperparameters.compared(config),
    )
    return Attempt(identity, labels=hints.labels, response_limit=hyperparameters.response_limit(config))


def call(time: float, step: int, data: Mapping[str, object]) -> Call:
    """A call of `log` with the numbers in `data`."""
    return Call(time, step, *sift(data))
