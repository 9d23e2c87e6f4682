"""Events on the time axis of every board: start, resume, checkpoint, validation, alerts."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import AnnotationQuery
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import AnnotationQuery as Annotation

from verl_dashboards.queries import DATASOURCE, RUNS, Query
from verl_dashboards.style import BAD, BLUE, GREEN, PURPLE, SKY

_STARTS = (
    f"1000 * verl_run_start_timestamp_seconds{{{RUNS}}}"
    " * on (project, experiment, job, instance) group_left (attempt, node) "
)
_VALIDATED = f"verl_validation_step{{{RUNS}}}"


def all_of_them() -> list[Builder[Annotation]]:
    """In the order of their switches; the frequent ones are off at first.

    Those with a time of their own stand where it says, not where it was scraped.
    """
    return [
        _at_value(
            "Start", SKY, _STARTS + f'verl_run_info{{attempt="1",{RUNS}}}', "start", "{{experiment}} on {{node}}"
        ),
        _at_value(
            "Resume",
            PURPLE,
            _STARTS + f'verl_run_info{{attempt!="1",{RUNS}}}',
            "resume: attempt {{attempt}}",
            "{{experiment}} on {{node}}",
        ),
        _at_value(
            "Checkpoint", BLUE, f"1000 * verl_checkpoint_timestamp_seconds{{{RUNS}}}", "checkpoint", "{{experiment}}"
        ).enable(False),
        _event(
            "Validation",
            GREEN,
            f"changes({_VALIDATED}[1m]) > 0 or {_VALIDATED} unless {_VALIDATED} offset 1m",
            "validation",
            "{{experiment}}",
        ).enable(False),
        _event(
            "Alerts",
            BAD,
            f'ALERTS{{alertstate="firing",alertname=~"Verl.*",{RUNS}}}',
            "{{alertname}}",
            "{{experiment}} {{severity}}",
        ),
    ]


def _at_value(name: str, color: str, expr: str, title: str, text: str) -> AnnotationQuery:
    return _event(name, color, expr, title, text).use_value_for_time(True)


def _event(name: str, color: str, expr: str, title: str, text: str) -> AnnotationQuery:
    return (
        AnnotationQuery()
        .name(name)
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color(color)
        .target(Query(expr).build("Anno").interval("60s"))
        .title_format(title)
        .text_format(text)
    )
