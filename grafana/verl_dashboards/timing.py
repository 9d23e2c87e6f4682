"""Where the time goes: phases, rollouts, stragglers."""

from __future__ import annotations

from verl_dashboards import overview, style, variables
from verl_dashboards.board import Board, Section
from verl_dashboards.panels import Common, bars, density, lines, timeline
from verl_dashboards.queries import BY_RUN, RUNS, Query, limit, quantile, signal

# Not parts of a step: the step itself, and what verl does between two steps.
BETWEEN_STEPS = "step|testing|save_checkpoint|start_profile|stop_profile|dump_rollout_generations"

_PHASE_COLORS = {f"/^{phase}$/": [style.colored(color)] for phase, color in style.PHASES.items()}

stack = (
    lines(
        Common(
            title="Phases of a step, $experiment",
            question="What does a step spend its time on? Stacked, as verl timed the last step; "
            "what no timer covers is the rest. Validation and checkpoints lie between steps and are drawn on top.",
            size=(24, 9),
            queries=[
                Query(f'max by (phase) (verl_timing_seconds{{phase!="step",{RUNS}}})', "{{phase}}"),
                Query(
                    f'clamp_min(max(verl_timing_seconds{{phase="step",{RUNS}}})'
                    f' - sum(max by (phase) (verl_timing_seconds{{phase!~"{BETWEEN_STEPS}",{RUNS}}})), 0)',
                    "rest of the step",
                ),
            ],
            unit="s",
            alerts=["VerlRunStalled", "VerlRolloutLatencyHigh"],
            overrides=_PHASE_COLORS,
        ),
        minimum=0,
        stacked=True,
        calcs=("lastNotNull", "mean"),
        legend_right=True,
    )
    .repeat("experiment")
    .repeat_direction("v")
)

phases = timeline(
    Common(
        title="What the trainer does",
        question="When was which phase active? Seen at every scrape: phases that are shorter than the scrape "
        "interval may be missed. "
        "An outer phase is active together with those inside it.",
        size=(16, 9),
        queries=[
            Query(
                f'max by (project, experiment, phase) (verl_phase_active{{phase!="step",{RUNS}}})',
                "{{phase}}, {{experiment}}",
            )
        ],
        alerts=["VerlRunStalled"],
    ),
    {0: ("not active", "transparent"), 1: ("active", style.SKY)},
)

typical = bars(
    Common(
        title="Typical time in a phase",
        question="What is usual? Median of the last window of steps: what VerlRunStalled compares with.",
        size=(8, 9),
        queries=[
            Query(
                f"sort_desc(max by (project, experiment, phase) (verl_phase_typical_seconds{{{RUNS}}}))",
                "{{phase}}, {{experiment}}",
                kind="instant",
            )
        ],
        unit="s",
        alerts=["VerlRunStalled"],
    ),
)

active_since = lines(
    Common(
        title="Time in the innermost active phase",
        question="Is it stuck? Seconds since the innermost active phase began, with the limit at which the run "
        "counts as stalled.",
        size=(12, 8),
        queries=[
            Query(
                "max by (project, experiment, phase)"
                f" (time() - run_phase:verl_phase_start_timestamp_seconds:innermost{{{RUNS}}})",
                "{{phase}}, {{experiment}}",
            ),
            Query(
                f"max by (project, experiment, phase) (run_phase:verl_alert_threshold:limit{{{RUNS}}}"
                " and on (project, experiment, job, instance, phase) "
                "run_phase:verl_phase_start_timestamp_seconds:innermost)",
                "limit of {{phase}}, {{experiment}}",
            ),
        ],
        unit="s",
        alerts=["VerlRunStalled"],
    ),
    minimum=0,
)

shares = bars(
    Common(
        title="Share of all step time by phase",
        question="Where would a faster phase pay? Time in the phase over the time of all steps, since the "
        "process began.",
        size=(12, 8),
        queries=[
            Query(
                f'sort_desc(sum by (project, experiment, phase) (verl_phase_duration_seconds_sum{{phase!="step",{RUNS}}})'
                f" / on (project, experiment) group_left () sum {BY_RUN} (verl_step_duration_seconds_sum))",
                "{{phase}}, {{experiment}}",
                kind="instant",
            )
        ],
        unit="percentunit",
        alerts=["VerlThroughputRegression"],
    ),
)

latency = lines(
    Common(
        title="Rollout latency",
        question="How long does a step wait for its rollouts? Quantiles over the window chosen above, the last "
        "step, and twice the run's best.",
        size=(12, 8),
        queries=[
            *(
                Query(
                    quantile(q, "verl_rollout_latency_seconds", RUNS, "project, experiment, scope"),
                    f"p{q * 100:g} {{{{scope}}}}, {{{{experiment}}}}",
                )
                for q in (0.5, 0.9, 0.99)
            ),
            Query(f'max {BY_RUN} (verl_timing_seconds{{phase="gen",{RUNS}}})', "last step, {{experiment}}"),
            Query(limit("VerlRolloutLatencyHigh"), "upper limit of the typical time, {{experiment}}"),
        ],
        unit="s",
        alerts=["VerlRolloutLatencyHigh"],
    ),
    minimum=0,
)

