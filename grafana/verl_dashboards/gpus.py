"""GPUs and nodes: are they busy, is there memory left, is one of them sick?"""

from __future__ import annotations

from verl_dashboards import style, variables
from verl_dashboards.board import Board, Section
from verl_dashboards.panels import Common, background, bars, columns, density, lines, rows, timeline
from verl_dashboards.queries import BY_RUN, GPUS, RUNS, Query, limit
from verl_dashboards.style import BAD, Property

_EACH = "max by (node, gpu)"
_NAME = "{{node}} {{gpu}}"

utilization = density(
    Common(
        title="Utilisation of every GPU",
        question="Do all GPUs work, and together? Share of the last sample period with a kernel running; one "
        "row a GPU.",
        size=(12, 9),
        queries=[Query(f"{_EACH} (verl_gpu_utilization_ratio{{{GPUS}}})", _NAME)],
        unit="percentunit",
        alerts=["VerlGpuUtilizationLow", "VerlGpuStraggler"],
    ),
    buckets=False,
    minimum=0,
    maximum=1,
)

memory = density(
    Common(
        title="Memory of every GPU",
        question="Is the load even, and does it come back between phases? Used over installed; one row a GPU.",
        size=(12, 9),
        queries=[Query(f"{_EACH} (verl_gpu_memory_used_bytes{{{GPUS}}} / verl_gpu_memory_total_bytes)", _NAME)],
        unit="percentunit",
        alerts=["VerlGpuMemoryNearFull"],
    ),
    buckets=False,
    minimum=0,
    maximum=1,
)

mean = lines(
    Common(
        title="Mean utilisation of a run's GPUs",
        question="Is the allocation worth it? Clusters question jobs under the limit.",
        size=(12, 8),
        queries=[
            Query(f"avg {BY_RUN} (verl_gpu_utilization_ratio{{{GPUS}}})", "{{experiment}}"),
            Query(limit("VerlGpuUtilizationLow"), "lower limit, {{experiment}}"),
        ],
        unit="percentunit",
        alerts=["VerlGpuUtilizationLow"],
    ),
    minimum=0,
    maximum=1,
)

by_phase = bars(
    Common(
        title="Utilisation by training phase",
        question="Which phase leaves the GPUs idle? Mean over the time range, of the run's GPUs, while the "
        "phase was active.",
        size=(12, 8),
        queries=[
            Query(
                "avg by (project, experiment, phase) (avg_over_time(("
                f'(max by (project, experiment, phase) (verl_phase_active{{phase!="step",{RUNS}}}) == 1)'
                f" * on (project, experiment) group_left () avg {BY_RUN} (verl_gpu_utilization_ratio{{{GPUS}}})"
                ")[$__range:]))",
                "{{phase}}, {{experiment}}",
                kind="instant",
            )
        ],
        unit="percentunit",
        alerts=["VerlGpuUtilizationLow"],
    ),
    maximum=1,
)

by_role = lines(
    Common(
        title="Memory by role",
        question="Who holds the memory? Sum over the chosen GPUs by what the process is; the dashed line is "
        "what is installed.",
        size=(12, 8),
        queries=[
            Query(f"sum by (role) (verl_gpu_process_memory_bytes{{{GPUS}}})", "{{role}}"),
            Query(f"sum(verl_gpu_memory_total_bytes{{{GPUS}}})", "installed (limit)"),
        ],
        unit="bytes",
        alerts=["VerlGpuMemoryNearFull"],
        overrides={
            "train": [style.colored(style.ORANGE)],
            "rollout": [style.colored(style.SKY)],
            "other": [style.colored(style.PURPLE)],
            "installed (limit)": [Property("custom.stacking", {"mode": "none", "group": "A"})],
        },
    ),
    minimum=0,
    stacked=True,
)

peaks = bars(
    Common(
        title="Peak memory of every GPU",
        question="How close did it come? Highest sample since the run started, over what is installed; "
        "includes peaks between two scrapes.",
        size=(12, 8),
        queries=[
            Query(
                f"sort_desc({_EACH} (verl_gpu_memory_peak_bytes{{{GPUS}}} / verl_gpu_memory_total_bytes))",
                _NAME,
                kind="instant",
            )
        ],
        unit="percentunit",
        alerts=["VerlGpuMemoryNearFull"],
    ),
    maximum=1,
    healthy=style.steps(style.GOOD, (0.95, style.WARNING), (0.98, BAD)),
)

