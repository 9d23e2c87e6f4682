"""Old runs into Prometheus, from everything that may hold one."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from helpers.fixtures import FOLDER, RUNS, calls
from helpers.prometheus import Prometheus
from helpers.receiver import Receiver
from helpers.scrape import Scrape
from verl_prometheus import catalog, cli
from verl_prometheus.backend import PrometheusBackend
from verl_prometheus.journal import parts

Build = Callable[..., PrometheusBackend]
FILE_LOG, TENSORBOARD, WANDB = "file/maths/*.jsonl", "tensorboard_log/**/*tfevents*", "wandb/offline*/*.wandb"
HOUR_AGO = round(time.time()) - 3600
OTHER_LOGGERS = """
import json, os, sys
folder, fixture = sys.argv[1:]
os.chdir(folder)
os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "TENSORBOARD_DIR": "tensorboard_log/maths/first"}
os.environ["VERL_FILE_LOGGER_ROOT"] = "file"
from verl.utils.tracking import Tracking
config = {"algorithm": {"adv_estimator": "grpo"}, "actor_rollout_ref": {"model": {"path": "qwen"}},
          "trainer": {"total_training_steps": 30}}
tracking = Tracking("maths", "first", ["wandb", "tensorboard", "file"], config)
for line in open(fixture):
    line = json.loads(line)
    tracking.log({key: float("nan") if value is None else value for key, value in line["data"].items()}, line["step"])
tracking.finish(0)
"""


def backfill(*arguments: object) -> int:
    return cli.main(["backfill", *map(str, arguments)])


def samples(path: Path) -> dict[str, list[Sample]]:
    """By sample name, as prometheus-client's strict parser reads them; in files, by series, then by time."""
    text = path.read_text()
    assert text.endswith("# EOF\n")
    found: dict[str, list[Sample]] = {}
    for family in re.findall(r"# HELP .*\n(?:(?!# HELP|# EOF).*\n)*", text):
        for document in _documents(family.splitlines()):
            for metric in text_string_to_metric_families(document):  # type: ignore[no-untyped-call]
                for sample in metric.samples:
                    found.setdefault(sample.name, []).append(sample)
    return found


def _documents(family: list[str]) -> Iterator[str]:
    """One; of a histogram one for each time, since that parser takes the second of a series for a repetition."""
    head, lines = family[:2], family[2:]
    times = [line.rpartition(" ")[2] if head[1].endswith(" histogram") else "" for line in lines]
    for one in sorted(set(times)):
        yield "\n".join([*head, *(line for line, of in zip(lines, times, strict=True) if of == one), "# EOF\n"])


def at(sample: Sample) -> float:
    """When, in Unix seconds."""
    assert sample.timestamp is not None
    return float(sample.timestamp)


def by_key(found: dict[str, list[Sample]]) -> dict[str, list[float]]:
    """verl key -> values in the order of time."""
    return {
        key: [one.value for one in of_name if one.labels.get("key") == key]
        for name, of_name in found.items()
        if name != "verl_nonfinite_values_total"
        for key in {one.labels["key"] for one in of_name if "key" in one.labels}
    }


def logged(fixture: str) -> dict[str, list[float]]:
    """verl key -> exported values."""
    shipped = catalog.load()
    values: dict[str, list[float]] = {}
    for _, data in calls(fixture):
        for key, value in data.items():
            values.setdefault(key, []).append(value * shipped.series(key).scale)
    return values


def same(values: list[float], expected: list[float], relative: float = 0.0) -> bool:
    return values == pytest.approx(expected, rel=relative, abs=0.0, nan_ok=True)


def journal_of(backend: Build, folder: Path, fixture: str, **settings: Any) -> tuple[Path, Scrape]:
    """The journal of a run, and the last scrape of it."""
    one = backend({"trainer": {"default_local_dir": str(folder)}}, linger_seconds=1, **settings)
    for step, data in calls(fixture):
        one.log(data, step)
    one.finish  # noqa: B018
    last = Scrape(one.url)
    one.finish(0)
    assert one._keeper.journal is not None
    return one._keeper.journal, last


