"""Which kind of file it is, by its first bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from verl_prometheus import journal
from verl_prometheus.backfill import journals, tensorboard_events, verl_file, wandb_offline
from verl_prometheus.backfill.source import Reader

LONGEST_LINE = 64 * 2**20
PATTERNS = ("*.jsonl", "*tfevents*", "*.wandb")


def reader_of(path: Path) -> Reader:
    """Raises OSError, or ValueError for a file that is none of those known."""
    with path.open("rb") as stream:
        line = stream.readline(LONGEST_LINE)
    if line.startswith(b":W&B"):
        return wandb_offline.read
    if b"brain.Event:" in line[:64]:
        return tensorboard_events.read
    try:
        content = json.loads(line)
    except ValueError:
        content = None
    if isinstance(content, dict) and "run_id" in content:
        return journals.read
    if isinstance(content, dict) and {"step", "data"} <= content.keys():
        return verl_file.read
    raise ValueError(
        f"{path} is none of these: a journal of verl-prometheus, a log of verl's `file` logger, a TensorBoard event "
        "file, an offline W&B run (run-*.wandb)"
    )


def files(arguments: Iterable[str]) -> list[Path]:
    """The files that `arguments` name; of a folder, all that may be logs. Parts of a journal count as one file.

    Raises OSError, or ValueError for a folder without any.
    """
    found: dict[Path, None] = {}
    for argument in map(Path, arguments):
        if argument.is_dir():
            inside = sorted(path for pattern in PATTERNS for path in argument.rglob(pattern) if path.is_file())
            if not inside:
                raise ValueError(f"{argument} holds no file named like {', '.join(PATTERNS)}")
            found.update(dict.fromkeys(inside))
        else:
            argument.stat()
            found[argument] = None
    followers = {journal.part_path(path, part) for path in found for part in journal.parts(path) if part}
    return [path for path in found if path not in followers]