torch = lines(
    Common(
        title="Peak memory of torch",
        question="What did training itself need? First rank of each role since the process started, without "
        "engines in other processes. "
        "Reserved far above allocated: fragmentation.",
        size=(12, 8),
        queries=[
            Query(
                f"max by (project, experiment, role) (verl_torch_memory_allocated_peak_bytes{{{RUNS}}})",
                "allocated {{role}}, {{experiment}}",
            ),
            Query(
                f"max by (project, experiment, role) (verl_torch_memory_reserved_peak_bytes{{{RUNS}}})",
                "reserved {{role}}, {{experiment}}",
            ),
        ],
        unit="bytes",
        alerts=["VerlGpuMemoryNearFull"],
    ),
    minimum=0,
)

host = lines(
    Common(
        title="Host memory",
        question="Does the trainer's node run out of memory? In use on the node of the first rank.",
        size=(12, 8),
        queries=[Query(f"max {BY_RUN} (verl_host_memory_used_bytes{{{RUNS}}})", "{{experiment}}")],
        unit="bytes",
        alerts=["VerlRunVanished"],
    ),
    minimum=0,
)

power = lines(
    Common(
        title="Power",
        question="What do the GPUs draw? Sum by node.",
        size=(8, 8),
        queries=[Query(f"sum by (node) (verl_gpu_power_watts{{{GPUS}}})", "{{node}}")],
        unit="watt",
        alerts=["VerlGpuThrottled"],
    ),
    minimum=0,
)

energy = bars(
    Common(
        title="Energy in the time range",
        question="What did it cost? By node.",
        size=(8, 8),
        queries=[
            Query(
                f"sum by (node) (increase(verl_gpu_energy_joules_total{{{GPUS}}}[$__range])) / 3.6e6",
                "{{node}}",
                kind="instant",
            )
        ],
        unit="kwatth",
        alerts=["VerlGpuThrottled"],
    ),
)

temperature = lines(
    Common(
        title="Temperature",
        question="Is one GPU hotter than the rest? Hottest and coolest of a node.",
        size=(8, 8),
        queries=[
            Query(f"max by (node) (verl_gpu_temperature_celsius{{{GPUS}}})", "hottest, {{node}}"),
            Query(f"min by (node) (verl_gpu_temperature_celsius{{{GPUS}}})", "coolest, {{node}}"),
        ],
        unit="celsius",
        alerts=["VerlGpuThrottled"],
    )
)

throttling = timeline(
    Common(
        title="Throttled",
        question="Which GPUs are held down, and by what? Only what was ever on in the time range.",
        size=(12, 8),
        queries=[
            Query(
                f"max by (node, gpu, reason) (verl_gpu_throttled{{{GPUS}}}"
                f" and max_over_time(verl_gpu_throttled{{{GPUS}}}[$__range] @ end()) > 0)",
                "{{reason}}, {{node}} {{gpu}}",
            )
        ],
        alerts=["VerlGpuThrottled"],
        no_value="no GPU was throttled",
    ),
    {0: ("free", "transparent"), 1: ("throttled", style.ORANGE)},
)

clocks = lines(
    Common(
        title="SM clock over the median of the busy GPUs",
        question="Is there a straggler? Slowest GPU of each node over the median of all that are busy; the "
        "slowest one sets the pace of all.",
        size=(12, 8),
        queries=[
            Query(
                f"min by (node) (avg_over_time(gpu:verl_gpu_sm_clock_hertz:busy{{{GPUS}}}[10m]))"
                f" / scalar(quantile(0.5, avg_over_time(gpu:verl_gpu_sm_clock_hertz:busy{{{GPUS}}}[10m])))",
                "{{node}}",
            ),
            Query(f'min(run:verl_alert_threshold:limit{{alert="VerlGpuStraggler",{RUNS}}})', "lower limit"),
        ],
        unit="percentunit",
        alerts=["VerlGpuStraggler"],
    ),
    maximum=1.1,
)

