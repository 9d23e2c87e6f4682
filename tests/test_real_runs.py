"""verl trains, a real Prometheus scrapes, and everything that verl's own `file` logger wrote is found by PromQL."""

from __future__ import annotations

import platform
import socket
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fake_nvml import FakeNvml
from helpers.prometheus import Prometheus
from helpers.runs import RealRun
from verl_prometheus import catalog
from verl_prometheus.demo.training import Kind

pytestmark = pytest.mark.real_run

LEGACY = ("trainer.use_v1=False",)
ASYNC = ("trainer.v1.trainer_mode=colocate_async",)
BATCH = 64  # samples: 16 prompts, 4 answers each
SAVE = ("trainer.save_freq=3", "trainer.test_freq=2")


@dataclass
class Trained:
    run: RealRun
    status: int
    samples: dict[str, list[tuple[float, float]]]  # of each series made from a verl key: (time, value)
    steps: dict[float, float]  # scrape time -> verl_step
    last_states: set[str]
    runs: dict[str, dict[str, str]]  # labels of verl_run_info, by job
    gpus: list[dict[str, str]]  # labels of the GPU series
    busy_in: dict[str, float]  # phase -> samples of a GPU's utilisation in it
    distributions: dict[str, float]  # what the last scrape counted and summed over samples of the batches


BUSY_IN = """
count_over_time((
  verl_gpu_utilization_ratio{gpu="0"}
  * on (project, experiment) group_left (phase) (verl_phase_active{job="discovered",phase="%s"} == 1)
)[1h:200ms])"""


DISTRIBUTIONS = """{
  job="verl",scope=~"|trajectory",le=~"|.Inf",
  __name__=~"verl_reward_distribution_bucket|verl_(response_length_distribution_tokens|rollout_latency_seconds)_(count|sum)"
}"""


