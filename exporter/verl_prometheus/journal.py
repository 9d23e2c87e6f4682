"""The journal: every call of `log` in a file beside the checkpoints, one JSON object a line.

Three kinds of lines, each with its wall time, the run's id and the attempt:

* an attempt begins: `{"time", "run_id", "attempt", "begin": {identity, labels, ...}}`
* a call of `log`: `{"time", "run_id", "attempt", "step", "data": {verl key: number}}`; NaN and infinity are strings;
  `"samples": {quantity: {"counts", "total"}}` where there are any
* it ends: `{"time", "run_id", "attempt", "exit_code"}`; a killed one has no such line

Attempts follow each other in one file. A file that grows beyond `PART_BYTES` is continued in `journal.1.jsonl`, then
`journal.2.jsonl` and so on, of which the last `PARTS` are kept; each begins with the attempt that goes on in it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from verl_prometheus.attempt import Attempt
from verl_prometheus.distribution import Distribution
from verl_prometheus.run import Call, RunIdentity, key_name
from verl_prometheus.samples import BUCKETS
from verl_prometheus.signals import Lengths

PART_BYTES = 128 * 2**20
PARTS = 8


@dataclass(frozen=True)
class End:
    """The attempt said goodbye."""

    time: float
    exit_code: int


Entry = Attempt | Call | End


class Position(NamedTuple):
    """A place between two lines."""

    part: int
    offset: int


START = Position(0, 0)


class Encoder:
    """Entries of one attempt as lines."""

    def __init__(self, identity: RunIdentity) -> None:
        self._who = {"run_id": identity.run_id, "attempt": identity.facts.get("attempt", "1")}
        self._keys: tuple[Any, ...] = ()
        self._names: list[str] = []

    def attempt(self, attempt: Attempt, time: float) -> bytes:
        return self._line({"time": time, **self._who, "begin": dataclasses.asdict(attempt)})

    def call(self, call: Call) -> bytes:
        if call.keys != self._keys:
            self._keys, self._names = call.keys, list(map(key_name, call.keys))
        data: dict[str, Any] = dict(zip(self._names, struct.unpack(f"{len(call.keys)}d", call.numbers), strict=True))
        line: dict[str, Any] = {"time": call.time, **self._who, "step": call.step, "data": data}
        if call.dropped:
            line["dropped"] = call.dropped
        if call.samples:
            line["samples"] = {name: {"counts": one.counts, "total": one.total} for name, one in call.samples.items()}
        try:
            return self._line(line)
        except ValueError:  # JSON has no word for these
            line["data"] = {key: value if math.isfinite(value) else str(value) for key, value in data.items()}
            return self._line(line)

    def end(self, end: End) -> bytes:
        return self._line({"time": end.time, **self._who, "exit_code": end.exit_code})

    @staticmethod
    def _line(content: dict[str, Any]) -> bytes:
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Entry:
    """The entry of a line. Raises ValueError if it has none."""
    try:
        content = json.loads(line)
        if "data" in content:
            return _call(content)
        if "begin" in content:
            return _attempt(content["begin"])
        return End(float(content["time"]), int(content["exit_code"]))
    except (KeyError, TypeError, AttributeError, struct.error) as error:
        raise ValueError(f"not a line of a journal: {type(error).__name__}: {error}") from error


def _call(content: Mapping[str, Any]) -> Call:
    data = content["data"]
    numbers = struct.pack(f"{len(data)}d", *map(float, data.values()))
    step = content["step"]
    return Call(
        time=float(content["time"]),
        step=None if step is None else int(step),
        keys=tuple(data),
        numbers=numbers,
        dropped=tuple(map(str, content.get("dropped", ()))),
        samples=dict(samples(content.get("samples", {}))),
    )


def samples(content: Mapping[str, Any]) -> Iterator[tuple[str, Distribution]]:
    """Those whose buckets are still what they were when the line was written."""
    for quantity, one in content.items():
        if quantity in BUCKETS and len(one["counts"]) == len(BUCKETS[quantity]) + 1:
            distribution = Distribution(BUCKETS[quantity])
            distribution.counts, distribution.total = list(map(int, one["counts"])), float(one["total"])
            yield quantity, distribution


def _attempt(content: Mapping[str, Any]) -> Attempt:
    return Attempt(
        **{**content, "identity": RunIdentity(**content["identity"]), "lengths": Lengths(**content["lengths"])}
    )


def part_path(path: Path, part: int) -> Path:
    return path.with_name(f"{path.stem}.{part}{path.suffix}") if part else path


def parts(path: Path) -> list[int]:
    """The numbers of the parts that exist, oldest first."""
    prefix, suffix = f"{path.stem}.", path.suffix
    numbers = [0] if path.exists() else []
    for other in path.parent.glob("*" + suffix):
        middle = other.name.removeprefix(prefix).removesuffix(suffix)
        if other.name.startswith(prefix) and middle.isdigit() and part_path(path, int(middle)) == other:
            numbers.append(int(middle))
    return sorted(numbers)


class JournalReader:
    """Reads a journal from `position` on, across its parts, as far as it is written; more each time."""

    def __init__(self, path: Path, position: Position = START) -> None:
        self._path = path
        self.position = position
        self.damaged = 0  # lines that could not be read: torn ones, for the most part
        self._stream: BinaryIO | None = None

    def entries(self) -> Iterator[Entry]:
        """What there is beyond `position`, which moves with every entry. Raises OSError."""
        while True:
            line = self._line()
            if line is None:
                return
            try:
                entry = decode(line)
            except ValueError:
                self.damaged += 1
                continue
            yield entry

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _line(self) -> bytes | None:
        """The next line if it is complete."""
        while True:
            line = self._read()
            if line.endswith(b"\n"):
                self.position = Position(self.position.part, self.position.offset + len(line))
                return line
            following = self._following_part()
            if following is None:
                return None
            line = self._read()  # nothing is added to a part once there is another
            if not line.endswith(b"\n"):
                self.damaged += bool(line)
                self.close()
                self.position = Position(following, 0)

    def _read(self) -> bytes:
        if self._stream is None:
            try:
                self._stream = part_path(self._path, self.position.part).open("rb")
            except FileNotFoundError:
                return b""
        if self._stream.tell() != self.position.offset:
            self._stream.seek(self.position.offset)
        return self._stream.readline()

    def _following_part(self) -> int | None:
        following = self.position.part + 1
        if self._stream is not None and not part_path(self._path, following).exists():
            return None
        return next((part for part in parts(self._path) if part >= following), None)
