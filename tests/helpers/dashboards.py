"""The committed dashboards: their panels, and their queries as Grafana would send them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "grafana" / "dashboards"
VARIABLE = re.compile(r"\$(?:([a-zA-Z_]\w*)|\{(\w+)(?::\w+)?\})")


@dataclass(frozen=True)
class Panel:
    """A panel, the title of its row and the uid of its board."""

    board: str
    section: str
    json: Mapping[str, Any]

    @property
    def title(self) -> str:
        return str(self.json["title"])

    @property
    def name(self) -> str:
        return f"{self.board} / {self.section} / {self.title}"

    @property
    def targets(self) -> list[dict[str, Any]]:
        return list(self.json["targets"])


def boards() -> dict[str, dict[str, Any]]:
    """uid -> board."""
    loaded = [json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))]
    return {board["uid"]: board for board in loaded}


def panels(board: Mapping[str, Any]) -> Iterator[Panel]:
    """In order of reading, also those in collapsed rows."""
    section = ""
    for one in board["panels"]:
        if one["type"] == "row":
            section = one["title"]
        for panel in one["panels"] if one["type"] == "row" else [one]:
            yield Panel(board["uid"], section, panel)


def all_panels() -> list[Panel]:
    return [panel for board in boards().values() for panel in panels(board)]


def filled(text: str, values: Mapping[str, str]) -> str:
    """`text` with its variables replaced. Raises KeyError for one that has no value."""
    return VARIABLE.sub(lambda match: values[match[1] or match[2]], text)
