"""Distributions over samples: from verl's batches to the series, live and from the journal."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from verl import DataProto
from verl.trainer.ppo import metric_utils

from helpers.scrape import Scrape
from verl_prometheus import journal, sample_hooks
from verl_prometheus.attempt import Attempt
from verl_prometheus.backend import PrometheusBackend
from verl_prometheus.distribution import Distribution
from verl_prometheus.journal import Encoder
from verl_prometheus.phases import TRACKER
from verl_prometheus.run import Call, RunIdentity
from verl_prometheus.samples import BUCKETS, LATENCY, RESPONSE_LENGTH, REWARD, SAMPLES, SampleTracker

IDENTITY = RunIdentity("project", "experiment", "run", 1000.0)


@pytest.fixture(autouse=True)
def samples(monkeypatch: pytest.MonkeyPatch) -> Iterator[SampleTracker]:
    monkeypatch.setattr(SAMPLES, "wanted", True)
    SAMPLES.take()
    yield SAMPLES
    SAMPLES.take()
    SAMPLES.error = None


def batch(rewards: list[float], lengths: list[int]) -> DataProto:
    """A batch as verl's trainers have it when they compute their metrics."""
    longest, size = 8, len(lengths)
    mask = torch.tensor([[1.0] * length + [0.0] * (longest - length) for length in lengths])
    scores = torch.zeros(size, longest)
    scores[:, 0] = torch.tensor(rewards)
    tokens = torch.ones(size, longest, dtype=torch.int64)
    tensors = {
        "prompts": tokens[:, :2],
        "responses": tokens,
        "response_mask": mask,
        "attention_mask": torch.cat([torch.ones(size, 2), mask], dim=-1),
        "token_level_scores": scores,
        "token_level_rewards": scores,
        "advantages": scores,
        "returns": scores,
    }
    return DataProto.from_dict(tensors)


def observed(quantity: str, *values: float) -> Distribution:
    distribution = Distribution(BUCKETS[quantity])
    for value in values:
        distribution.observe(value)
    return distribution


def test_samples_are_given_away_once_and_without_what_is_not_finite() -> None:
    tracker = SampleTracker()
    assert tracker.take() == {}
    tracker.add(REWARD, [0.5, math.nan])
    tracker.add(REWARD, iter([math.inf, -2]))
    taken = tracker.take()[REWARD]
    assert (sum(taken.counts), taken.total) == (2, -1.5)
    assert tracker.take() == {}


def test_rewards_and_lengths_are_those_that_verl_makes_its_means_of() -> None:
    metrics = metric_utils.compute_data_metrics(batch=batch([1.0, 0.0, 0.5, -3.0], [3, 8, 5, 0]), use_critic=False)
    taken = SAMPLES.take()
    assert taken[REWARD].counts == observed(REWARD, 1.0, 0.0, 0.5).counts  # the last one was aborted
    assert taken[REWARD].total / 3 == pytest.approx(metrics["critic/rewards/mean"])
    assert taken[RESPONSE_LENGTH].counts == observed(RESPONSE_LENGTH, 3, 8, 5, 0).counts
    assert taken[RESPONSE_LENGTH].total / 4 == pytest.approx(metrics["response_length/mean"])


def test_nobody_looks_where_there_is_no_run_of_ours() -> None:
    SAMPLES.wanted = False
    metric_utils.compute_data_metrics(batch=batch([1.0], [3]), use_critic=False)
    assert SAMPLES.take() == {}


class Manager:
    def _performance_metrics(self, metrics: list[list[dict[str, float]]], output: object) -> str:
        return "theirs"


def test_trajectories_of_training_are_timed_and_those_of_validation_are_not() -> None:
    module: Any = SimpleNamespace(AgentLoopManager=type("Theirs", (Manager,), {}))
    sample_hooks.patch_agent_loop(module)
    sample_hooks.patch_agent_loop(module)  # patching twice changes nothing
    metrics = [[{"generate_sequences": 0.2}, {"generate_sequences": 3.0}], [{"generate_sequences": 9.0}]]
    manager = module.AgentLoopManager()
    manager._performance_metrics(metrics, None)  # validation before training
    TRACKER.enter("step")
    assert manager._performance_metrics(metrics, output=None) == "theirs"
    TRACKER.enter("testing")
    manager._performance_metrics(metrics, None)
    TRACKER.leave("testing")
    TRACKER.leave("step")
    assert SAMPLES.take()[LATENCY].counts == observed(LATENCY, 0.2, 3.0, 9.0).counts


def test_a_batch_that_cannot_be_read_is_counted_once_and_harms_nobody(
    backend: Callable[..., PrometheusBackend], caplog: pytest.LogCaptureFixture
) -> None:
    module: Any = SimpleNamespace(AgentLoopManager=type("Theirs", (Manager,), {}))
    sample_hooks.patch_agent_loop(module)
    one = backend()
    TRACKER.enter("step")
    for step in (1, 2):
        assert module.AgentLoopManager()._performance_metrics(None, None) == "theirs"
        one.log({"a/b": 1.0}, step)
    scrape = Scrape(one.url)
    assert scrape.value("verl_exporter_errors_total", component="samples") == 1
    assert scrape.value("verl_step") == 2
    TRACKER.leave("step")
    assert "samples" in caplog.text


def test_series_of_a_run_live(backend: Callable[..., PrometheusBackend]) -> None:
    one = backend()
    assert not any(name.endswith(("_distribution", "_distribution_tokens")) for name in Scrape(one.url).families)
    for step in (1, 2):
        SAMPLES.add(REWARD, [0.0, 1.0])
        SAMPLES.add(RESPONSE_LENGTH, [10, 1000])
        SAMPLES.add(LATENCY, [2.0])
        one.log({"critic/rewards/mean": 0.5, "timing_s/gen": 4.0}, step)
    scrape = Scrape(one.url)
    assert scrape.value("verl_reward_distribution_bucket", le="0.0") == 2
    assert scrape.value("verl_reward_distribution_bucket", le="+Inf") == 4
    assert scrape.value("verl_response_length_distribution_tokens_sum") == 2020
    assert scrape.value("verl_rollout_latency_seconds_count", scope="trajectory") == 2
    assert scrape.value("verl_rollout_latency_seconds_sum", scope="batch") == 8


def test_the_journal_keeps_them() -> None:
    call = Call(1.0, 3, (), b"", (), {REWARD: observed(REWARD, 0.5, -20.0, 20.0)})
    line = Encoder(IDENTITY).call(call)
    again = journal.decode(line)
    assert isinstance(again, Call)
    run = Attempt(IDENTITY).run_state()
    for one in (call, again):
        run.replay(one)
    kept = run.snapshot.samples[REWARD]
    assert kept.counts == [2 * count for count in observed(REWARD, 0.5, -20.0, 20.0).counts]
    assert kept.total == 1.0


@pytest.mark.parametrize(
    "samples", [{"unheard of": {"counts": [1], "total": 1}}, {REWARD: {"counts": [1, 2], "total": 1}}]
)
def test_a_journal_with_other_buckets_keeps_the_rest_of_the_step(samples: dict[str, Any]) -> None:
    line = {"time": 1, "run_id": "r", "attempt": "1", "step": 3, "data": {"a": 1.0}, "samples": samples}
    call = journal.decode(json.dumps(line).encode())
    assert isinstance(call, Call)
    assert (call.step, dict(call.samples)) == (3, {})