@pytest.mark.parametrize("fixture", RUNS)
def test_a_journal_gives_what_scrapes_would_have_shown(backend: Build, tmp_path: Path, fixture: str) -> None:
    journal, last = journal_of(backend, tmp_path, fixture, labels={"team": "rl"}, thresholds={"VerlKLExplosion": 0.5})
    output = tmp_path / "out.txt"
    assert backfill(journal, "--output", output) == 0
    found = samples(output)
    for key, values in logged(fixture).items():
        got = by_key(found)[key]
        if catalog.load().series(key).retained or fixture.startswith("sft"):  # shown again with later calls
            got = [value for index, value in enumerate(got) if index == 0 or value != got[index - 1]]
            values = [value for index, value in enumerate(values) if index == 0 or value != values[index - 1]]
        assert same(got, values), key
    newest = {(one.name, tuple(sorted(one.labels.items()))): one.value for of_name in found.values() for one in of_name}
    for sample in last.samples:
        if sample.name.startswith(("process_", "verl_exporter_", "verl_phase_active", "verl_phase_start")):
            continue  # of the process
        labels = {name: text for name, text in {"job": "verl", **sample.labels}.items() if text}
        value = newest[sample.name, tuple(sorted(labels.items()))]
        if sample.name != "verl_run_state":
            assert value == sample.value or math.isnan(value), sample
    states = {one.labels["state"]: one.value for one in found["verl_run_state"]}
    assert states == {"starting": 0, "running": 0, "finished": 1, "failed": 0}


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What verl's own file, tensorboard and wandb loggers write of a run with NaN in it."""
    folder = tmp_path_factory.mktemp("others")
    fixture = folder / "run.jsonl"
    with fixture.open("w") as stream:
        for step, data in calls("grpo_v1"):
            values = {key: None if math.isnan(value) else value for key, value in data.items()}
            stream.write(
                json.dumps({"step": step, "data": values | {"actor/broken": None, "actor/fine": step / 3}}) + "\n"
            )
    subprocess.run([sys.executable, "-c", OTHER_LOGGERS, str(folder), str(fixture)], check=True, capture_output=True)
    return folder


@pytest.mark.parametrize(
    ("pattern", "relative"),
    [(FILE_LOG, 0.0), (TENSORBOARD, 2e-7), (WANDB, 0.0)],
)
def test_what_verls_other_loggers_write(others: Path, tmp_path: Path, pattern: str, relative: float) -> None:
    (path,) = others.glob(pattern)
    output = tmp_path / "out.txt"
    assert backfill(path, "--output", output, "--labels", "team=rl") == 0
    found = samples(output)
    values = by_key(found)
    for key, expected in logged("grpo_v1").items():
        if not catalog.load().series(key).retained:
            assert same(values[key], expected, relative), key
    assert len(values["actor/broken"]) == len(values["actor/fine"])
    assert all(map(math.isnan, values["actor/broken"]))
    steps = [step for step, _ in calls("grpo_v1")]
    assert [one.value for one in found["verl_step"]] == steps
    for name in ("verl_signal", "verl_signal_window", "verl_phase_duration_seconds_bucket", "verl_run_info"):
        assert found[name], name
    for of_name in found.values():
        for one in of_name:
            assert (one.labels["project"], one.labels["experiment"], one.labels["team"]) == ("maths", "first", "rl")


def test_wandb_knows_the_config_and_how_it_ended(others: Path, tmp_path: Path) -> None:
    (path,) = others.glob(WANDB)
    assert backfill(path, "--output", tmp_path / "out.txt") == 0
    found = samples(tmp_path / "out.txt")
    (info,) = {one.labels["algorithm"] + one.labels["model"] for one in found["verl_run_info"]}
    assert info == "grpoqwen"
    assert found["verl_step_target"][0].value == 30
    assert [one.value for one in found["verl_run_state"] if one.labels["state"] == "finished"][-1] == 1


def test_a_torn_wandb_file_gives_what_is_whole(others: Path, tmp_path: Path) -> None:
    (path,) = others.glob(WANDB)
    torn = tmp_path / "torn.wandb"
    torn.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert backfill(torn, "--output", tmp_path / "out.txt") == 0
    steps = [one.value for one in samples(tmp_path / "out.txt")["verl_step"]]
    assert 0 < len(steps) < len(calls("grpo_v1"))


