"""Run overview: where an on-call engineer begins."""

from __future__ import annotations

from verl_dashboards import links, style, variables
from verl_dashboards.board import Board, Section
from verl_dashboards.panels import Common, background, columns, lines, rows
from verl_dashboards.queries import ANYBODY, BY_RUN, RUNS, Query, limit, quantile, signal
from verl_dashboards.rules import alert_names
from verl_dashboards.style import BAD, GOOD, WARNING, Property

_FIRING = f'ALERTS{{alertstate="firing",alertname=~"Verl.*",{RUNS}}}'


def _last(family: str, selector: str = RUNS) -> str:
    """Also of runs that have ended within the time range."""
    return f"max {BY_RUN} (last_over_time({family}{{{selector}}}[$__range]))"


_STATE = (
    f'max {BY_RUN} (1 * verl_run_state{{state="starting",{RUNS}}} or 2 * verl_run_state{{state="running",{RUNS}}}) > 0'
    f' or max {BY_RUN} (3 * last_over_time(verl_run_state{{state="finished",{RUNS}}}[$__range])'
    f' or 4 * last_over_time(verl_run_state{{state="failed",{RUNS}}}[$__range]))'
)
_TIME_LEFT = (
    f"max {BY_RUN} ((verl_step_target{{{RUNS}}} - verl_step) * on (project, experiment, job, instance) group_left ()"
    ' verl_signal_window{signal="step_duration",stat="mean"}'
    " and on (project, experiment, job, instance) run:verl_run_state:live)"
)


_HIDDEN = [Property("custom.hideFrom", {"viz": True, "legend": True, "tooltip": True})]
_RUN_LINK = Property(
    "links", [{"title": "Only this run", "url": links.to_board("verl-overview"), "targetBlank": False}]
)


runs = rows(
    Common(
        title="Runs",
        question="Which runs are there, what does each do now, how far is it, is anything wrong with it? "
        "Click a run to see it alone. "
        "Time left: steps to go times the mean duration of the last steps. Unsaved: steps since the last checkpoint. "
        "Vanished: the run was alive at its last scrape and does not answer any more.",
        size=(18, 9),
        queries=[
            Query(_STATE, kind="table"),
            Query(f"max by (project, experiment, phase) (run_phase:verl_step:position{{{RUNS}}})", kind="table"),
            Query(_last("verl_step"), kind="table"),
            Query(f"{_last('verl_step')} / {_last('verl_step_target')}", kind="table"),
            Query(_TIME_LEFT, kind="table"),
            Query(f"time() - {_last('verl_last_step_timestamp_seconds')}", kind="table"),
            Query(f"max {BY_RUN} (verl_step{{{RUNS}}} - verl_checkpoint_step)", kind="table"),
            Query(f"sum {BY_RUN} ({_FIRING}) or 0 * {_last('verl_run_start_timestamp_seconds')}", kind="table"),
            Query(f"max by (project, experiment, attempt) (verl_run_info{{{RUNS}}})", kind="table"),
        ],
        alerts=["VerlRunStalled", "VerlRunFailed", "VerlRunVanished", "VerlCheckpointOverdue"],
        overrides={
            "Experiment": [_RUN_LINK, Property("custom.minWidth", 130)],
            "State": background(Property("mappings", [style.value_map(style.STATES)]), Property("custom.width", 85)),
            "Step": [Property("unit", "none"), Property("custom.width", 70)],
            "Done": [
                Property("unit", "percentunit"),
                Property("min", 0),
                Property("max", 1),
                Property("decimals", 0),
                Property("custom.cellOptions", {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}),
                Property("thresholds", {"mode": "absolute", "steps": [{"color": GOOD, "value": None}]}),
                Property("custom.minWidth", 110),
            ],
            "Time left": [Property("unit", "dtdurations"), Property("custom.width", 95)],
            "Last step": [Property("unit", "dtdurations"), Property("custom.width", 95)],
            "Unsaved": [Property("unit", "none"), Property("custom.width", 75)],
            "Alerts": background(
                Property(
                    "thresholds",
                    {
                        "mode": "absolute",
                        "steps": [{"color": "transparent", "value": None}, {"color": BAD, "value": 1}],
                    },
                ),
                Property("unit", "none"),
                Property("custom.width", 65),
            ),
            "Attempt": [Property("custom.width", 75)],
            "project": _HIDDEN,  # the link needs it
        },
        no_value="no run in this time range",
    ),
    columns(
        {
            "experiment": "Experiment",
            "Value #A": "State",
            "phase": "Phase",
            "Value #C": "Step",
            "Value #D": "Done",
            "Value #E": "Time left",
            "Value #F": "Last step",
            "Value #G": "Unsaved",
            "Value #H": "Alerts",
            "attempt": "Attempt",
            "project": "project",
        },
        hidden=("Time", "Value #B", "Value #I"),
    ),
    sort_by="Alerts",
    descending=True,
)

