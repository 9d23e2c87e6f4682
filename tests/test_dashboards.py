"""The dashboards as files: current, complete, consistent."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.dashboards import FOLDER, ROOT, VARIABLE, Panel, all_panels, boards, panels
from verl_prometheus import catalog
from verl_prometheus.catalog_command import _examples

BOARDS = boards()
PANELS = all_panels()
NAMES = [panel.name for panel in PANELS]
UIDS = ["verl-compare", "verl-engines", "verl-gpus", "verl-overview", "verl-timing", "verl-training"]
GRAFANAS_OWN = {"__range", "__interval", "__rate_interval"}
RULES: dict[str, str] = {}  # record -> the expressions of all rules that make it
for _path in sorted((ROOT / "prometheus" / "rules").glob("*.yml")):
    for _rule in [rule for group in yaml.safe_load(_path.read_text())["groups"] for rule in group["rules"]]:
        if "record" in _rule:
            RULES[_rule["record"]] = RULES.get(_rule["record"], "") + "\n" + _rule["expr"]


def test_files_are_what_the_code_makes(tmp_path: Path) -> None:
    boards_made, drawings_made = tmp_path / "boards", tmp_path / "drawings"
    boards_made.mkdir()
    drawings_made.mkdir()
    command = [sys.executable, "-m", "verl_dashboards", str(boards_made), str(drawings_made)]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT / "grafana")}, check=True)
    for made, committed in ((boards_made, FOLDER), (drawings_made, ROOT / "docs" / "dashboards")):
        assert _texts(made) == _texts(committed), "run `make dashboards`"


def _texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in folder.iterdir()}


def test_uids_are_stable() -> None:
    assert sorted(BOARDS) == UIDS


def test_boards_cannot_be_edited_and_are_the_same_for_everybody() -> None:
    for board in BOARDS.values():
        assert board["editable"] is False
        assert board.get("id") is None
        assert board["tags"] == ["verl-prometheus"]
        assert board["description"].endswith((".", "?"))


def test_ids_and_titles_are_unique() -> None:
    assert len({board["title"] for board in BOARDS.values()}) == len(BOARDS)
    for board in BOARDS.values():
        ids = [one["id"] for one in board["panels"]] + [
            inner["id"] for one in board["panels"] if one["type"] == "row" for inner in one["panels"]
        ]
        assert len(ids) == len(set(ids))
        titles = Counter(panel.title for panel in panels(board))
        assert max(titles.values()) == 1, titles.most_common(3)
        rows = Counter(one["title"] for one in board["panels"] if one["type"] == "row")
        assert max(rows.values()) == 1


@pytest.mark.parametrize("panel", PANELS, ids=NAMES)
def test_a_panel_explains_itself(panel: Panel) -> None:
    assert "?" in panel.json["description"] or panel.json["description"].startswith("Any")
    defaults = panel.json["fieldConfig"]["defaults"]
    assert defaults["unit"]
    assert defaults["noValue"]
    links = [link["url"] for link in panel.json["links"]]
    assert any(url.endswith("docs/metrics.md") for url in links)
    assert 1 <= len(panel.targets) <= 9
    assert len({target["refId"] for target in panel.targets}) == len(panel.targets)
    for target in panel.targets:
        assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert bool(target.get("instant")) != bool(target.get("range"))


def test_runbook_links_name_alerts_that_exist() -> None:
    alerts = {
        rule["alert"].lower()
        for path in (ROOT / "prometheus" / "rules").glob("*.yml")
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    linked = {
        link["url"].partition("#")[2] for panel in PANELS for link in panel.json["links"] if "alerts.md" in link["url"]
    }
    assert linked <= alerts
    assert alerts - linked == set(), "alerts that no panel leads to"


def test_panels_fill_rows_without_overlap() -> None:
    for board in BOARDS.values():
        taken: set[tuple[int, int]] = set()
        for one in board["panels"]:
            position = one["gridPos"]
            assert position["x"] + position["w"] <= 24, one["title"]
            cells = {
                (x, y)
                for x in range(position["x"], position["x"] + position["w"])
                for y in range(position["y"], position["y"] + position["h"])
            }
            assert not cells & taken, one["title"]
            taken |= cells
        for panel in panels(board):
            assert panel.json["gridPos"]["w"] >= 6, "narrower cannot be read at 1280 px"


def test_variables_are_defined_and_shared() -> None:
    for board in BOARDS.values():
        defined = {variable["name"] for variable in board["templating"]["list"]}
        assert {"datasource", "project", "experiment"} <= defined
        expressions = [target["expr"] for panel in panels(board) for target in panel.targets]
        expressions += [annotation["target"]["expr"] for annotation in board["annotations"]["list"]]
        used = {match[1] or match[2] for text in expressions for match in VARIABLE.finditer(text)}
        assert used <= defined | GRAFANAS_OWN
        assert defined - used <= {"datasource", "project", "experiment"}


def test_boards_lead_to_each_other_with_the_same_runs_and_time() -> None:
    for board in BOARDS.values():
        (link,) = board["links"]
        assert (link["type"], link["tags"]) == ("dashboards", ["verl-prometheus"])
        assert link["includeVars"] is link["keepTime"] is True


def test_annotations_are_the_same_on_all_boards() -> None:
    for board in BOARDS.values():
        names = [one["name"] for one in board["annotations"]["list"]]
        assert names == ["Start", "Resume", "Checkpoint", "Validation", "Alerts"]


def test_nothing_newer_than_grafana_12() -> None:
    kinds = {panel.json["type"] for panel in PANELS}
    assert kinds <= {"timeseries", "table", "bargauge", "state-timeline", "heatmap", "trend", "xychart"}
    assert all(board["schemaVersion"] <= 42 for board in BOARDS.values())  # what 12.3 writes


def _expanded(expression: str) -> str:
    """With the expressions of the recorded series that it reads, and theirs."""
    seen: set[str] = set()
    text, waiting = expression, [expression]
    while waiting:
        one = waiting.pop()
        for name in RULES:
            if name in one and name not in seen:
                seen.add(name)
                waiting.append(RULES[name])
                text += "\n" + RULES[name]
    return text


def _families_drawn() -> set[str]:
    texts = [target["expr"] for panel in PANELS for target in panel.targets]
    texts += [one["target"]["expr"] for board in BOARDS.values() for one in board["annotations"]["list"]]
    names = set(re.findall(r"\bverl_[a-z0-9_]+", "\n".join(map(_expanded, texts))))
    return names | {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def _left_out() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = yaml.safe_load((ROOT / "grafana" / "not_drawn.yaml").read_text())
    return entries


def _contract() -> set[str]:
    shipped = catalog.load()
    logged = {shipped.series(key).family for rule in shipped.rules for key in _examples(rule)}
    return set(shipped.families) | logged


def test_every_metric_is_drawn_or_left_out_with_a_reason() -> None:
    drawn, entries = _families_drawn(), _left_out()
    patterns = {pattern: entry["because"] for entry in entries for pattern in entry["families"]}
    assert all(len(reason) > 20 for reason in patterns.values())
    matched = {
        name: [pattern for pattern in patterns if re.fullmatch(pattern, name)] for name in sorted(_contract() - drawn)
    }
    assert [name for name, found in matched.items() if not found] == []
    unused = set(patterns) - {pattern for found in matched.values() for pattern in found}
    assert unused == set(), "these are drawn, or are no metrics"


def test_no_panel_reads_a_metric_that_is_not_in_the_contract() -> None:
    text = "\n".join(target["expr"] for panel in PANELS for target in panel.targets)
    names = set(re.findall(r"(?<![:\w])verl_[a-z0-9_]+(?!:)\b", text))
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in names} <= _contract() | {
        "verl_",
        "verl_version",
    }  # a pattern, a label
