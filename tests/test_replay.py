"""`verl-prometheus replay`: logs of runs in, alerts out; and the same log served live."""

from __future__ import annotations

import gzip
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from helpers.fixtures import calls
from helpers.prometheus import free_port
from helpers.scrape import Scrape
from helpers.waiting import wait_for
from verl_prometheus import cli
from verl_prometheus.backend import PrometheusBackend
from verl_prometheus.gpu.recorded import read_samples
from verl_prometheus.phase_spans import PhaseSpan, phase_spans, step_seconds
from verl_prometheus.replay_command import LONGEST_INTERVAL, SHIPPED_RULES, Alert, evaluate, interval, rule_files
from verl_prometheus.rule_evaluation import Recording, evaluation_order
from verl_prometheus.run import Call
from verl_prometheus.run_log import Ending, LoggedRun, read
from verl_prometheus.samples import REWARD, SAMPLES
from verl_prometheus.virtual_scrapes import LEAD_SECONDS, VirtualRun

Lines = Iterable[Mapping[str, Any]]
CONFIG = {"data": {"max_response_length": 64}, "trainer": {"total_training_steps": 60}}


@pytest.fixture
def log(tmp_path: Path) -> Callable[[Lines], Path]:
    def write(lines: Lines) -> Path:
        path = tmp_path / "run.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return write


def steps(number: int = 60, seconds: float = 2.0, **change: Any) -> list[dict[str, Any]]:
    """A run without times. `change`: step_<n> -> what its data is changed by."""
    return [
        {
            "step": step,
            "data": {
                "actor/grad_norm": 0.5 + 0.01 * (step % 7),
                "actor/entropy": 0.6,
                "critic/rewards/mean": 0.4 + 0.005 * (step % 3),
                "timing_s/gen": 0.7 * seconds,
                "timing_s/update_actor": 0.3 * seconds,
                "timing_s/step": seconds,
                **change.get(f"step_{step}", {}),
            },
        }
        for step in range(1, number + 1)
    ]


def load(path: Path, ending: Ending | None = None) -> LoggedRun:
    return read(path, {}, ending, 10.0)


