"""Where panels lead: runbooks, metric descriptions, the other boards."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import DashboardLink
from grafana_foundation_sdk.models.dashboard import DashboardLinkType

DOCS = "https://github.com/verl-prometheus/verl-prometheus/blob/main/docs"
TAG = "verl-prometheus"


def runbook(alert: str) -> DashboardLink:
    return _document(f"Runbook of {alert}", f"{DOCS}/alerts.md#{alert.lower()}")


def metrics() -> DashboardLink:
    return _document("What these metrics mean", f"{DOCS}/metrics.md")


def boards() -> DashboardLink:
    """All boards, side by side, with the selection and the time range kept."""
    return (
        DashboardLink("verl")
        .type(DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .icon("external link")
        .tooltip("The other boards, same runs, same time")
        .as_dropdown(False)
        .include_vars(True)
        .keep_time(True)
        .target_blank(False)
    )


def to_board(uid: str) -> str:
    """URL of a board for the run in the clicked row of a table, in the same time range."""
    return (
        f"/d/{uid}?var-project=${{__data.fields.project}}&var-experiment=${{__data.fields.experiment}}"
        "&${datasource:queryparam}&${__url_time_range}"
    )


def _document(title: str, url: str) -> DashboardLink:
    return DashboardLink(title).type(DashboardLinkType.LINK).icon("doc").tooltip(title).url(url).target_blank(True)
