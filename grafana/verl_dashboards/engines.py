"""Rollout engines: vLLM and SGLang under one set of names, which prometheus/rules/engines.yml gives them."""

from __future__ import annotations

from verl_dashboards.board import Board, Section
from verl_dashboards.panels import Common, lines
from verl_dashboards.queries import ANYBODY, Query

_EACH = "by (engine, instance)"
_NAME = "{{engine}} {{instance}}"


def _quantiles(record: str) -> list[Query]:
    return [
        Query(
            f"histogram_quantile({q:g}, sum by (le, engine) ({record}{{{ANYBODY}}}))",
            f"p{q * 100:g}, {{{{engine}}}}",
        )
        for q in (0.5, 0.9, 0.99)
    ]


running = lines(
    Common(
        title="Running requests",
        question="How full is the batch? It thins out at the end of every step's rollouts.",
        size=(8, 8),
        queries=[Query(f"sum {_EACH} (engine:requests_running:sum{{{ANYBODY}}})", _NAME)],
        unit="none",
        alerts=["VerlRolloutLatencyHigh"],
    ),
    minimum=0,
)

waiting = lines(
    Common(
        title="Waiting requests",
        question="Is there more work than the engine takes? A queue with a KV cache that is not full: "
        "max_num_seqs is the brake.",
        size=(8, 8),
        queries=[Query(f"sum {_EACH} (engine:requests_waiting:sum{{{ANYBODY}}})", _NAME)],
        unit="none",
        alerts=["VerlRolloutLatencyHigh"],
    ),
    minimum=0,
)

cache = lines(
    Common(
        title="KV cache in use",
        question="Is memory the brake? Near one, requests are preempted and computed again.",
        size=(8, 8),
        queries=[Query(f"max {_EACH} (engine:kv_cache_usage_ratio:max{{{ANYBODY}}})", _NAME)],
        unit="percentunit",
        alerts=["VerlRolloutLatencyHigh"],
    ),
    minimum=0,
    maximum=1,
)

first_token = lines(
    Common(
        title="Time to first token",
        question="How long do requests wait and prefill?",
        size=(8, 8),
        queries=_quantiles("engine:time_to_first_token_seconds_bucket:rate5m"),
        unit="s",
        alerts=["VerlRolloutLatencyHigh"],
    ),
    minimum=0,
)

next_token = lines(
    Common(
        title="Time between tokens",
        question="How fast does a sequence grow? Rises with the batch.",
        size=(8, 8),
        queries=_quantiles("engine:inter_token_latency_seconds_bucket:rate5m"),
        unit="s",
        alerts=["VerlRolloutLatencyHigh"],
    ),
    minimum=0,
)

preemptions = lines(
    Common(
        title="Preemptions",
        question="Is work thrown away? Requests put back per second (SGLang: retracted) because the KV cache was full.",
        size=(8, 8),
        queries=[Query(f"sum {_EACH} (engine:preemptions:rate5m{{{ANYBODY}}})", _NAME)],
        unit="reqps",
        alerts=["VerlRolloutLatencyHigh"],
    ),
    minimum=0,
)

tokens = lines(
    Common(
        title="Generated tokens per second",
        question="What do the engines deliver?",
        size=(24, 8),
        queries=[Query(f"sum {_EACH} (engine:generation_tokens:rate5m{{{ANYBODY}}})", _NAME)],
        unit="short",
        alerts=["VerlThroughputRegression"],
    ),
    minimum=0,
)

BOARD = Board(
    uid="verl-engines",
    title="verl: rollout engines",
    question="What holds up the rollouts: the queue, the KV cache, the tokens?",
    sections=[
        Section("Load (needs the metrics of vLLM or SGLang servers)", [running, waiting, cache]),
        Section("Latency (needs the metrics of vLLM or SGLang servers)", [first_token, next_token, preemptions]),
        Section("Work (needs the metrics of vLLM or SGLang servers)", [tokens]),
    ],
)