def alerts(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[dict[str, Any]]:
    assert cli.main(["replay", "--json", *map(str, arguments)]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def urgent(found: list[dict[str, Any]]) -> set[str]:
    return {one["alert"] for one in found if one["severity"] != "info"}


# --- reading ----------------------------------------------------------------------------------------------------------


def test_without_times_a_step_takes_as_long_as_its_durations_say(log: Callable[[Lines], Path]) -> None:
    run = load(log(steps(3, seconds=2.0, step_2={"timing_s/testing": 7.0})))
    assert run.begin == 0
    assert [round(one, 6) for one in run.step_durations] == [9.0, 2.0]
    assert run.end == pytest.approx(13.0)


def test_without_times_and_durations_a_step_takes_what_the_caller_says(log: Callable[[Lines], Path]) -> None:
    lines = [{"step": step, "data": {"train/loss": 1.0}} for step in (1, 2, 2, 3)]
    assert load(log(lines)).end == 30.0


def test_times_in_the_log_count(log: Callable[[Lines], Path]) -> None:
    lines = [{**line, "time": 1000.0 + 5 * line["step"]} for line in steps(4)]
    run = load(log(lines))
    assert (run.begin, run.end) == (1003.0, 1020.0)


def test_null_is_nan_and_text_is_no_number(log: Callable[[Lines], Path], tmp_path: Path) -> None:
    path = log([{"step": 1, "data": {"actor/pg_loss": None, "a/text": "x"}}])
    zipped = tmp_path / "zipped.jsonl.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    for one in (path, zipped):
        run = load(one)
        state = run.attempts[0].run_state()
        state.replay(run.entries[1])  # type: ignore[arg-type]
        assert math.isnan(state.snapshot.values["actor/pg_loss"])
        assert state.snapshot.dropped == {"text": 1}
    assert load(zipped).experiment == "zipped"


@pytest.mark.parametrize(
    ("lines", "how", "phase"),
    [
        ([], "finished", ""),
        ([{"end": "failed", "time": 99.0}], "failed", ""),
        ([{"end": "hung", "phase": "gen", "time": 99.0}], "hung", "gen"),
    ],
)
def test_the_log_says_how_the_run_ended(log: Callable[[Lines], Path], lines: Lines, how: str, phase: str) -> None:
    run = load(log([*steps(3), *lines]))
    assert (run.ending.how, run.ending.phase) == (how, phase)
    assert load(log([*steps(3), *lines]), Ending("killed")).ending.how == "killed"


def test_the_config_in_front_gives_limits_and_settings(log: Callable[[Lines], Path]) -> None:
    config = {
        **CONFIG,
        "trainer": {"total_training_steps": 9, "prometheus": {"window": 7, "thresholds": {"VerlKLExplosion": 3}}},
    }
    (attempt,) = load(log([{"config": config}, *steps(3)])).attempts
    assert attempt.response_limit == 64
    assert attempt.identity.step_target == 9
    assert attempt.lengths.window == 7
    assert attempt.thresholds == {"VerlKLExplosion": 3}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no step is logged"),
        ('{"step": 1, "data": {}}\n{"step": 2}', "line 2.*file logger"),
        ('{"step": 1, "data"', "line 1"),
        ('{"end": "vanished"}', "line 1.*finished"),
        ("[]", "line 1"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, text: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason):
        load(path)
    assert cli.main(["replay", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_a_journal_is_a_log(backend: Callable[..., PrometheusBackend], tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    one = backend(journal=str(path))
    for line in steps(5):
        SAMPLES.add(REWARD, [0.0, 1.0])
        one.log(line["data"], line["step"])
    one.finish(exit_code=1)
    run = load(path)
    assert run.ending.how == "failed"
    assert run.step_at(math.inf) == 5
    assert [sum(entry.samples[REWARD].counts) for entry in run.entries if isinstance(entry, Call)] == [2] * 5
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert load(path).ending.how == "killed"


# --- phases -----------------------------------------------------------------------------------------------------------


def test_phases_follow_each_other_within_the_step_and_after_it() -> None:
    values = {"timing_s/gen": 2.0, "timing_s/update_actor": 1.0, "timing_s/step": 4.0, "timing_s/testing": 3.0}
    assert phase_spans(values, logged=10.0, earliest=0.0) == [
        PhaseSpan("step", 3.0, 7.0),
        PhaseSpan("gen", 3.0, 5.0),
        PhaseSpan("update_actor", 5.0, 6.0),
        PhaseSpan("testing", 7.0, 10.0),
    ]
    assert step_seconds(values) == 7.0


def test_phases_never_reach_into_another_step() -> None:
    values = {"timing_s/gen": 2.0, "timing_s/step": 4.0, "timing_s/agent_loop/generate_sequences/mean": 99.0}
    assert phase_spans(values, logged=10.0, earliest=9.0) == [PhaseSpan("step", 9.0, 10.0), PhaseSpan("gen", 9.0, 10.0)]
    assert phase_spans({"actor/pg_loss": 1.0}, logged=10.0, earliest=9.0) == []


# --- scrapes ----------------------------------------------------------------------------------------------------------

NAMES = {"up", "verl_step", "verl_run_state", "verl_phase_active", "verl_last_step_timestamp_seconds"}


def seen(scrape: Mapping[Any, float]) -> dict[str, float]:
    """By name, and by what else tells the samples apart."""
    found = {}
    for (name, labels), value in scrape.items():
        tags = dict(labels)
        found[" ".join(filter(None, (name, tags.get("state"), tags.get("phase"))))] = value
    return found


def test_a_scrape_sees_the_run_at_its_time(log: Callable[[Lines], Path]) -> None:
    run = VirtualRun(load(log(steps(5, seconds=10.0))), NAMES)
    assert run.scrape(LEAD_SECONDS - 1) == {}
    starting = seen(run.scrape(LEAD_SECONDS + 5))
    assert (starting["up"], starting["verl_run_state starting"]) == (1, 1)
    assert "verl_step" not in starting
    assert (starting["verl_phase_active step"], starting["verl_phase_active gen"]) == (1, 1)
    second = seen(run.scrape(LEAD_SECONDS + 28))
    assert second["verl_step"] == 2
    assert second["verl_last_step_timestamp_seconds"] == LEAD_SECONDS + 20
    assert (second["verl_phase_active gen"], second["verl_phase_active update_actor"]) == (0, 1)


def test_the_end_is_seen_once(log: Callable[[Lines], Path]) -> None:
    run = VirtualRun(load(log(steps(5)), Ending("failed")), NAMES)
    assert seen(run.scrape(run.end))["verl_run_state failed"] == 1
    assert run.scrape(run.end + 15) == {}


def test_a_killed_run_stays_a_target(log: Callable[[Lines], Path]) -> None:
    run = VirtualRun(load(log(steps(5)), Ending("killed")), NAMES)
    assert seen(run.scrape(run.end - 0.1))["up"] == 1
    assert seen(run.scrape(run.end + 15)) == {"up": 0}


def test_a_hung_run_stays_in_its_phase(log: Callable[[Lines], Path]) -> None:
    run = VirtualRun(load(log(steps(5)), Ending("hung", "gen")), NAMES)
    late = seen(run.scrape(run.end + 3600))
    assert (late["up"], late["verl_phase_active gen"], late["verl_phase_active update_actor"]) == (1, 1, 0)


def test_a_recording_writes_runs_gaps_and_what_is_no_number() -> None:
    recording = Recording(15)
    series = ("verl_step", (("experiment", 'a"b'),))
    for value in (None, 1.0, 1.0, 1.0, None, None, math.nan, math.nan, -math.inf, 2.5):
        recording.add({} if value is None else {series: value})
    (written,) = recording.input_series()
    assert written["series"] == 'verl_step{experiment="a\\"b"}'
    assert written["values"] == "_x1 1.0+0x2 stale _x1 NaN NaN -Inf 2.5 stale"


def test_groups_that_record_are_evaluated_before_those_that_read_it() -> None:
    order = evaluation_order(rule_files(SHIPPED_RULES))
    assert order.index("verl-records") < order.index("verl-limits") < order.index("verl-training")


@pytest.mark.parametrize(("hours", "seconds"), [(0.1, 15), (16, 15), (34, 45), (10_000, LONGEST_INTERVAL)])
def test_long_runs_are_scraped_less_often(hours: float, seconds: int) -> None:
    assert interval(hours * 3600) == seconds


# --- alerts -----------------------------------------------------------------------------------------------------------


def test_a_sound_run_raises_nothing_urgent(prometheus_bin: Path, log: Callable[[Lines], Path]) -> None:
    found = evaluate(load(log([{"config": CONFIG}, *steps()])), rule_files(SHIPPED_RULES), prometheus_bin / "promtool")
    assert [one for one in found if one.severity != "info"] == []


def test_a_nan_is_found_at_its_step(prometheus_bin: Path, log: Callable[[Lines], Path]) -> None:
    path = log(steps(step_31={"actor/grad_norm": None}, seconds=15.0))
    found = evaluate(load(path), rule_files(SHIPPED_RULES), prometheus_bin / "promtool")
    assert Alert("VerlNonFiniteValue", 31, 50, "page") in found


@pytest.mark.parametrize(
    ("end", "alert"),
    [("finished", None), ("failed", "VerlRunFailed"), ("killed", "VerlRunVanished"), ("hung:gen", "VerlRunStalled")],
)
def test_the_end_decides_what_fires_after_it(
    log: Callable[[Lines], Path], capsys: pytest.CaptureFixture[str], end: str, alert: str | None
) -> None:
    found = alerts(capsys, log([{"config": CONFIG}, *steps()]), "--end", end)
    assert urgent(found) == ({alert} if alert else set())
    assert all(one["first_step"] == one["last_step"] == 60 for one in found if one["alert"] == alert)


def test_steps_of_20_minutes_are_judged_alike(log: Callable[[Lines], Path], capsys: pytest.CaptureFixture[str]) -> None:
    lines = steps(60, 1200.0, **{f"step_{step}": {"actor/entropy": 0.001} for step in range(40, 61)})
    (collapse,) = (one for one in alerts(capsys, log(lines)) if one["severity"] != "info")
    assert collapse["alert"] == "VerlEntropyCollapse"
    assert 40 < collapse["first_step"] <= 60


def test_several_runs_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, change in (("sound", {}), ("sick", {"actor/grad_norm": None})):
        lines = [{"config": CONFIG}, *steps(step_20=change)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = alerts(capsys, tmp_path / "sound.jsonl", tmp_path / "sick.jsonl")
    assert {(one["run"], one["alert"]) for one in found if one["severity"] == "page"} == {
        ("sick", "VerlNonFiniteValue")
    }
    assert cli.main(["replay", *map(str, sorted(tmp_path.glob("*.jsonl")))]) == 0
    table = capsys.readouterr().out
    assert "sick: finished at step 60" in table
    assert "VerlNonFiniteValue" in table.partition("sound:")[0]


def test_a_run_of_verl_as_it_was_logged(capsys: pytest.CaptureFixture[str]) -> None:
    found = alerts(capsys, Path(__file__).parent / "fixtures" / "grpo_v1.jsonl")
    assert [set(one) for one in found] == [{"alert", "first_step", "last_step", "severity"}] * len(found)
    assert urgent(found) == set()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--promtool", "/nowhere/promtool"), "/nowhere/promtool"),
        (("--rules", "/nowhere"), "--rules"),
        (("--gpus", "/nowhere"), "/nowhere"),
        (("--config", "/nowhere"), "/nowhere"),
        (("--realtime", "0"), "--realtime"),
    ],
)
def test_bad_input_is_named(
    log: Callable[[Lines], Path], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], reason: str
) -> None:
    assert cli.main(["replay", str(log(steps(5))), *arguments]) == 2
    assert reason in capsys.readouterr().err


def test_broken_rules_are_reported(
    log: Callable[[Lines], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.yml").write_text("groups: [{name: a, rules: [{alert: A, expr: 'sum('}]}]")
    assert cli.main(["replay", str(log(steps(5))), "--rules", str(tmp_path)]) == 2
    assert "parse error" in capsys.readouterr().err


# --- GPUs -------------------------------------------------------------------------------------------------------------


def test_recorded_gpus_raise_alerts(
    log: Callable[[Lines], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = tmp_path / "gpus.jsonl"
    fallen = {"last_xid": 79, "last_xid_timestamp": 80.0}
    samples.write_text(
        "".join(
            json.dumps(
                {
                    "time": time,
                    "node": "n1",
                    "gpus": [{"index": 0, "utilization_ratio": 0.9, **(fallen if time > 80 else {})}],
                }
            )
            + "\n"
            for time in range(0, 120, 5)
        )
    )
    (xid,) = (one for one in alerts(capsys, log(steps()), "--gpus", samples) if one["severity"] == "page")
    assert (xid["alert"], 40 <= xid["first_step"] <= 60) == ("VerlGpuXid", True)
    samples.write_text('{"time": 1, "gpus": [{"colour": "red"}]}')
    with pytest.raises(ValueError, match="line 1"):
        read_samples(samples)


def test_simulated_gpus_are_sound(log: Callable[[Lines], Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert urgent(alerts(capsys, log([{"config": CONFIG}, *steps()]), "--gpus", "2")) == set()


# --- live -------------------------------------------------------------------------------------------------------------


def test_a_run_is_served_again_until_it_is_killed(log: Callable[[Lines], Path], tmp_path: Path) -> None:
    lines = [{**line, "time": line["step"] * 10.0} for line in steps(30, seconds=10.0)]
    path, port, targets = log([*lines, {"end": "killed", "time": 305.0}]), free_port(), tmp_path / "targets"
    options = ["--realtime", "50", "--port", str(port), "--targets-dir", str(targets), "--gpus", "8"]
    process = subprocess.Popen(
        [sys.executable, "-m", "verl_prometheus.cli", "replay", str(path), *options], env={**os.environ}
    )
    try:
        url = f"http://127.0.0.1:{port}"
        found: list[Scrape] = []

        def scraped() -> bool:
            found.append(Scrape(url))
            return found[-1].value("verl_step") >= 10

        wait_for(scraped, "the run to reach step 10")
        last = found[-1]
        assert last.value("verl_step") < 30
        assert {labels["gpu"] for labels in last.label_sets("verl_gpu_up")} == {*map(str, range(8))}
        assert any(one.value for one in last.samples if one.name == "verl_phase_active")
        assert process.wait(60) == -signal.SIGKILL
        assert len(list(targets.glob("*.json"))) == 1
    finally:
        process.kill()
        process.wait()


def test_fixtures_replay_as_they_are() -> None:
    """The reader takes verl's own file logger's lines: the same numbers as the tests' own reader."""
    path = Path(__file__).parent / "fixtures" / "sft.jsonl"
    run = load(path)
    assert [step for step, _ in calls("sft")] == [entry.step for entry in run.entries if hasattr(entry, "step")]