health = rows(
    Common(
        title="Every GPU now",
        question="Which card is sick? Sort by a column. XID: number of the last error that the driver "
        "reported, and when.",
        size=(24, 9),
        queries=[
            Query(f"max by (node, gpu, name, uuid, driver) (verl_gpu_info{{{GPUS}}})", kind="table"),
            Query(f"{_EACH} (verl_gpu_up{{{GPUS}}})", kind="table"),
            Query(f"{_EACH} (verl_gpu_sm_clock_hertz{{{GPUS}}})", kind="table"),
            Query(f"{_EACH} (verl_gpu_temperature_celsius{{{GPUS}}})", kind="table"),
            Query(f"{_EACH} (verl_gpu_uncorrectable_ecc_errors{{{GPUS}}})", kind="table"),
            Query(f"{_EACH} (verl_gpu_last_xid{{{GPUS}}})", kind="table"),
            Query(f"1000 * {_EACH} (verl_gpu_last_xid_timestamp_seconds{{{GPUS}}} > 0)", kind="table"),
        ],
        alerts=["VerlGpuXid", "VerlGpuEcc", "VerlGpuMetricsMissing"],
        overrides={
            "Readable": background(
                Property("mappings", [style.value_map({0: ("no", BAD), 1: ("yes", "transparent")})]),
                Property("custom.width", 80),
            ),
            "SM clock": [Property("unit", "hertz"), Property("decimals", 2)],
            "Temperature": [Property("unit", "celsius")],
            "ECC errors": background(
                Property("unit", "none"),
                Property(
                    "thresholds",
                    {
                        "mode": "absolute",
                        "steps": [{"color": "transparent", "value": None}, {"color": BAD, "value": 1}],
                    },
                ),
            ),
            "Last XID": [Property("unit", "none")],
            "XID at": [Property("unit", "dateTimeAsIso")],
        },
    ),
    columns(
        {
            "node": "Node",
            "gpu": "GPU",
            "name": "Name",
            "Value #B": "Readable",
            "Value #C": "SM clock",
            "Value #D": "Temperature",
            "Value #E": "ECC errors",
            "Value #F": "Last XID",
            "Value #G": "XID at",
            "driver": "Driver",
            "uuid": "UUID",
        },
        hidden=("Time", "Value #A"),
    ),
)

utilization_samples = density(
    Common(
        title="Every sample of the utilisation",
        question="What happens between two scrapes? All samples of all chosen GPUs.",
        size=(12, 8),
        queries=[
            Query(
                f"sum by (le) (increase(verl_gpu_utilization_distribution_ratio_bucket{{{GPUS}}}[$__rate_interval]))",
                "{{le}}",
                kind="heatmap",
            )
        ],
        alerts=["VerlGpuUtilizationLow"],
    ),
    buckets=True,
    y_unit="percentunit",
    minimum=0,
)

memory_samples = density(
    Common(
        title="Every sample of the memory",
        question="Does it peak between two scrapes? All samples of all chosen GPUs, used over installed.",
        size=(12, 8),
        queries=[
            Query(
                f"sum by (le) (increase(verl_gpu_memory_distribution_ratio_bucket{{{GPUS}}}[$__rate_interval]))",
                "{{le}}",
                kind="heatmap",
            )
        ],
        alerts=["VerlGpuMemoryNearFull"],
    ),
    buckets=True,
    y_unit="percentunit",
    minimum=0,
)

BOARD = Board(
    uid="verl-gpus",
    title="verl: GPUs and nodes",
    question="Are the GPUs busy, is there memory left, is one of them sick?",
    sections=[
        Section("Every GPU (needs the GPU agent)", [utilization, memory]),
        Section("Utilisation and phases (needs the GPU agent and an RL run)", [mean, by_phase]),
        Section("Memory (needs the GPU agent)", [by_role, peaks]),
        Section("Memory as the trainer sees it (every run)", [torch, host]),
        Section("Health (needs the GPU agent)", [health, throttling, clocks]),
        Section("Power and heat (needs the GPU agent)", [power, energy, temperature]),
        Section("Between two scrapes (needs the GPU agent)", [utilization_samples, memory_samples], collapsed=True),
    ],
    variables=[variables.node()],
)
