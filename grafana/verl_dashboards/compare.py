"""Compare runs: any number of them, over their steps."""

from __future__ import annotations

from grafana_foundation_sdk.builders import trend
from grafana_foundation_sdk.models.dashboard import DataTransformerConfig as Transformation

from verl_dashboards import variables
from verl_dashboards.board import Board, Section
from verl_dashboards.panels import Common, by_step, rows
from verl_dashboards.queries import BY_RUN, RUNS, Query, signal

_STEP = Query(f"max {BY_RUN} (verl_step{{{RUNS}}})", kind="table_range")


def _over_steps(
    title: str, question: str, value: str, *, unit: str = "short", logarithmic: bool = False, width: int = 8
) -> trend.Panel:
    parts = Common(
        title,
        question,
        (width, 9),
        [_STEP, Query(f"{value} and on (project, experiment) {_STEP.expr}", kind="table_range")],
        unit=unit,
    )
    return by_step(parts, logarithmic=logarithmic)


def _matrix(row: str, value: str) -> list[Transformation]:
    """One row a `row`, one column an experiment."""
    options = {"columnField": "experiment", "rowField": row, "valueField": value, "emptyValue": "empty"}
    return [Transformation("groupingToMatrix", options=options)]


# Hyperparameters of the chosen runs, also of those that have ended within the time range.
_CONFIG = f"last_over_time(verl_run_config_info{{{RUNS}}}[$__range])"
_SEVERAL_VALUES = f"count by (path) (count by (path, value) ({_CONFIG})) > 1"
_NOT_IN_ALL = (
    f"count by (path) (count by (path, experiment) ({_CONFIG})) < scalar(count(count by (experiment) ({_CONFIG})))"
)

differences = rows(
    Common(
        title="Hyperparameters that differ",
        question="What was changed? Those of the exporter's allow-list whose value is not the same in all "
        "chosen runs,"
        " or that some of them do not set. ",
        size=(12, 10),
        queries=[
            Query(
                f"group by (path, value, experiment) ({_CONFIG}) and on (path) ({_SEVERAL_VALUES} or {_NOT_IN_ALL})",
                kind="table",
            )
        ],
        no_value="nothing differs, or only one run is chosen",
    ),
    _matrix("path", "value"),
)

validation = rows(
    Common(
        title="Final validation",
        question="Which run is best? Last measurement of every core metric in the time range.",
        size=(12, 10),
        queries=[
            Query(
                f'max by (key, experiment) (last_over_time(verl_validation{{tier="core",{RUNS}}}[$__range]))',
                kind="table",
            )
        ],
        no_value="no run has validated",
    ),
    _matrix("key", "Value"),
)

validated = _over_steps(
    "Validation over steps",
    "Who learns faster? Mean over a run's core metrics.",
    f"max {BY_RUN} (run:verl_validation:avg{{{RUNS}}})",
)

BOARD = Board(
    uid="verl-compare",
    title="verl: compare runs",
    question="How do runs differ, step by step? All axes count steps, not time.",
    sections=[
        Section(
            "Learning over steps (RL runs; an SFT run logs none of these)",
            [
                _over_steps("Reward over steps", "Who learns more from the same number of steps?", signal("reward")),
                validated,
                _over_steps(
                    "KL to the reference over steps", "What does it cost? Nats per token.", signal("reference_kl")
                ),
                _over_steps("Entropy over steps", "Who keeps exploring? Nats per token.", signal("entropy")),
                _over_steps(
                    "Response length over steps",
                    "Whose answers grow?",
                    f'max {BY_RUN} (verl_response_length_tokens{{stat="mean",{RUNS}}})',
                ),
                _over_steps("Throughput over steps", "Who is fast? Tokens per second and GPU.", signal("throughput")),
            ],
        ),
        Section("What was different, and what came out (RL runs for the validation)", [differences, validation]),
        Section(
            "Any run",
            [
                _over_steps(
                    "Gradient norm over steps", "Whose updates are larger?", signal("grad_norm"), logarithmic=True
                ),
                _over_steps(
                    "Step duration over steps", "Who takes longer for a step?", signal("step_duration"), unit="s"
                ),
                _over_steps(
                    "$key over steps",
                    "Any key that verl logs: pick it at the top of the board.",
                    f'max {BY_RUN} ({{__name__=~"verl_.+",key="$key",{RUNS}}})',
                ),
            ],
        ),
        Section(
            "Loss over steps (SFT runs)",
            [_over_steps("Loss over steps", "Who fits the data sooner?", signal("loss"), width=24)],
        ),
    ],
    variables=[variables.key("perf/max_memory_allocated_gb")],
    since="now-24h",
)
