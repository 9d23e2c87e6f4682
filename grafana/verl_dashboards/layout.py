"""A drawing of a board for the docs: its grid, titles and questions. No data: only what is in the JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from html import escape
from typing import Any

WIDTH, UNIT = 40, 15  # pixels of a column and of a line of Grafana's grid
SMALL = "font-size='11' fill='#6b7280'"
KINDS = {
    "timeseries": "lines",
    "table": "table",
    "bargauge": "bars",
    "state-timeline": "timeline",
    "heatmap": "heatmap",
    "trend": "lines over steps",
    "xychart": "points",
}


def draw(board: dict[str, Any]) -> str:
    """The board (as JSON) as SVG, collapsed rows opened."""
    shapes: list[str] = []
    y = 0
    for row in board["panels"]:
        if row["type"] != "row":
            continue
        y += 8
        shapes.append(
            f"<text x='4' y='{y + 16}' font-size='14' font-weight='600' fill='#111827'>{escape(row['title'])}</text>"
        )
        y += 24
        panels = _panels_of(board, row)
        top = min(panel["gridPos"]["y"] for panel in panels)
        for panel in panels:
            shapes.extend(_panel(panel, y - top * UNIT))
        y += UNIT * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] - top for panel in panels)
    size = f"width='{24 * WIDTH}' height='{y + 8}' viewBox='0 0 {24 * WIDTH} {y + 8}'"
    background = f"<rect width='100%' height='{y + 8}' fill='#ffffff'/>"
    body = "\n".join([background, *shapes])
    font = "font-family='Inter, Helvetica, Arial, sans-serif'"
    return f"<svg xmlns='http://www.w3.org/2000/svg' {size} {font}>\n{body}\n</svg>\n"


def _panels_of(board: dict[str, Any], row: dict[str, Any]) -> list[dict[str, Any]]:
    """What follows the row until the next, or what is in it where it is collapsed."""
    if row["panels"]:
        return list(row["panels"])
    after = board["panels"][board["panels"].index(row) + 1 :]
    found = []
    for one in after:
        if one["type"] == "row":
            break
        found.append(one)
    return found


def _panel(panel: dict[str, Any], shift: int) -> Iterator[str]:
    place = panel["gridPos"]
    x, y = place["x"] * WIDTH + 4, place["y"] * UNIT + shift + 4
    width, height = place["w"] * WIDTH - 8, place["h"] * UNIT - 8
    yield f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='4' fill='#f3f4f6' stroke='#d1d5db'/>"
    yield f"<text x='{x + 10}' y='{y + 20}' font-size='13' font-weight='600' fill='#1f2937'>{escape(panel['title'])}</text>"
    yield f"<text x='{x + width - 10}' y='{y + height - 9}' text-anchor='end' {SMALL}>{KINDS[panel['type']]}</text>"
    question = panel["description"].partition("?")[0] + "?" * ("?" in panel["description"])
    lines = textwrap.wrap(question, (width - 20) // 6)[: (height - 50) // 15]
    for number, line in enumerate(lines):
        yield f"<text x='{x + 10}' y='{y + 38 + 15 * number}' {SMALL}>{escape(line)}</text>"