latency_heatmap = density(
    Common(
        title="Distribution of the rollout latency",
        question="Is it one population or two? Steps by how long they waited for their rollouts.",
        size=(12, 8),
        queries=[
            Query(
                f'sum by (le) (increase(verl_rollout_latency_seconds_bucket{{scope="batch",{RUNS}}}[$__rate_interval]))',
                "{{le}}",
                kind="heatmap",
            )
        ],
        unit="short",
        alerts=["VerlRolloutLatencyHigh"],
    ),
    buckets=True,
    y_unit="s",
    minimum=0,
)

throughput = lines(
    Common(
        title="Tokens per second and GPU",
        question="Is it slower than it was? As verl measures it, with 0.7 of the run's own start.",
        size=(12, 8),
        queries=[
            Query(signal("throughput"), "{{experiment}}"),
            Query(signal("throughput", "verl_signal_baseline", stat="mean"), "own start, {{experiment}}"),
            Query(limit("VerlThroughputRegression"), "lower limit, {{experiment}}"),
        ],
        alerts=["VerlThroughputRegression"],
    ),
    minimum=0,
)

per_token = lines(
    Common(
        title="Time per token",
        question="Which phase got slower for its work? Response tokens for gen, all tokens for the others.",
        size=(12, 8),
        queries=[
            Query(
                f"max by (project, experiment, phase) (verl_timing_per_token_seconds{{{RUNS}}})",
                "{{phase}}, {{experiment}}",
            )
        ],
        unit="s",
        alerts=["VerlThroughputRegression"],
    ),
    minimum=0,
)

durations = density(
    Common(
        title="Distribution of the step durations",
        question="Are all steps alike? Steps by duration.",
        size=(8, 8),
        queries=[
            Query(
                f"sum by (le) (increase(verl_step_duration_seconds_bucket{{{RUNS}}}[$__rate_interval]))",
                "{{le}}",
                kind="heatmap",
            )
        ],
        alerts=["VerlThroughputRegression"],
    ),
    buckets=True,
    y_unit="s",
    minimum=0,
)

mfu = lines(
    Common(
        title="Model FLOPs utilisation",
        question="How much of the GPUs' arithmetic is used? By role where verl logs it by role.",
        size=(12, 8),
        queries=[Query(f"max by (project, experiment, role) (verl_mfu_ratio{{{RUNS}}})", "{{role}} {{experiment}}")],
        unit="percentunit",
        alerts=["VerlThroughputRegression"],
    ),
    minimum=0,
)

steps_done = lines(
    Common(
        title="Steps per minute",
        question="How fast does it get on, all pauses included? From the steps done, and at the pace of the last step.",
        size=(12, 8),
        queries=[
            Query(f"60 * sum {BY_RUN} (rate(verl_steps_total{{{RUNS}}}[$window]))", "done, {{experiment}}"),
            Query(f"60 * max {BY_RUN} (verl_steps_per_second{{{RUNS}}})", "pace of the last step, {{experiment}}"),
        ],
        unit="none",
        alerts=["VerlRunStalled"],
    ),
    minimum=0,
)

slowest = lines(
    Common(
        title="Slowest trajectory of a step",
        question="Does one trajectory hold up the batch, and with what? Time of the slowest one by activity.",
        size=(12, 8),
        queries=[
            Query(
                f"max by (project, experiment, activity) (verl_agent_loop_slowest_seconds{{{RUNS}}})",
                "{{activity}}, {{experiment}}",
            )
        ],
        unit="s",
        alerts=["VerlRolloutLatencyHigh"],
    ),
    minimum=0,
    stacked=True,
)

spread = lines(
    Common(
        title="Slowest over mean trajectory",
        question="How much longer than the mean does the slowest trajectory take? One: all alike.",
        size=(12, 8),
        queries=[
            Query(
                f'max by (project, experiment, activity) (verl_agent_loop_seconds{{stat="max",{RUNS}}})'
                f' / (max by (project, experiment, activity) (verl_agent_loop_seconds{{stat="mean",{RUNS}}}) > 0)',
                "{{activity}}, {{experiment}}",
            )
        ],
        unit="none",
        alerts=["VerlRolloutLatencyHigh"],
    ),
    minimum=1,
)

BOARD = Board(
    uid="verl-timing",
    title="verl: where the time goes",
    question="What does a step spend its time on, and what got slower?",
    sections=[
        Section("Every run", [overview.pace, durations, overview.tokens]),
        Section(
            "Phases of a step (RL runs; verl's SFT trainers time none)", [stack, phases, typical, active_since, shares]
        ),
        Section("Rollouts and work (RL runs)", [latency, latency_heatmap, throughput, per_token]),
        Section("Pace and arithmetic (every run)", [steps_done, mfu]),
        Section("Stragglers (RL runs whose trainer logs agent-loop timings)", [slowest, spread]),
    ],
    variables=[variables.window()],
)
