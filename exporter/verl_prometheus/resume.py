"""What a run keeps beside its checkpoints, so that the process that resumes it goes on as the same run.

`<trainer.default_local_dir>/verl-prometheus/run.json` holds the run's id, the number of its last attempt and the history of
its signals. An attempt takes over exactly if verl itself resumes: `trainer.resume_mode` is `resume_path`, or `auto` and
there is a checkpoint. In every other case training starts anew, and so does the run: with a new id, as attempt 1. So it
does, with a warning, where the file cannot be read or is damaged; where it cannot be written, the next attempt starts anew.
Several nodes share the state if they share the folder.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from verl_prometheus.errors import ErrorLog
from verl_prometheus.hyperparameters import look_up

FOLDER = "verl-prometheus"
LATEST_CHECKPOINT = "latest_checkpointed_iteration.txt"  # verl writes it when a checkpoint is complete


@dataclass(frozen=True)
class Lineage:
    """Which run this is, and its how manieth attempt; `history`: of the signals, None at the start."""

    run_id: str
    attempt: int = 1
    history: Mapping[str, Any] | None = None


def folder(config: object) -> Path | None:
    """Where the exporter keeps its files: in verl's folder of checkpoints; None if the config names none."""
    checkpoints = look_up(config, "trainer.default_local_dir")
    return Path(checkpoints, FOLDER).absolute() if isinstance(checkpoints, str) and checkpoints else None


def resumes(config: object) -> bool:
    """Whether verl is about to resume from a checkpoint."""
    mode = look_up(config, "trainer.resume_mode")
    if mode in (None, "auto"):
        checkpoints = look_up(config, "trainer.default_local_dir")
        return isinstance(checkpoints, str) and Path(checkpoints, LATEST_CHECKPOINT).is_file()
    return bool(mode == "resume_path")


class RunFile:
    """The file with the lineage. Without a folder nothing is kept."""

    def __init__(self, where: Path | None) -> None:
        self._path = where / "run.json" if where else None

    def begin(self, resumed: bool, errors: ErrorLog) -> Lineage:
        """The lineage of the attempt that begins now; it is saved at once."""
        lineage = Lineage(uuid.uuid4().hex)
        try:
            before = self._load() if resumed else None
            if before is not None:
                lineage = replace(before, attempt=before.attempt + 1)
        except (OSError, ValueError) as error:
            errors.add("resume", error, "the run starts anew, with a new run_id")
        try:
            self.save(lineage)
        except OSError as error:
            errors.add("resume", error, "if this run is resumed, it will get a new run_id")
            self._path = None
        return lineage

    def save(self, lineage: Lineage) -> None:
        """Replace the file at once. Raises OSError."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(asdict(lineage)))
        os.replace(temporary, self._path)

    def _load(self) -> Lineage | None:
        if self._path is None or not self._path.exists():
            return None
        try:
            lineage = Lineage(**json.loads(self._path.read_text()))
            if not isinstance(lineage.run_id, str) or not isinstance(lineage.attempt, int):
                raise TypeError("run_id and attempt")
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self._path} is damaged: {error}") from error
        return lineage