def train(
    kind: Kind,
    steps: int,
    overrides: tuple[str, ...],
    bin_folder: Path,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    discover: bool = False,
) -> Trained:
    run = RealRun(kind, folder, steps, overrides, environment)
    scrape: dict[
        str, Any
    ] = {  # Prometheus takes up to 5 s to begin with a target that it discovers: too long for the first steps here
        "verl": {"static_configs": [{"targets": [run.url.removeprefix("http://")]}]},
    }
    if discover:
        scrape["discovered"] = {
            "file_sd_configs": [{"files": [f"{run.targets}/*.json"], "refresh_interval": "1s"}],
            "params": {"job": ["discovered"]},  # so that the run's end waits for both jobs
        }
    with Prometheus(bin_folder, folder / "prometheus", scrape, interval="100ms") as prometheus:
        status = run.watch()
        return Trained(
            run=run,
            status=status,
            samples={
                labels["key"]: samples
                for labels, samples in prometheus.samples(
                    '{job="verl",key!="",__name__!="verl_nonfinite_values_total"}'
                )
            },
            steps={at: step for _, samples in prometheus.samples('verl_step{job="verl"}') for at, step in samples},
            last_states={
                labels["state"] for labels, samples in prometheus.samples("verl_run_state") if samples[-1][1] == 1.0
            },
            runs={labels["job"]: labels for labels, _ in prometheus.samples("verl_run_info")},
            gpus=[labels for labels, _ in prometheus.samples("verl_gpu_memory_used_bytes")],
            busy_in={
                phase: value for phase in ("gen", "update_actor") for _, value in prometheus.query(BUSY_IN % phase)
            },
            distributions={labels["__name__"]: samples[-1][1] for labels, samples in prometheus.samples(DISTRIBUTIONS)},
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def grpo(folder: Path, newest_prometheus_bin: Path) -> Trained:
    """With GPUs of a fake NVML beside the CPU that it trains on."""
    (folder / "grpo").mkdir()
    fake = FakeNvml(folder / "grpo", gpus=2)
    fake[0].utilization_percent = 50
    return train("grpo", 6, SAVE, newest_prometheus_bin, folder / "grpo", fake.environment(), discover=True)


@pytest.fixture(scope="module")
def legacy(folder: Path, newest_prometheus_bin: Path) -> Trained:
    (folder / "legacy").mkdir()
    return train("grpo", 6, (*SAVE, *LEGACY), newest_prometheus_bin, folder / "legacy")


@pytest.fixture(scope="module")
def asynchronous(folder: Path, newest_prometheus_bin: Path) -> Trained:
    (folder / "async").mkdir()
    return train("grpo", 5, ASYNC, newest_prometheus_bin, folder / "async")


@pytest.fixture(scope="module")
def sft(folder: Path, newest_prometheus_bin: Path) -> Trained:
    (folder / "sft").mkdir()
    slow = ("data.train_batch_size=256", "data.micro_batch_size_per_gpu=8")
    return train("sft", 8, slow, newest_prometheus_bin, folder / "sft")


@pytest.mark.parametrize("name", ["grpo", "legacy", "asynchronous", "sft"])
def test_prometheus_has_every_step_as_verls_own_file_logger_wrote_it(name: str, request: pytest.FixtureRequest) -> None:
    trained: Trained = request.getfixturevalue(name)
    assert trained.status == 0, trained.run.output()
    shipped = catalog.load()
    logged: dict[int, dict[str, float]] = defaultdict(dict)
    for step, data in trained.run.logged():
        logged[step].update(data)
    assert len(logged) >= 5
    for step, data in logged.items():
        scrapes = [at for at, scraped in trained.steps.items() if scraped == step]
        assert scrapes, f"step {step} was never scraped"
        for key, value in data.items():
            found = dict(trained.samples[key])
            at = max(set(scrapes) & set(found))
            expected = value * shipped.series(key).scale
            assert found[at] == pytest.approx(expected, rel=1e-12, abs=0, nan_ok=True), (step, key)


@pytest.mark.parametrize("name", ["grpo", "legacy", "asynchronous", "sft"])
def test_a_scrape_shows_no_key_of_another_step(name: str, request: pytest.FixtureRequest) -> None:
    """Every stored value of every scrape is the one that was logged at the step of that scrape."""
    trained: Trained = request.getfixturevalue(name)
    shipped = catalog.load()
    logged: dict[tuple[float, str], set[float]] = defaultdict(set)
    for step, data in trained.run.logged():
        for key, value in data.items():
            logged[step, key].add(value * shipped.series(key).scale)
    for key, samples in trained.samples.items():
        if shipped.series(key).retained:
            continue
        for at, value in samples:
            expected = logged[trained.steps[at], key]
            assert any(value == pytest.approx(one, rel=1e-12, abs=0, nan_ok=True) for one in expected), (at, key)


@pytest.mark.parametrize("name", ["grpo", "legacy", "asynchronous", "sft"])
def test_the_end_was_scraped_and_nothing_is_left(name: str, request: pytest.FixtureRequest) -> None:
    trained: Trained = request.getfixturevalue(name)
    assert "finished" in trained.last_states
    assert list(trained.run.targets.iterdir()) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(trained.run.url.rpartition(":")[2])), timeout=1)


@pytest.mark.parametrize(
    ("name", "trainer", "algorithm", "target"),
    [
        ("grpo", "PPOTrainerSync", "grpo", 6),
        ("legacy", "RayPPOTrainer", "grpo", 6),
        ("asynchronous", "PPOTrainerColocateAsync", "grpo", 5),
        ("sft", "SFTTrainer", "sft", 8),
    ],
)
def test_what_the_run_says_of_itself(
    name: str, trainer: str, algorithm: str, target: int, request: pytest.FixtureRequest
) -> None:
    trained: Trained = request.getfixturevalue(name)
    info = trained.runs["verl"]
    assert (info["trainer"], info["algorithm"], info["verl_version"]) == (trainer, algorithm, "0.9.1")
    assert info["project"] == "tiny"
    assert max(trained.steps.values()) == target