def test_times_of_the_file_logger_are_made_from_durations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "maths"
    folder.mkdir()
    path = folder / "first.jsonl"
    durations = {1: 10.0, 2: 20.0, 3: None, 4: 30.0}
    content = [{"step": 0, "data": {"val/loss": 1.0}}]
    content += [
        {"step": step, "data": {"actor/pg_loss": 1.0, **({"timing_s/step": seconds} if seconds else {})}}
        for step, seconds in durations.items()
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in content) + '{"step": 5, "da')
    os.utime(path, (HOUR_AGO, HOUR_AGO))

    assert backfill(path, "--output", tmp_path / "out.txt") == 0
    said = capsys.readouterr().err
    assert "writes no times" in said
    assert "steps that tell none count as 20 s" in said
    ends = [10.0, 30.0, 50.0, 80.0]
    times = [at(one) for one in samples(tmp_path / "out.txt")["verl_actor_pg_loss"]]
    assert times == pytest.approx([HOUR_AGO - 80 + end for end in ends], abs=0.01)

    assert backfill(path, "--output", tmp_path / "out.txt", "--start", "2024-05-01T00:00:00Z") == 0
    times = [at(one) for one in samples(tmp_path / "out.txt")["verl_actor_pg_loss"]]
    assert times == pytest.approx([1714521600 + end for end in ends], abs=0.01)


def test_a_run_can_be_named_and_dated(backend: Build, others: Path, tmp_path: Path) -> None:
    journal, _ = journal_of(backend, tmp_path / "run", "grpo_v1")
    for path in (
        journal,
        *others.glob(FILE_LOG),
        *others.glob(TENSORBOARD),
        *others.glob(WANDB),
    ):
        output = tmp_path / "out.txt"
        assert backfill(path, "--output", output, "--project", "p", "--experiment", 'e"\\', "--start", HOUR_AGO) == 0
        found = samples(output)
        for of_name in found.values():
            assert {(one.labels["project"], one.labels["experiment"]) for one in of_name} == {("p", 'e"\\')}
        assert found["verl_run_start_timestamp_seconds"][0].value == pytest.approx(HOUR_AGO, abs=1e-3)
        assert HOUR_AGO <= min(at(one) for one in found["verl_step"]) < HOUR_AGO + 60


