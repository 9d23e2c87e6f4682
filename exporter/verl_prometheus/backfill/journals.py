"""Reads journals of this project."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from verl_prometheus.attempt import Attempt
from verl_prometheus.backfill.source import Hints, Note, Progress
from verl_prometheus.journal import End, Entry, JournalReader


def read(path: Path, hints: Hints, note: Note, progress: Progress) -> Iterator[Entry]:
    """The entries of a journal and of the parts that continue it."""
    reader = JournalReader(path)
    shift: float | None = None if hints.start is not None else 0.0
    for entry in reader.entries():
        if shift is None and hints.start is not None:
            shift = hints.start - (entry.identity.started if isinstance(entry, Attempt) else entry.time)
        yield _shifted(entry, shift or 0.0, hints)
        if reader.position.part == 0:
            progress(reader.position.offset)
    reader.close()
    if reader.damaged:
        note(f"{path}: {reader.damaged} lines are damaged and left out")


def _shifted(entry: Entry, shift: float, hints: Hints) -> Entry:
    if isinstance(entry, Attempt):
        identity = replace(
            entry.identity,
            project=hints.project or entry.identity.project,
            experiment=hints.experiment or entry.identity.experiment,
            started=entry.identity.started + shift,
        )
        return replace(entry, identity=identity, labels={**entry.labels, **hints.labels})
    if isinstance(entry, End):
        return replace(entry, time=entry.time + shift)
    return entry._replace(time=entry.time + shift)