def test_a_run_is_found_by_its_discovery_file(grpo: Trained) -> None:
    assert grpo.runs["discovered"]["run_id"] == grpo.runs["verl"]["run_id"]
    assert grpo.runs["discovered"]["project"] == "tiny"  # not exported_project: the target has no such label


def test_gpu_series_stand_beside_the_training_ones(grpo: Trained) -> None:
    assert {labels["gpu"] for labels in grpo.gpus} == {"0", "1"}
    for labels in grpo.gpus:
        assert (labels["project"], labels["experiment"], labels["job"]) == ("tiny", "grpo", "discovered")
        assert labels["node"] == platform.node()
    assert grpo.busy_in["gen"] > 0
    assert grpo.busy_in["update_actor"] > 0


@pytest.mark.parametrize("name", ["grpo", "legacy", "asynchronous"])
def test_the_phase_is_seen_while_it_runs(name: str, request: pytest.FixtureRequest) -> None:
    trained: Trained = request.getfixturevalue(name)
    timed = {
        key.removeprefix("timing_s/") for _, data in trained.run.logged() for key in data if key.startswith("timing_s/")
    }
    timed = {phase for phase in timed if "/" not in phase}
    seen = {phase for poll in trained.run.polls for phase in poll.starts}
    assert {phase for phase in timed if seconds(trained, phase) > 0.3} <= seen
    assert {"gen", "update_actor"} <= seen
    inside = [poll.starts for poll in trained.run.polls if "gen" in poll.starts]
    assert all(next(iter(starts)) == "step" for starts in inside), "gen runs inside step, and the outermost comes first"


@pytest.mark.parametrize("name", ["grpo", "legacy", "asynchronous"])
def test_the_live_phases_agree_with_what_verl_logs_at_the_end(name: str, request: pytest.FixtureRequest) -> None:
    """timing_s/<phase> lies between what the polls saw of it at least and at most."""
    trained: Trained = request.getfixturevalue(name)
    polls = trained.run.polls
    for phase in ("gen", "update_actor", "step"):
        least: dict[float, float] = {}  # start -> seconds until it was last seen
        most: dict[float, float] = {}  # start -> seconds until it was first not seen
        for poll, following in pairwise(polls):
            if (start := poll.starts.get(phase)) is not None:
                least[start], most[start] = poll.before - start, following.after - start
        logged = [data[f"timing_s/{phase}"] for _, data in trained.run.logged() if f"timing_s/{phase}" in data]
        slack = 0.05 * len(logged)
        assert sum(least.values()) <= sum(logged) + slack
        assert sum(one > 1 for one in logged) <= len(least) <= len(logged)  # no poll may come in a short one
        if len(least) == len(logged):
            assert sum(logged) <= sum(most.values()) + slack


@pytest.mark.parametrize("name", ["grpo", "legacy", "asynchronous"])
def test_the_distributions_have_every_sample_of_every_step(name: str, request: pytest.FixtureRequest) -> None:
    trained: Trained = request.getfixturevalue(name)
    steps = [data for _, data in trained.run.logged() if "response_length/mean" in data]
    counted = trained.distributions
    samples = BATCH * len(steps)
    assert counted["verl_response_length_distribution_tokens_count"] == samples
    assert counted["verl_reward_distribution_bucket"] == samples
    assert counted["verl_rollout_latency_seconds_count"] == samples
    mean_length = sum(data["response_length/mean"] for data in steps) / len(steps)
    assert counted["verl_response_length_distribution_tokens_sum"] == pytest.approx(samples * mean_length)
    if (key := "timing_s/agent_loop/generate_sequences/mean") in steps[0]:
        mean_latency = sum(data[key] for data in steps) / len(steps)
        assert counted["verl_rollout_latency_seconds_sum"] == pytest.approx(samples * mean_latency)
    else:
        assert 0 < counted["verl_rollout_latency_seconds_sum"] < samples * max(data["timing_s/gen"] for data in steps)


def seconds(trained: Trained, phase: str) -> float:
    return sum(data.get(f"timing_s/{phase}", 0.0) for _, data in trained.run.logged())