def test_two_attempts_are_one_run(backend: Build, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    journal_of(backend, folder, "grpo_v1")
    (folder / "latest_checkpointed_iteration.txt").write_text("3")
    journal, _ = journal_of(backend, folder, "grpo_v1")
    assert backfill(journal, "--output", tmp_path / "out.txt") == 0
    found = samples(tmp_path / "out.txt")
    assert {one.labels["attempt"] for one in found["verl_run_info"]} == {"1", "2"}
    assert len({one.labels["run_id"] for one in found["verl_run_info"]}) == 1
    steps = [step for step, _ in calls("grpo_v1")]
    assert [one.value for one in found["verl_step"] if one.value] == [step for step in (*steps, *steps) if step]


def test_promtool_and_prometheus_take_it(backend: Build, prometheus_bin: Path, tmp_path: Path) -> None:
    """A run with steps longer than Prometheus remembers, in blocks, is there like a live one at every moment of it."""
    path = tmp_path / "maths" / "first.jsonl"
    path.parent.mkdir()
    lines = [
        {"step": step, "data": {"actor/entropy": step / 7, 'odd key\\n"x"é': 1e-300 * step, "timing_s/step": 600.0}}
        for step in range(1, 25)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    start = round(time.time()) - 6 * 3600
    assert backfill(path, "--output", tmp_path / "out.txt", "--start", start) == 0
    data = tmp_path / "prometheus"
    subprocess.run(
        [prometheus_bin / "promtool", "tsdb", "create-blocks-from", "openmetrics", tmp_path / "out.txt", data / "tsdb"],
        check=True,
        capture_output=True,
    )
    with Prometheus(prometheus_bin, data, {}) as prometheus:
        for key, expected in (("actor/entropy", [step / 7 for step in range(1, 25)]), ('odd key\\n"x"é', None)):
            quoted = json.dumps(key, ensure_ascii=False)
            ((_, held),) = prometheus.samples(f'{{key={quoted},__name__!~".*_total"}}', minutes=7 * 60)
            ends = {round(at): value for at, value in held}
            expected = expected or [1e-300 * step for step in range(1, 25)]
            assert [ends[start + 600 * step] for step in range(1, 25)] == expected
        for at in range(start + 610, start + 24 * 600, 97):
            ((_, step),) = prometheus.query(f"verl_step @ {at}")
            assert step == (at - start) // 600
        ((_, count),) = prometheus.query(f"verl_step_duration_seconds_count @ {start + 24 * 600}")
        assert count == 24


def test_it_can_be_pushed(
    backend: Build, newest_prometheus_bin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, _ = journal_of(backend, tmp_path / "run", "grpo_v1")
    flags = ("--web.enable-remote-write-receiver",)
    with Prometheus(newest_prometheus_bin, tmp_path / "prometheus", {}, flags=flags) as prometheus:
        url = f"{prometheus.url}/api/v1/write"
        assert backfill(journal, "--push", url) == 0
        for key, expected in logged("grpo_v1").items():
            if not catalog.load().series(key).retained:
                family = catalog.load().series(key).family
                ((_, held),) = prometheus.samples(f"{family}{{key={json.dumps(key)}}}")
                assert same([value for _, value in held], expected), key
        capsys.readouterr()
        assert backfill(journal, "--push", url, "--start", time.time() - 7 * 86400) == 1
        assert "out_of_order_time_window" in capsys.readouterr().err


def test_a_push_goes_as_the_environment_says(backend: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, _ = journal_of(backend, tmp_path / "run", "sft")
    monkeypatch.setenv("VERL_PROMETHEUS_REMOTE_WRITE_HEADERS", "X-Scope-OrgID=rl")
    with Receiver() as receiver:
        assert backfill(journal, "--push", receiver.url) == 0
        assert {request.headers["x-scope-orgid"] for request in receiver.requests} == {"rl"}


def test_a_folder_is_all_that_is_in_it(backend: Build, others: Path, tmp_path: Path) -> None:
    folder = tmp_path / "all"
    shutil.copytree(others / "file", folder / "file")
    journal_of(backend, folder / "run", "sft")
    assert backfill(folder, "--output", tmp_path / "out.txt") == 0
    projects = {one.labels["project"] for one in samples(tmp_path / "out.txt")["verl_step"]}
    assert projects == {"maths", "project"}


def test_parts_of_a_journal_are_one_file(backend: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl_prometheus.journal.PART_BYTES", 20_000)
    monkeypatch.setattr("verl_prometheus.recorder.BATCH", 1)
    journal, _ = journal_of(backend, tmp_path, "grpo_v1")
    assert len(parts(journal)) > 1
    assert backfill(*tmp_path.glob("**/journal*.jsonl"), "--output", tmp_path / "out.txt") == 0
    found = samples(tmp_path / "out.txt")
    assert [one.value for one in found["verl_step"] if one.value] == [step for step, _ in calls("grpo_v1") if step]
    assert found["verl_steps_total"][-1].value == len({step for step, _ in calls("grpo_v1") if step})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is none of these"),
        (b"root:x:0:0\n", "is none of these"),
        (b'{"a": 1}\n', "is none of these"),
        (b"\x89PNG\r\n", "is none of these"),
        (struct.pack("<QI", 10, 0) * 10, "is none of these"),
        (b'{"step": 1, "data": {}}\n{"step": "x", "data": {}}\n', "line 2: not a line of verl's `file` logger"),
    ],
)
def test_any_other_file_is_a_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    assert backfill(path, "--output", tmp_path / "out.txt") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.txt").exists()


def test_what_is_not_there_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert backfill(tmp_path / "none.jsonl") == 2
    assert "none.jsonl" in capsys.readouterr().err
    assert backfill(tmp_path) == 2
    assert "holds no file named like" in capsys.readouterr().err
    assert backfill(FOLDER / "sft.jsonl", "--push", "prometheus:9090") == 2
    assert "remote_write.url is 'prometheus:9090': it must be an http" in capsys.readouterr().err
    assert backfill(FOLDER / "sft.jsonl", "--labels", "job=x") == 2
    with pytest.raises(SystemExit):
        backfill(FOLDER / "sft.jsonl", "--start", "yesterday")


@pytest.mark.parametrize(("library", "pattern"), [("tensorboard", TENSORBOARD), ("wandb", WANDB)])
def test_a_missing_library_is_named(
    others: Path, library: str, pattern: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [*filter(lambda name: name.split(".")[0] == library, sys.modules), library]:
        monkeypatch.setitem(sys.modules, name, None)
    assert backfill(*others.glob(pattern)) == 2
    assert "pip install 'verl-prometheus[backfill]'" in capsys.readouterr().err


def test_the_bar_is_for_terminals_only(
    others: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = others.glob(FILE_LOG)
    backfill(path, "--output", tmp_path / "out.txt")
    assert "%" not in capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    backfill(path, "--output", tmp_path / "out.txt")
    assert "%" in capsys.readouterr().err
