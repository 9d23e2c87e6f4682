"""Reads offline W&B runs: a log in LevelDB's format of W&B's own messages.

The format: blocks of 32 KiB; in them records of checksum (4 bytes), length (2), type (1: whole, 2: first, 3: middle,
4: last) and data; a block's last bytes, if fewer than a record's header, are padding. The file begins with 7 bytes of its
own. Source: https://github.com/google/leveldb/blob/main/doc/log_format.md
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from verl_prometheus.backfill.source import Hints, Note, Progress, attempt, call
from verl_prometheus.journal import End, Entry

HEADER_BYTES = 7
BLOCK_BYTES = 32768
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
_RECORD = struct.Struct("<IHB")


def read(path: Path, hints: Hints, note: Note, progress: Progress) -> Iterator[Entry]:
    """The history of a run, with its config, times and exit code. Raises ValueError if wandb is not installed."""
    try:
        from wandb.proto.wandb_internal_pb2 import Record
    except ImportError as error:
        raise ValueError(f"{path} needs wandb: pip install 'verl-prometheus[backfill]'") from error
    project, experiment, config = "wandb", path.stem, dict[str, Any]()
    started = last = shift = 0.0
    begun = False
    with path.open("rb") as stream:
        for content in _records(stream):
            record = Record.FromString(content)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                project, experiment = record.run.project or project, record.run.display_name or experiment
                started = last = record.run.start_time.ToNanoseconds() / 1e9
                config |= _items(record.run.config.update)
            elif kind == "config":
                config |= _items(record.config.update)
            elif kind in ("history", "exit"):
                if not begun:
                    begun = True
                    shift = 0.0 if hints.start is None else hints.start - started
                    yield attempt(project, experiment, started + shift, hints, config)
                if kind == "exit":
                    yield End(last + shift, record.exit.exit_code)
                else:
                    row = _items(record.history.item)
                    last = float(row.get("_timestamp", last))
                    data = {key: value for key, value in row.items() if not key.startswith("_")}
                    yield call(last + shift, int(row.get("_step", record.history.step.num)), data)
                progress(stream.tell())


def _items(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): _value(item.value_json) for item in items}


def _value(text: str) -> Any:
    value = json.loads(text)
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def _records(stream: BinaryIO) -> Iterator[bytes]:
    """The records of the log, up to where a crash has torn it."""
    stream.seek(HEADER_BYTES)
    record = b""
    while True:
        left = BLOCK_BYTES - stream.tell() % BLOCK_BYTES
        if left < _RECORD.size:
            stream.seek(left, 1)
            continue
        header = stream.read(_RECORD.size)
        if len(header) < _RECORD.size:
            return
        _, length, kind = _RECORD.unpack(header)
        content = stream.read(length)
        if len(content) < length or kind not in (FULL, FIRST, MIDDLE, LAST):
            return
        record = content if kind in (FULL, FIRST) else record + content
        if kind in (FULL, LAST):
            yield record
