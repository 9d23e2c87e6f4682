"""PromQL that several boards use."""

from __future__ import annotations

from dataclasses import dataclass

from grafana_foundation_sdk.builders import prometheus as builders
from grafana_foundation_sdk.models.common import DataSourceRef
from grafana_foundation_sdk.models.prometheus import PromQueryFormat, QueryEditorMode

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

# Of runs; of what may run without one: GPU agents of a node, rollout engines.
RUNS = 'project=~"$project",experiment=~"$experiment"'
ANYBODY = 'project=~"($project)|",experiment=~"($experiment)|"'
GPUS = f'{ANYBODY},node=~"$node"'

BY_RUN = "by (project, experiment)"


@dataclass(frozen=True)
class Query:
    """One query of a panel. `legend` is Grafana's template of the series' name; `kind` how the answer is read.

    kind: "range" (a time series), "instant" (its last value), "table" or "table_range" (rows with a column a label),
    "heatmap" (buckets of a histogram).
    """

    expr: str
    legend: str = "__auto"
    kind: str = "range"

    def build(self, ref: str) -> builders.Dataquery:
        query = (
            builders.Dataquery()
            .ref_id(ref)
            .datasource(DATASOURCE)
            .expr(self.expr)
            .legend_format(self.legend)
            .editor_mode(QueryEditorMode.CODE)
            .exemplar(False)
            .format(
                {
                    "table": PromQueryFormat.TABLE,
                    "table_range": PromQueryFormat.TABLE,
                    "heatmap": PromQueryFormat.HEATMAP,
                }.get(self.kind, PromQueryFormat.TIME_SERIES)
            )
        )
        return query.instant() if self.kind in ("instant", "table") else query.range()


def signal(name: str, family: str = "verl_signal", **labels: str) -> str:
    """A health signal of the selected runs, one series a run."""
    more = "".join(f',{label}="{value}"' for label, value in labels.items())
    return f'max {BY_RUN} ({family}{{signal="{name}"{more},{RUNS}}})'


def limit(alert: str) -> str:
    """The limit that the alert compares with, one series a run: the run's own, or what the rules derive."""
    return f'max {BY_RUN} (run:verl_alert_threshold:limit{{alert="{alert}",{RUNS}}})'


def quantile(q: float, family: str, selector: str, by: str = "project, experiment") -> str:
    """A quantile of what a histogram saw within the window that the variable `window` sets."""
    return f"histogram_quantile({q:g}, sum by (le, {by}) (increase({family}_bucket{{{selector}}}[$window])))"
