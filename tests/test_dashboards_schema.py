"""The dashboards against the types that Grafana generates from its schema, of both major versions."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.dashboards import FOLDER

NODE = Path(__file__).parent / "grafana_node"


def check(major: int, *boards: Path) -> subprocess.CompletedProcess[str]:
    if not (NODE / "node_modules").is_dir():
        raise RuntimeError("tests/grafana_node/node_modules is missing: run `npm ci` in tests/grafana_node")
    command = ["node", str(NODE / "schema.mjs"), str(major), *map(str, boards)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("major", [12, 13])
def test_boards_are_of_the_schema(major: int) -> None:
    answer = check(major, *sorted(FOLDER.glob("*.json")))
    assert answer.returncode == 0, answer.stderr


SPOILT: dict[str, Callable[[dict[str, Any]], object]] = {
    "property": lambda board: board.update(refreshes="30s"),
    "type": lambda board: board["panels"][1]["gridPos"].update(w="17"),
    "choice": lambda board: board["panels"][4]["fieldConfig"]["defaults"]["custom"].update(drawStyle="line and bars"),
    "option": lambda board: board["panels"][1]["options"].update(cellHeights="sm"),
    "override": lambda board: board["panels"][1]["fieldConfig"]["overrides"][0]["properties"].append(
        {"id": "custom.colour", "value": "red"}
    ),
}


def test_the_check_finds_mistakes(tmp_path: Path) -> None:
    for name, spoil in SPOILT.items():
        board = json.loads((FOLDER / "verl-overview.json").read_text("utf-8"))
        spoil(board)
        tmp_path.joinpath(f"{name}.json").write_text(json.dumps(board))
    answer = check(12, *sorted(tmp_path.iterdir()))
    assert answer.returncode == 1
    found = {line.partition(".json: ")[0] for line in answer.stderr.splitlines() if ".json: line" in line}
    assert found == {str(tmp_path / name) for name in SPOILT}
