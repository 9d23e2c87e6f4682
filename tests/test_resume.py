"""A run that is resumed is the same run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.receiver import Receiver
from helpers.scrape import Scrape
from verl_prometheus import resume
from verl_prometheus.backend import PrometheusBackend
from verl_prometheus.settings import RemoteWriteSettings

Build = Callable[..., PrometheusBackend]


def config(folder: Path, mode: str | None = "auto") -> dict[str, Any]:
    return {"trainer": {"default_local_dir": str(folder), "resume_mode": mode}}


def save_checkpoint(folder: Path) -> None:
    (folder / resume.LATEST_CHECKPOINT).write_text("10")


def identity(backend: PrometheusBackend) -> tuple[str, str]:
    (info,) = Scrape(backend.url).label_sets("verl_run_info")
    return info["run_id"], info["attempt"]


def test_the_run_id_stays_and_attempts_are_counted(backend: Build, tmp_path: Path) -> None:
    first = backend(config(tmp_path))
    save_checkpoint(tmp_path)
    run_id, attempt = identity(first)
    assert attempt == "1"
    first.finish(1)
    for expected in ("2", "3"):  # the second is killed: it says nothing at its end
        assert identity(backend(config(tmp_path, "resume_path"))) == (run_id, expected)
    assert identity(backend(config(tmp_path, None))) == (run_id, "4")


@pytest.mark.parametrize("mode", ["auto", None])
def test_without_a_checkpoint_training_starts_anew_and_so_does_the_run(
    backend: Build, tmp_path: Path, mode: Any
) -> None:
    first, second = identity(backend(config(tmp_path, mode))), identity(backend(config(tmp_path, mode)))
    assert (first[1], second[1]) == ("1", "1")
    assert first[0] != second[0]


def test_a_fresh_run_in_an_old_folder_is_another_run(backend: Build, tmp_path: Path) -> None:
    first = identity(backend(config(tmp_path)))
    save_checkpoint(tmp_path)
    fresh = identity(backend(config(tmp_path, "disable")))
    assert fresh[0] != first[0]
    assert fresh[1] == "1"
    assert identity(backend(config(tmp_path))) == (fresh[0], "2"), "what is resumed is the fresh one"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"run_id": 3}', '{"run_id": "x", "attempt": "y"}', '{"who": 1}']
)
def test_damaged_state_is_said_and_the_run_starts_anew(backend: Build, tmp_path: Path, content: str) -> None:
    first = identity(backend(config(tmp_path)))
    save_checkpoint(tmp_path)
    (tmp_path / "verl-prometheus" / "run.json").write_text(content)
    second = backend(config(tmp_path))
    assert identity(second)[0] != first[0]
    assert identity(second)[1] == "1"
    assert Scrape(second.url).value("verl_exporter_errors_total", component="resume") == 1
    assert identity(backend(config(tmp_path))) == (identity(second)[0], "2")


def test_deleted_state_starts_anew_without_a_word(backend: Build, tmp_path: Path) -> None:
    first = identity(backend(config(tmp_path)))
    save_checkpoint(tmp_path)
    (tmp_path / "verl-prometheus" / "run.json").unlink()
    second = backend(config(tmp_path))
    assert identity(second)[0] != first[0]
    assert not Scrape(second.url).values("verl_exporter_errors_total")


def test_a_folder_that_cannot_be_written_is_said_and_training_goes_on(backend: Build, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one = backend(config(tmp_path / "file"))
    one.log({"a": 1.0}, 1)
    assert identity(one)[1] == "1"
    assert Scrape(one.url).value("verl_exporter_errors_total", component="resume") == 1
    assert Scrape(one.url).value("verl_step") == 1


def test_without_a_folder_nothing_is_kept(backend: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = backend(None, targets_dir="")
    one.log({"a": 1.0}, 1)
    one.finish(0)
    assert list(tmp_path.iterdir()) == []


def test_baselines_and_windows_continue(backend: Build, tmp_path: Path) -> None:
    lengths = {"window": 4, "baseline_steps": 4, "warmup_steps": 2}
    first = backend(config(tmp_path), **lengths)
    for step in range(1, 11):
        first.log({"actor/entropy": float(step)}, step)
    before = Scrape(first.url)
    save_checkpoint(tmp_path)
    first.finish(1)
    second = backend(config(tmp_path), **lengths)
    scrape = Scrape(second.url)
    for name, labels in (
        ("verl_signal_baseline", {"stat": "mean"}),
        ("verl_signal_baseline", {"stat": "stddev"}),
        ("verl_signal_peak", {}),
        ("verl_signal_trough", {}),
    ):
        assert scrape.value(name, signal="entropy", **labels) == before.value(name, signal="entropy", **labels)
    assert scrape.value("verl_signal_steps", signal="entropy") == 10
    second.log({"actor/entropy": 100.0}, 8)  # back at the checkpoint
    scrape = Scrape(second.url)
    assert scrape.value("verl_step") == 8
    assert scrape.value("verl_signal_baseline", signal="entropy", stat="mean") == 4.5
    assert scrape.value("verl_signal_window", signal="entropy", stat="mean") == (8 + 9 + 10 + 100) / 4
    assert scrape.value("verl_signal_steps", signal="entropy") == 11


def test_a_history_of_another_version_is_left_behind(backend: Build, tmp_path: Path) -> None:
    run_id, _ = identity(backend(config(tmp_path)))
    save_checkpoint(tmp_path)
    path = tmp_path / "verl-prometheus" / "run.json"
    path.write_text(json.dumps({"run_id": run_id, "attempt": 1, "history": {"version": 0}}))
    second = backend(config(tmp_path))
    assert identity(second) == (run_id, "2")
    assert Scrape(second.url).value("verl_exporter_errors_total", component="resume") == 1


def test_counters_start_anew_as_rate_expects(backend: Build, tmp_path: Path) -> None:
    """A reset to 0 is seen at the start of the attempt, so `increase` over both attempts is what was done in both."""
    with Receiver() as receiver:
        push = {"remote_write": RemoteWriteSettings(url=receiver.url), "linger_seconds": 20}
        first = backend(config(tmp_path), **push)
        for step in range(1, 6):
            first.log({"a": 1.0}, step)
        save_checkpoint(tmp_path)
        first.finish(1)
        second = backend(config(tmp_path), **push)
        for step in range(4, 7):
            second.log({"a": 1.0}, step)
        second.finish(0)
        assert receiver.values("verl_steps_total") == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 5.0, 0.0, 1.0, 2.0, 3.0, 3.0]
        assert [value for value in receiver.values("verl_step") if value == value] == [1, 2, 3, 4, 5, 4, 5, 6]


def test_the_cursor_of_another_receiver_is_not_taken(backend: Build, tmp_path: Path) -> None:
    with Receiver() as one, Receiver() as other:
        first = backend(config(tmp_path), remote_write=RemoteWriteSettings(url=one.url), linger_seconds=20)
        first.log({"a": 1.0}, 1)
        save_checkpoint(tmp_path)
        first.finish(0)
        second = backend(config(tmp_path), remote_write=RemoteWriteSettings(url=other.url), linger_seconds=20)
        second.log({"a": 2.0}, 2)
        second.finish(0)
        assert one.values("verl_a") == [1.0]
        assert other.values("verl_a") == [2.0]


def test_a_damaged_cursor_is_said_and_only_this_attempt_is_pushed(backend: Build, tmp_path: Path) -> None:
    with Receiver() as receiver:
        first = backend(config(tmp_path))
        first.finish(0)
        (tmp_path / "verl-prometheus" / "journal.jsonl.pushed").write_text("{")
        second = backend(config(tmp_path), remote_write=RemoteWriteSettings(url=receiver.url), linger_seconds=20)
        second.log({"a": 2.0}, 2)
        second.finish(0)
        assert receiver.values("verl_a") == [2.0]
        assert second._errors.counts() == {"remote_write": 1}