firing = rows(
    Common(
        title="Firing alerts",
        question="What is wrong, and where is it written what to do? Click an alert for its runbook. "
        "page: act now, warn: look today, info: worth knowing.",
        size=(6, 9),
        queries=[
            Query(
                f"label_replace(sum by (severity, alertname, project, experiment) ({_FIRING}),"
                ' "runbook", "$1", "alertname", "(.*)")',
                kind="table",
            )
        ],
        overrides={
            "Severity": background(
                Property(
                    "mappings",
                    [
                        style.text_map({"page": BAD, "warn": WARNING, "info": style.NEUTRAL}),
                    ],
                ),
                Property("custom.width", 75),
            ),
            "Alert": [
                Property(
                    "links",
                    [
                        {
                            "title": "Runbook",
                            "url": f"{links.DOCS}/alerts.md#${{__data.fields.runbook.text}}",
                            "targetBlank": True,
                        }
                    ],
                )
            ],
            "runbook": [
                *_HIDDEN,
                Property("mappings", [style.text_map({}, {name: name.lower() for name in alert_names()})]),
            ],
        },
        no_value="nothing is firing",
    ),
    columns(
        {"severity": "Severity", "alertname": "Alert", "experiment": "Experiment", "runbook": "runbook"},
        hidden=("Time", "Value", "project"),
    ),
)

reward = lines(
    Common(
        title="Reward",
        question="Does the run still learn? Mean reward of a step's samples, with the level at which half of "
        "what was gained is lost.",
        size=(6, 8),
        queries=[
            Query(signal("reward"), "{{experiment}}"),
            Query(signal("reward", "verl_signal_baseline", stat="mean"), "own start, {{experiment}}"),
            Query(limit("VerlRewardCollapse"), "lower limit, {{experiment}}"),
        ],
        alerts=["VerlRewardCollapse", "VerlRewardHacking", "VerlNoLearningSignal"],
    )
)

reference_kl = lines(
    Common(
        title="KL to the reference",
        question="Is the policy where it should be? Under the lower limit it has snapped back onto the reference, "
        "above the upper one it runs away. Nats per token.",
        size=(6, 8),
        queries=[
            Query(signal("reference_kl"), "{{experiment}}"),
            Query(limit("VerlKLCollapse"), "lower limit, {{experiment}}"),
            Query(limit("VerlKLExplosion"), "upper limit, {{experiment}}"),
        ],
        alerts=["VerlKLCollapse", "VerlKLExplosion"],
    ),
)

entropy = lines(
    Common(
        title="Entropy",
        question="Does the policy still explore, and is it still a policy? Nats per token, between the limits "
        "of the run's own start.",
        size=(6, 8),
        queries=[
            Query(signal("entropy"), "{{experiment}}"),
            Query(limit("VerlEntropyCollapse"), "lower limit, {{experiment}}"),
            Query(limit("VerlEntropyExplosion"), "upper limit, {{experiment}}"),
        ],
        alerts=["VerlEntropyCollapse", "VerlEntropyExplosion"],
    ),
    minimum=0,
)

throughput = lines(
    Common(
        title="Throughput",
        question="Is the run as fast as it was? Tokens per second and GPU, with 0.7 of the run's own start.",
        size=(6, 8),
        queries=[
            Query(signal("throughput"), "{{experiment}}"),
            Query(limit("VerlThroughputRegression"), "lower limit, {{experiment}}"),
        ],
        alerts=["VerlThroughputRegression"],
    ),
    minimum=0,
)

gradient = lines(
    Common(
        title="Gradient norm",
        question="Are the updates sound? Between too small to change anything and ten times what is usual for the run.",
        size=(8, 8),
        queries=[
            Query(signal("grad_norm"), "{{experiment}}"),
            Query(limit("VerlPolicyNotUpdating"), "lower limit, {{experiment}}"),
            Query(limit("VerlGradNormSpike"), "upper limit, {{experiment}}"),
        ],
        alerts=["VerlGradNormSpike", "VerlPolicyNotUpdating", "VerlNonFiniteValue"],
    ),
    logarithmic=True,
)

tokens = lines(
    Common(
        title="Tokens per second",
        question="How much does the run get done? Tokens trained on, over all of its GPUs, pauses included.",
        size=(8, 8),
        queries=[Query(f"sum {BY_RUN} (rate(verl_tokens_total{{{RUNS}}}[$window]))", "{{experiment}}")],
        unit="short",
        alerts=["VerlThroughputRegression"],
    ),
    minimum=0,
)

pace = lines(
    Common(
        title="Step duration",
        question="How long does a step take, compared with the run's start?",
        size=(8, 8),
        queries=[
            Query(signal("step_duration"), "{{experiment}}"),
            Query(signal("step_duration", "verl_signal_baseline", stat="mean"), "own start, {{experiment}}"),
        ],
        unit="s",
        alerts=["VerlRunStalled", "VerlThroughputRegression"],
    ),
    minimum=0,
)

