"""The journal: everything that was logged, whatever happens to the process and the disk."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.fixtures import RUNS, calls
from helpers.scrape import Scrape
from helpers.waiting import wait_for
from verl_prometheus import catalog, journal, recorder
from verl_prometheus.attempt import Attempt
from verl_prometheus.backend import PrometheusBackend
from verl_prometheus.journal import Encoder, End, Entry, JournalReader, Position
from verl_prometheus.journal_file import JournalFile
from verl_prometheus.run import Call, RunIdentity, RunState, key_name
from verl_prometheus.settings import SettingsError
from verl_prometheus.signals import Lengths

Build = Callable[..., PrometheusBackend]
IDENTITY = RunIdentity("project", "experiment", "run", 1000.5, 30, {"attempt": "2", "node": "n"}, {"a.b": "c"})


def config(folder: Path) -> dict[str, Any]:
    return {"trainer": {"default_local_dir": str(folder)}}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def entries(path: Path) -> list[Entry]:
    return list(JournalReader(path).entries())


def data(call: Call) -> dict[str, float]:
    return dict(zip(call.keys, memoryview(call.numbers).cast("d"), strict=True))


@pytest.mark.parametrize("name", RUNS)
def test_a_real_run_is_in_it_value_by_value(backend: Build, tmp_path: Path, name: str) -> None:
    one = backend(config(tmp_path))
    for step, values in calls(name):
        one.log(values, step)
    one.finish(0)
    begin, *middle, end = lines(tmp_path / "verl-prometheus" / "journal.jsonl")
    assert begin["begin"]["identity"]["project"] == "project"
    assert end["exit_code"] == 0
    assert {(line["run_id"], line["attempt"]) for line in (begin, *middle, end)} == {(begin["run_id"], "1")}
    assert [line["step"] for line in middle] == [step for step, _ in calls(name)]
    times = [line["time"] for line in (begin, *middle, end)]
    assert times == sorted(times)
    assert abs(times[-1] - time.time()) < 60
    for line, (_, values) in zip(middle, calls(name), strict=True):
        assert {key: float(value) for key, value in line["data"].items()} == pytest.approx(
            values, rel=0, abs=0, nan_ok=True
        )


KEYS: st.SearchStrategy[Any] = st.one_of(st.text(), st.integers(), st.none())
VALUES: st.SearchStrategy[Any] = st.one_of(st.floats(), st.integers(), st.booleans(), st.none(), st.text())


@given(st.dictionaries(KEYS, VALUES, max_size=20), st.one_of(st.integers(-5, 2**40), st.none(), st.text()))
def test_any_call_comes_back_as_it_was(values: dict[Any, Any], step: Any) -> None:
    call = RunState(catalog.load(), clock=lambda: 1234.567891).log(values, step)
    line = Encoder(IDENTITY).call(call)
    assert line.count(b"\n") == 1
    json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    again = journal.decode(line)
    assert isinstance(again, Call)
    assert (again.time, again.step, again.dropped) == (call.time, call.step, call.dropped)
    for value, expected in zip(data(again).values(), data(call).values(), strict=True):
        assert value == expected or (math.isnan(value) and math.isnan(expected))
    assert list(again.keys) == list(map(key_name, call.keys))


def test_an_attempt_comes_back_as_it_was() -> None:
    attempt = Attempt(IDENTITY, {"team": "rl"}, {"VerlKLExplosion": 0.5}, Lengths(7, 8, 9), 512.0, 77, {"version": 1})
    encoder = Encoder(IDENTITY)
    assert journal.decode(encoder.attempt(attempt, 1.0)) == attempt
    assert journal.decode(encoder.end(End(2.0, 3))) == End(2.0, 3)


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b"3", b"null", b'{"a": 1}', b'{"data": {"a": "x"}}', b'{"begin": {}}', b'{"data": 1}', b"\xff"],
)
def test_a_line_that_is_none_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        journal.decode(line)


def test_a_torn_last_line_is_skipped_and_the_next_attempt_begins_a_new_one(backend: Build, tmp_path: Path) -> None:
    path = tmp_path / "verl-prometheus" / "journal.jsonl"
    one = backend(config(tmp_path))
    one.log({"a": 1.0}, 1)
    one.log({"a": 2.0}, 2)
    one.finish(0)
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:2]) + whole[2][:20])  # killed within the second step
    assert [type(entry) for entry in entries(path)] == [Attempt, Call]

    following = backend(config(tmp_path))
    following.log({"a": 3.0}, 3)
    following.finish(1)
    reader = JournalReader(path)
    assert [type(entry) for entry in reader.entries()] == [Attempt, Call, Attempt, Call, End]
    assert reader.damaged == 1


def test_reading_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    reader = JournalReader(path)
    assert list(reader.entries()) == []
    encoder = Encoder(IDENTITY)
    line = encoder.end(End(1.0, 0))
    path.write_bytes(line + line[:10])
    assert list(reader.entries()) == [End(1.0, 0)]
    assert list(reader.entries()) == []
    with path.open("ab") as stream:
        stream.write(line[10:] + encoder.end(End(2.0, 0)))
    assert list(reader.entries()) == [End(1.0, 0), End(2.0, 0)]
    assert reader.position == Position(0, 3 * len(line))
    assert [*JournalReader(path, Position(0, 2 * len(line))).entries()] == [End(2.0, 0)]


def test_it_is_bounded_by_parts(backend: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "PART_BYTES", 4000)
    monkeypatch.setattr(journal, "PARTS", 3)
    monkeypatch.setattr(recorder, "BATCH", 1)
    path = tmp_path / "journal.jsonl"
    reader = JournalReader(path)
    one = backend(journal=str(path))
    read: list[Entry] = []
    for step in range(1, 201):
        one.log({"a": float(step), "actor/entropy": 1.0}, step)
        if step % 10 == 0:
            wait_for(lambda: one._keeper._recorder._queue.empty(), "the disk")
            read += reader.entries()
    one.finish(0)
    read += reader.entries()
    files = sorted(tmp_path.glob("journal*.jsonl"))
    assert len(files) == 3
    assert not path.exists()
    assert sum(file.stat().st_size for file in files) < 4 * 6000
    assert [entry.step for entry in read if isinstance(entry, Call)] == list(range(1, 201)), "a reader follows"
    for part in journal.parts(path):
        first = journal.decode(journal.part_path(path, part).read_bytes().splitlines()[0])
        assert isinstance(first, Attempt)
        assert first.identity == one._identity
        assert first.history is not None
        assert first.history["signals"]["entropy"]["steps"] > 0
    assert isinstance(read[-1], End)


def test_a_full_disk_costs_no_step_once_there_is_space(
    backend: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "RETRY_SECONDS", 0.05)
    one = backend(config(tmp_path))
    write, space, full = os.write, [150], True

    def short_of_space(descriptor: int, content: bytes) -> int:
        if descriptor != one._keeper._file._descriptor or not full:  # type: ignore[union-attr]
            return write(descriptor, content)
        if not space[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, content[: space[0]])
        space[0] -= written
        return written

    monkeypatch.setattr(os, "write", short_of_space)
    for step in range(1, 21):
        one.log({"a": float(step)}, step)
    wait_for(lambda: one._errors.counts().get("journal", 0) > 2, "the disk to be full")
    assert Scrape(one.url).value("verl_step") == 20
    full = False
    one.finish(0)
    reader = JournalReader(tmp_path / "verl-prometheus" / "journal.jsonl")
    read = list(reader.entries())
    assert [entry.step for entry in read if isinstance(entry, Call)] == list(range(1, 21))
    assert isinstance(read[-1], End)
    assert reader.damaged == 1


def test_a_disk_that_hangs_costs_neither_the_trainer_nor_unbounded_memory(
    backend: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "BACKLOG", 100 * (recorder.CALL + 8))
    one = backend(config(tmp_path))
    hanging = [True]

    def append(lines: bytes) -> None:
        while hanging[0]:
            time.sleep(0.01)

    monkeypatch.setattr(one._keeper._file, "append", append)
    for step in range(1, 1001):
        one.log({"a": float(step)}, step)
    assert one._keeper._recorder._queue.qsize() <= 100
    assert one._errors.counts()["journal"] >= 1000 - 100 - recorder.BATCH
    assert Scrape(one.url).value("verl_step") == 1000
    hanging[0] = False


def test_two_runs_at_once_have_a_journal_each(backend: Build, tmp_path: Path) -> None:
    first, second = backend(config(tmp_path)), backend(config(tmp_path))
    for step in range(1, 51):
        first.log({"a": 1.0}, step)
        second.log({"b": 1.0}, step)
    for one in (first, second):
        one.finish(0)
        read = entries(one._keeper.journal)  # type: ignore[arg-type]
        assert [type(entry) for entry in read] == [Attempt, *[Call] * 50, End]
    assert first._keeper.journal != second._keeper.journal


def test_a_child_that_outlives_the_trainer_does_not_keep_the_journal(backend: Build, tmp_path: Path) -> None:
    one = backend(config(tmp_path))
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        one.finish(0)
        assert backend(config(tmp_path))._keeper.journal == tmp_path / "verl-prometheus" / "journal.jsonl"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("where", ["file.jsonl", "folder"])
def test_it_may_be_elsewhere(backend: Build, tmp_path: Path, where: str) -> None:
    (tmp_path / "folder").mkdir()
    one = backend(config(tmp_path / "run"), journal=str(tmp_path / where))
    one.finish(0)
    assert (tmp_path / where).is_file() or (tmp_path / where / "journal.jsonl").is_file()
    assert not (tmp_path / "run" / "verl-prometheus" / "journal.jsonl").exists()


def test_none_is_kept_if_nobody_wants_one_or_there_is_no_place(backend: Build, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for one in (backend(config(tmp_path), journal=""), backend({}), backend(config(tmp_path / "file"))):
        one.log({"a": 1.0}, 1)
        assert one._keeper.journal is None
        assert Scrape(one.url).value("verl_step") == 1
        one.finish(0)
    assert list(tmp_path.rglob("*.jsonl")) == []


def test_a_named_place_that_cannot_be_written_is_an_error_before_training(backend: Build, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"trainer\.prometheus\.journal is .*journal=false"):
        backend(journal=str(tmp_path / "file" / "journal.jsonl"))


END_WITHOUT_FINISH = """
import sys
from pathlib import Path
from verl_prometheus.backend import PrometheusBackend
from verl_prometheus.settings import Settings
settings = Settings(port=0, address="127.0.0.1", targets_dir="", linger_seconds=0)
backend = PrometheusBackend("project", "experiment", settings, {"trainer": {"default_local_dir": sys.argv[1]}})
for step in range(1, 501):
    backend.log({"a": step}, step)
"""


@pytest.mark.parametrize(("ending", "exit_code"), [("", 0), ("raise RuntimeError('x')", 1), ("sys.exit(3)", 0)])
def test_a_process_that_just_ends_has_said_everything(tmp_path: Path, ending: str, exit_code: int) -> None:
    subprocess.run([sys.executable, "-c", END_WITHOUT_FINISH + ending, str(tmp_path)], capture_output=True, check=False)
    read = entries(tmp_path / "verl-prometheus" / "journal.jsonl")
    assert [entry.step for entry in read if isinstance(entry, Call)] == list(range(1, 501))
    assert isinstance(read[-1], End)
    assert read[-1].exit_code == exit_code


def test_parts_that_others_have_written_are_not_mistaken(tmp_path: Path) -> None:
    for name in (
        "journal.jsonl",
        "journal.2.jsonl",
        "journal.x.jsonl",
        "journal.02.jsonl",
        "journal-1.jsonl",
        "j.1.jsonl",
    ):
        (tmp_path / name).write_text("")
    assert journal.parts(tmp_path / "journal.jsonl") == [0, 2]
    with pytest.raises(OSError, match=r"."):
        JournalFile(tmp_path / "journal.jsonl" / "x")
