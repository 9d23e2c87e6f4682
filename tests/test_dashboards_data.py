"""Every query of the dashboards on a real Prometheus with runs of every kind, and every panel in Grafana's own code."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from helpers.dashboards import Panel, all_panels, boards, filled
from helpers.loaded_prometheus import FAILING, GRPO, LEGACY, PPO, RESUMED, SFT, Loaded, loaded_prometheus

PANELS = all_panels()
NAMES = [panel.name for panel in PANELS]
BOARDS = boards()
NODE = Path(__file__).parent / "grafana_node"
# What the title of a row says that its panels need -> the run that has it; the first that fits. Others: every run.
NEEDS = {
    "SFT runs": SFT,
    "critic": PPO,
    "rollout_correction": PPO,
    "agent-loop": LEGACY,
    "GPU agent": GRPO,
    "vLLM": GRPO,
    "RL runs": GRPO,
}
EVERY_RUN = (SFT, GRPO, PPO, LEGACY)
ALL = ".*"
# Values that a panel with the unit may show.
RANGES = {
    "percentunit": (0.0, 1.01),
    "s": (0.0, 1e5),
    "bytes": (1.0, 1e15),
    "celsius": (10.0, 110.0),
    "watt": (10.0, 1e4),
    "kwatth": (0.0, 1e3),
    "reqps": (0.0, 1e4),
    "none": (0.0, 1e9),
    "sci": (0.0, 1.0),
    "short": (-1e4, 1e9),
}


@pytest.fixture(scope="session")
def loaded(newest_prometheus_bin: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    with loaded_prometheus(newest_prometheus_bin, tmp_path_factory.mktemp("dashboards") / "prometheus") as one:
        yield one


def meant_for(panel: Panel) -> tuple[str, ...]:
    named = [run for phrase, run in NEEDS.items() if phrase in panel.section and "every run" not in panel.section]
    return (named[0],) if named else EVERY_RUN


def values(loaded: Loaded, experiment: str) -> dict[str, str]:
    seconds = math.ceil(loaded.ended - loaded.began)
    return {
        "project": ALL,
        "experiment": experiment,
        "node": ALL,
        "window": "10m",
        "key": "perf/max_memory_allocated_gb" if experiment == SFT else "critic/rewards/mean",
        "__range": f"{seconds}s",
        "__interval": "1s",
        "__rate_interval": "5s",
    }


def ask(loaded: Loaded, target: Mapping[str, Any], experiment: str) -> list[dict[str, Any]]:
    expression = filled(target["expr"], values(loaded, experiment))
    return loaded.query_range(expression) if target.get("range") else loaded.query(expression)


def numbers(series: Mapping[str, Any]) -> list[float]:
    return [float(text) for _, text in series.get("values") or [series["value"]]]


@pytest.mark.parametrize("panel", PANELS, ids=NAMES)
def test_a_panel_has_data_for_the_runs_it_is_meant_for(loaded: Loaded, panel: Panel) -> None:
    for experiment in meant_for(panel):
        answers = [ask(loaded, target, experiment) for target in panel.targets]
        if panel.title in ONLY_IN_TROUBLE:
            continue
        assert any(answers), f"nothing for {experiment}"


# Empty while all is well.
ONLY_IN_TROUBLE = {"Firing alerts", "Hyperparameters that differ", "Errors, dropped values and NaN"}


@pytest.mark.parametrize(
    ("panel", "target"),
    [(panel, target) for panel in PANELS for target in panel.targets],
    ids=[f"{panel.name} {target['refId']}" for panel in PANELS for target in panel.targets],
)
def test_every_query_has_data_in_the_range_of_its_unit(loaded: Loaded, panel: Panel, target: Mapping[str, Any]) -> None:
    answer = ask(loaded, target, ALL)
    assert answer, target["expr"]
    if panel.json["type"] == "table":
        return
    low, high = RANGES[panel.json["fieldConfig"]["defaults"]["unit"]]
    seen = [value for series in answer for value in numbers(series) if math.isfinite(value)]
    assert seen, "only NaN"
    assert low <= min(seen)
    assert max(seen) <= high


@pytest.mark.parametrize(
    "panel", [panel for panel in PANELS if panel.title in ONLY_IN_TROUBLE], ids=lambda one: one.title
)
def test_trouble_shows(loaded: Loaded, panel: Panel) -> None:
    assert any(ask(loaded, target, f"{FAILING}|{GRPO}|{PPO}") for target in panel.targets)


@pytest.mark.parametrize("uid", sorted(BOARDS))
def test_variables_find_the_runs(loaded: Loaded, uid: str) -> None:
    for variable in BOARDS[uid]["templating"]["list"]:
        if variable["type"] != "query":
            continue
        query = filled(variable["query"]["query"], values(loaded, ALL))
        selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", query).groups()  # type: ignore[union-attr]
        found = set(loaded.label_values(label, selector))
        expected = {
            "project": {"demo"},
            "experiment": {GRPO, PPO, SFT, LEGACY, FAILING, RESUMED},
            "key": {"critic/rewards/mean", "train/loss", "val-core/tiny/add/acc/mean@1"},
        }
        if variable["name"] == "node":
            assert len(found) == 1
        else:
            assert expected[variable["name"]] <= found


ANNOTATIONS = {one["name"]: one for one in BOARDS["verl-overview"]["annotations"]["list"]}


@pytest.mark.parametrize(
    ("name", "experiment"),
    [
        ("Start", SFT),
        ("Resume", RESUMED),
        ("Checkpoint", GRPO),
        ("Validation", LEGACY),
        ("Alerts", FAILING),
        ("Alerts", GRPO),
    ],
)
def test_annotations_find_their_events(loaded: Loaded, name: str, experiment: str) -> None:
    annotation = ANNOTATIONS[name]
    answer = loaded.query_range(filled(annotation["target"]["expr"], values(loaded, experiment)))
    assert answer
    if annotation.get("useValueForTime"):
        for series in answer:
            for value in numbers(series):
                assert loaded.began <= value / 1000 <= loaded.ended, "not a time in milliseconds"
    shown = {
        name
        for text in (annotation["titleFormat"], annotation["textFormat"])
        for name in re.findall(r"{{(\w+)}}", text)
    }
    assert shown <= set(answer[0]["metric"])


# --- in Grafana's own code -------------------------------------------------------------------------------------------


@pytest.fixture(scope="session", params=[12, 13], ids=["grafana-12", "grafana-13"])
def drawn(loaded: Loaded, request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """Panel -> what that version of Grafana makes of it, for all runs together."""
    asked = [
        {"panel": panel.json, "answers": {target["refId"]: ask(loaded, target, ALL) for target in panel.targets}}
        for panel in PANELS
    ]
    if not (NODE / "node_modules").is_dir():
        raise RuntimeError("tests/grafana_node/node_modules is missing: run `npm ci` in tests/grafana_node")
    command = ["node", str(NODE / "panels.mjs"), str(request.param)]
    answer = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return dict(zip(NAMES, json.loads(answer.stdout), strict=True))


def fields(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [one for frame in result["frames"] for one in frame]


@pytest.mark.parametrize("panel", PANELS, ids=NAMES)
def test_overrides_and_options_name_fields_that_exist(drawn: dict[str, dict[str, Any]], panel: Panel) -> None:
    result = drawn[panel.name]
    for override in result["overrides"]:
        pattern = override["matcher"]["options"]
        if isinstance(pattern, str) and pattern.strip("/^$") in NOT_IN_EVERY_RUN:
            continue
        assert override["fields"], f"no field for {pattern}: {[one['name'] for one in fields(result)]}"
    for series in result["series"]:
        assert len(series) == 1
    for transformation in panel.json.get("transformations") or []:
        if transformation["id"] == "organize":
            named = {*transformation["options"]["renameByName"], *transformation["options"]["excludeByName"]}
            present = {name for frame in result["before"] for name in frame}
            assert named <= present


# Phases and roles that some runs don't have.
NOT_IN_EVERY_RUN = {"values", "reward", "update_critic", "testing", "save_checkpoint", "other"}


@pytest.mark.parametrize(
    "panel", [one for one in PANELS if one.json["type"] in ("trend", "xychart")], ids=lambda one: one.title
)
def test_step_axis(drawn: dict[str, dict[str, Any]], panel: Panel) -> None:
    (frame,) = drawn[panel.name]["frames"]
    (x,) = [one for one in frame if one["original"] == "Value #A\\experiment"]
    assert x["type"] == "number"
    assert x["values"] == sorted(set(x["values"])), "ascending, each step once"
    lines = [one for one in frame if one is not x]
    assert len(lines) >= (1 if "SFT" in panel.section else 2), "one line a run"
    assert all(one["type"] == "number" for one in lines)
    assert {one["name"] for one in lines} <= {GRPO, PPO, SFT, LEGACY, FAILING, RESUMED}
    if panel.json["type"] == "trend":
        assert panel.json["options"]["xField"] == x["original"]
        assert x["name"] == "step"
        assert len(x["values"]) > 20


def test_the_table_of_runs_has_one_row_a_run(drawn: dict[str, dict[str, Any]]) -> None:
    (frame,) = drawn["verl-overview / Now / Runs"]["frames"]
    columns = {one["name"]: one for one in frame}
    runs = columns["Experiment"]["values"]
    assert sorted(runs) == sorted({GRPO, PPO, SFT, LEGACY, FAILING, RESUMED})
    state = dict(zip(runs, columns["State"]["shown"], strict=True))
    assert state == {**dict.fromkeys((GRPO, PPO, SFT, LEGACY, RESUMED), "running"), FAILING: "failed"}
    (link,) = columns["Experiment"]["links"]
    assert f"var-experiment={runs[0]}" in link["href"]


def test_a_firing_alert_leads_to_its_runbook(drawn: dict[str, dict[str, Any]]) -> None:
    (frame,) = drawn["verl-overview / Now / Firing alerts"]["frames"]
    columns = {one["name"]: one for one in frame}
    assert {"VerlRunFailed", "VerlGpuXid"} <= set(columns["Alert"]["values"])
    (link,) = columns["Alert"]["links"]
    assert link["href"].endswith(f"docs/alerts.md#{columns['Alert']['values'][0].lower()}")


def test_hyperparameters_that_differ(drawn: dict[str, dict[str, Any]]) -> None:
    (name,) = [name for name in NAMES if name.endswith("Hyperparameters that differ")]
    (frame,) = drawn[name]["frames"]
    columns = {one["name"]: one["values"] for one in frame}
    paths = columns["path\\experiment"]
    assert "algorithm.adv_estimator" in paths
    assert "data.max_response_length" in paths  # not set for SFT
    row = paths.index("algorithm.adv_estimator")
    assert (columns[GRPO][row], columns[PPO][row]) == ("grpo", "gae")


def test_final_validation(drawn: dict[str, dict[str, Any]]) -> None:
    (name,) = [name for name in NAMES if name.endswith("Final validation")]
    (frame,) = drawn[name]["frames"]
    columns = {one["name"]: one["values"] for one in frame}
    assert "val-core/tiny/add/acc/mean@1" in columns["key\\experiment"]
    assert {GRPO, PPO, LEGACY} <= set(columns)
