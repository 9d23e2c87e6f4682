"""A board: rows of panels, with the variables, annotations and links that all boards share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, RowPanel

from verl_dashboards import events, links, variables


@dataclass(frozen=True)
class Section:
    """A row. Its title says what the panels in it need, if that is more than any run has."""

    title: str
    panels: Sequence[Any]
    collapsed: bool = False


@dataclass(frozen=True)
class Board:
    """One dashboard. `question`: what it answers. `variables`: besides data source, project and experiment."""

    uid: str
    title: str
    question: str
    sections: Sequence[Section]
    variables: Sequence[Any] = ()
    runs_from: str = "verl_run_info"  # series that name the projects and experiments to choose from
    since: str = "now-6h"


def render(board: Board) -> str:
    """The board as Grafana's JSON, ids in order of reading."""
    builder = (
        Dashboard(board.title)
        .uid(board.uid)
        .description(board.question)
        .tags([links.TAG])
        .readonly()
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time(board.since, "now")
        .refresh("30s")
        .link(links.boards())
        .annotations(events.all_of_them())
    )
    chosen = (
        variables.datasource(),
        variables.project(board.runs_from),
        variables.experiment(board.runs_from),
        *board.variables,
    )
    for variable in chosen:
        builder.with_variable(variable)
    for section in board.sections:
        row = Row(section.title)
        if section.collapsed:
            for panel in section.panels:
                row.with_panel(deepcopy(panel))
            builder.with_row(row)
        else:
            builder.with_row(row)
            for panel in section.panels:
                builder.with_panel(deepcopy(panel))  # it may be on several boards, each with its place
    dashboard = builder.build()
    _number(dashboard.panels or [])
    plain = json.loads(json.dumps(dashboard, cls=JSONEncoder))
    _remove_what_grafana_no_longer_knows(plain)
    return json.dumps(plain, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _number(panels: Sequence[Any]) -> None:
    number = 0
    for panel in panels:
        inner = panel.panels if isinstance(panel, RowPanel) else []
        for one in (panel, *inner):
            number += 1
            one.id_val = number


def _remove_what_grafana_no_longer_knows(board: dict[str, Any]) -> None:
    """Properties that the SDK writes unasked and that Grafana's schema of 12.3 does not have any more."""
    for variable in board["templating"]["list"]:
        for name in ("auto", "auto_count", "auto_min", "definition"):
            variable.pop(name, None)
    for panel in board["panels"]:
        for one in (panel, *panel.get("panels", ())):
            one.get("options", {}).pop("footer", None)
