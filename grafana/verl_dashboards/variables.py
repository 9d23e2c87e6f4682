"""What the reader chooses at the top of a board."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import DatasourceVariable, IntervalVariable, QueryVariable
from grafana_foundation_sdk.models.dashboard import VariableOption, VariableRefresh, VariableSort

from verl_dashboards.queries import DATASOURCE

# Selector of the series that name the runs or nodes to choose from.
_RUNS = "verl_run_info"
_WINDOWS = ("1m", "10m", "30m", "1h", "3h", "12h")


def datasource() -> DatasourceVariable:
    return DatasourceVariable("datasource").label("Data source").type("prometheus").description("A Prometheus.")


def project(family: str = _RUNS) -> QueryVariable:
    return _label("project", "Project", f"label_values({family}, project)", "verl's trainer.project_name.")


def experiment(family: str = _RUNS) -> QueryVariable:
    query = f'label_values({family}{{project=~"$project"}}, experiment)'
    return _label("experiment", "Experiment", query, "verl's trainer.experiment_name; several are drawn together.")


def node() -> QueryVariable:
    return _label("node", "Node", "label_values(verl_gpu_up, node)", "Machines with a GPU agent.")


def window() -> IntervalVariable:
    """How far back quantiles look: long enough for several steps."""
    return (
        IntervalVariable("window")
        .label("Quantiles over")
        .description("How much time a quantile looks back on; take several steps.")
        .values(",".join(_WINDOWS))
        .current(VariableOption(text="30m", value="30m", selected=True))
        .options([VariableOption(text=one, value=one, selected=one == "30m") for one in _WINDOWS])
    )


def key(default: str) -> QueryVariable:
    """Any verl key that the chosen runs log."""
    return (
        QueryVariable("key")
        .label("verl key")
        .description("Any key that verl logs, verbatim.")
        .datasource(DATASOURCE)
        .query(
            {
                "qryType": 5,
                "query": 'label_values({__name__=~"verl_.+",key!="",project=~"$project",experiment=~"$experiment"}, key)',
                "refId": "key",
            }
        )
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(False)
        .current(VariableOption(text=default, value=default, selected=True))
    )


def _label(name: str, label: str, query: str, description: str) -> QueryVariable:
    return (
        QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(DATASOURCE)
        .query({"qryType": 1, "query": query, "refId": name})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.NATURAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(text="All", value="$__all", selected=True))
    )
