"""Reads TensorBoard event files, as verl's `tensorboard` logger writes them: 32-bit values, but with times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verl_prometheus.backfill.source import Hints, Note, Progress, attempt, call
from verl_prometheus.journal import Entry


def read(path: Path, hints: Hints, note: Note, progress: Progress) -> Iterator[Entry]:
    """The scalars of an event file. verl puts it into the folder <project>/<experiment>, where no hint says otherwise.

    Raises ValueError if tensorboard is not installed.
    """
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as error:
        raise ValueError(f"{path} needs tensorboard: pip install 'verl-prometheus[backfill]'") from error
    note(f"{path}: TensorBoard keeps 32 bits of a value, so its last digits are not those that verl logged")
    folder = path.absolute().parent
    shift = 0.0
    size = path.stat().st_size
    started = False
    step, began, data = 0, 0.0, dict[str, float]()
    seen = 0
    for event in LegacyEventFileLoader(str(path)).Load():
        if not started:
            started = True
            shift = 0.0 if hints.start is None else hints.start - event.wall_time
            yield attempt(folder.parent.name, folder.name, event.wall_time + shift, hints, {})
        seen += event.ByteSize() + 16  # with the record's length and checksums
        for value in event.summary.value:
            scalar = _scalar(value, make_ndarray)
            if scalar is None:
                continue
            if data and (event.step != step or value.tag in data):  # another call of log
                yield call(began + shift, step, data)
                progress(min(seen, size))
                data = {}
            if not data:
                step, began = event.step, event.wall_time
            data[value.tag] = scalar
    if data:
        yield call(began + shift, step, data)
    progress(size)


def _scalar(value: Any, make_ndarray: Any) -> float | None:
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind == "tensor" and value.metadata.plugin_data.plugin_name in ("", "scalars"):
        array = make_ndarray(value.tensor)
        return float(array.item()) if array.size == 1 else None
    return None