utilization = lines(
    Common(
        title="GPU utilisation",
        question="Do the GPUs work? Mean over the run's GPUs; it dips while a batch's last rollouts end and "
        "while weights are sent.",
        size=(12, 7),
        queries=[
            Query(f"avg {BY_RUN} (verl_gpu_utilization_ratio{{{ANYBODY}}})", "{{experiment}}"),
            Query(limit("VerlGpuUtilizationLow"), "lower limit, {{experiment}}"),
        ],
        unit="percentunit",
        alerts=["VerlGpuUtilizationLow", "VerlGpuMetricsMissing"],
    ),
    minimum=0,
    maximum=1,
)

memory = lines(
    Common(
        title="GPU memory",
        question="How close is the fullest GPU to running out? Rollout engines that share the GPUs fill "
        "0.9-0.95 by design.",
        size=(12, 7),
        queries=[
            Query(
                f"max {BY_RUN} (verl_gpu_memory_used_bytes{{{ANYBODY}}} / verl_gpu_memory_total_bytes)",
                "fullest GPU, {{experiment}}",
            ),
            Query(limit("VerlGpuMemoryNearFull"), "upper limit, {{experiment}}"),
        ],
        unit="percentunit",
        alerts=["VerlGpuMemoryNearFull"],
    ),
    minimum=0,
    maximum=1,
)

identity = rows(
    Common(
        title="What the runs are",
        question="Which model, algorithm and versions, on which node? run_id stays the same when a run is resumed.",
        size=(24, 7),
        queries=[
            Query(
                "group by (project, experiment, run_id, attempt, algorithm, model, trainer, node, verl_version,"
                f" exporter_version) (last_over_time(verl_run_info{{{RUNS}}}[$__range]))",
                kind="table",
            )
        ],
        no_value="no run in this time range",
    ),
    columns(
        {
            "project": "Project",
            "experiment": "Experiment",
            "attempt": "Attempt",
            "algorithm": "Algorithm",
            "model": "Model",
            "trainer": "Trainer",
            "node": "Node",
            "verl_version": "verl",
            "exporter_version": "Exporter",
            "run_id": "Run",
        },
        hidden=("Time", "Value"),
    ),
    sort_by="Experiment",
)

log_cost = lines(
    Common(
        title="What log() costs the trainer",
        question="Does the exporter slow training? Time of the trainer's thread in log().",
        size=(8, 7),
        queries=[
            Query(quantile(q, "verl_exporter_log_duration_seconds", RUNS), f"p{q * 100:g}, {{{{experiment}}}}")
            for q in (0.5, 0.99)
        ],
        unit="s",
        alerts=["VerlExporterDegraded"],
    ),
    minimum=0,
)

faults = lines(
    Common(
        title="Errors, dropped values and NaN",
        question="Is something missing on these boards? Errors that the exporter swallowed so that training goes on, "
        "values that are no numbers, NaN and infinity, since the run began.",
        size=(8, 7),
        queries=[
            Query(
                f"sum by (project, experiment, component) (verl_exporter_errors_total{{{RUNS}}})",
                "errors in {{component}}, {{experiment}}",
            ),
            Query(
                f"sum by (project, experiment, reason) (verl_exporter_dropped_values_total{{{RUNS}}})",
                "dropped: {{reason}}, {{experiment}}",
            ),
            Query(
                f"sum by (project, experiment, key) (verl_nonfinite_values_total{{{RUNS}}})",
                "NaN in {{key}}, {{experiment}}",
            ),
        ],
        unit="none",
        alerts=["VerlExporterDegraded", "VerlNonFiniteValue"],
        no_value="nothing went wrong",
    ),
    minimum=0,
    decimals=0,
)

series = lines(
    Common(
        title="Exported series",
        question="How many series does a run cost Prometheus? Those made from verl keys; "
        "trainer.prometheus.max_series caps them.",
        size=(8, 7),
        queries=[Query(f"max {BY_RUN} (verl_exporter_series{{{RUNS}}})", "{{experiment}}")],
        unit="none",
        alerts=["VerlExporterDegraded", "VerlSignalMissing"],
    ),
    minimum=0,
    decimals=0,
)

BOARD = Board(
    uid="verl-overview",
    title="verl: run overview",
    question="Is every run well, and if not, where to look?",
    sections=[
        Section("Now", [runs, firing]),
        Section(
            "Learning and speed (RL runs; an SFT run logs none of these)", [reward, reference_kl, entropy, throughput]
        ),
        Section("Every run", [gradient, tokens, pace]),
        Section("GPUs (needs the GPU agent)", [utilization, memory]),
        Section("What they are", [identity], collapsed=True),
        Section("The exporter itself", [log_cost, faults, series], collapsed=True),
    ],
    variables=[variables.window()],
)
