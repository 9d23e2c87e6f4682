"""The dashboards against the types that Grafana generates from its schema, of both major versions."""

from __future__ import annotations

import json
import subprocess
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


def _wrong_property(board: dict[str, Any]) -> None:
    board["refreshes"] = "30s"


def _wrong_type(board: dict[str, Any]) -> None:
    board["panels"][1]["gridPos"]["w"] = "17"


def _wrong_choice(board: dict[str, Any]) -> None:
    board["panels"][4]["fieldConfig"]["defaults"]["custom"]["drawStyle"] = "line and bars"


@pytest.mark.parametrize("spoil", [_wrong_property, _wrong_type, _wrong_choice])
def test_the_check_finds(spoil: Any, tmp_path: Path) -> None:
    board = json.loads((FOLDER / "verl-overview.json").read_text("utf-8"))
    spoil(board)
    file = tmp_path / "spoilt.json"
    file.write_text(json.dumps(board))
    assert check(12, file).returncode == 1
