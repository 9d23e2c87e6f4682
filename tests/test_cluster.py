"""GPU agents on a Ray cluster of several nodes, which are several raylets on this machine over the fake driver library."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from fake_nvml import GIB, FakeNvml
from helpers.prometheus import Prometheus
from helpers.scrape import Scrape
from helpers.waiting import wait_for
from verl_prometheus import cluster as gpu_cluster
from verl_prometheus.cluster import ClusterAgents, Targets
from verl_prometheus.discovery import TargetsFile
from verl_prometheus.errors import ErrorLog
from verl_prometheus.gpu.agent import AgentConfig

LABELS = {"project": "gsm8k", "experiment": "grpo"}


class Following:
    """Agents, and all that they announced."""

    def __init__(self, config: AgentConfig) -> None:
        self.history: list[Targets] = []
        self.errors = ErrorLog()
        self.agents = ClusterAgents(config, self.history.append, self.errors)

    @property
    def targets(self) -> Targets:
        return self.history[-1] if self.history else {}

    def on(self, *nodes: str) -> dict[str, str]:
        """Node id -> URL, once exactly these nodes have a target."""
        wanted = sorted(nodes)
        wait_for(lambda: sorted(self.targets.values()) == wanted, f"targets on {wanted}", seconds=90)
        return {node: f"http://{target}" for target, node in self.targets.items()}


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> FakeNvml:
    fake = FakeNvml(tmp_path_factory.mktemp("nvml"), gpus=4)
    for gpu in range(4):
        fake[gpu].memory_used, fake[gpu].utilization_percent = (60 + gpu) * GIB, 90
    return fake


@pytest.fixture(scope="module")
def cluster(fake: FakeNvml) -> Iterator[Cluster]:
    """A head without GPUs, as a trainer may have it; nodes come and go with the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in fake.environment().items():
            patch.setenv(name, value)
        patch.setenv("RAY_AUTH_MODE", "disabled")
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
        ray.init(address=cluster.address, namespace="test", log_to_driver=False)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def add_node(cluster: Cluster) -> Iterator[Callable[..., tuple[object, str]]]:
    """Adds a node, which the test may remove: (node, its id)."""
    added = []

    def add(gpus: int) -> tuple[object, str]:
        node = cluster.add_node(num_cpus=1, num_gpus=gpus)
        added.append(node)
        return node, node.node_id

    yield add
    for node in added:
        if node in cluster.worker_nodes:
            cluster.remove_node(node)


@pytest.fixture
def follow() -> Iterator[Callable[[AgentConfig], Following]]:
    started: list[Following] = []

    def start(config: AgentConfig) -> Following:
        started.append(Following(config))
        return started[-1]

    yield start
    for one in started:
        one.agents.stop()


AGENT = "ray::NodeGpuAgent"


def processes(fake: FakeNvml, beginning: str) -> list[int]:
    """PIDs of this test's cluster by the beginning of their title."""
    scenario = fake.environment()["FAKE_NVML_SCENARIO"]
    pids = map(int, filter(str.isdigit, os.listdir("/proc")))
    return [pid for pid in pids if proc(pid, "cmdline").startswith(beginning) and scenario in proc(pid, "environ")]


def proc(pid: int, file: str) -> str:
    try:
        return Path(f"/proc/{pid}/{file}").read_text(errors="replace")
    except OSError:
        return ""


def test_an_agent_on_every_gpu_node_and_only_there(
    add_node: Callable[..., tuple[object, str]], follow: Callable[[AgentConfig], Following]
) -> None:
    wait_for(lambda: not gpu_cluster.has_gpus(), "a cluster without GPUs")
    (_, first), (_, second), _ = add_node(gpus=4), add_node(gpus=4), add_node(gpus=0)
    assert gpu_cluster.has_gpus()
    following = follow(AgentConfig(labels=LABELS, interval=0.1))
    urls = following.on(first, second)
    for url in urls.values():
        wait_for(lambda url=url: Scrape(url).values("verl_gpu_up"), "a first sample")  # type: ignore[misc]
        scrape = Scrape(url)
        assert scrape.values("verl_gpu_up", **LABELS) == [1, 1, 1, 1]
        assert scrape.value("verl_gpu_memory_used_bytes", gpu="3", **LABELS) == 63 * GIB
    assert following.errors.counts() == {}


def test_the_agents_take_no_resources(
    add_node: Callable[..., tuple[object, str]], follow: Callable[[AgentConfig], Following]
) -> None:
    _, node = add_node(gpus=2)
    before = ray.available_resources()
    follow(AgentConfig()).on(node)
    after = ray.available_resources()
    assert (after["CPU"], after["GPU"]) == (before["CPU"], before["GPU"])


def test_a_node_that_joins_later_is_watched_and_one_that_leaves_is_withdrawn(
    cluster: Cluster, add_node: Callable[..., tuple[object, str]], follow: Callable[[AgentConfig], Following]
) -> None:
    _, first = add_node(gpus=1)
    following = follow(AgentConfig())
    following.on(first)
    node, second = add_node(gpus=1)
    following.on(first, second)
    cluster.remove_node(node)
    following.on(first)


def test_a_dead_agent_is_started_again(
    fake: FakeNvml, add_node: Callable[..., tuple[object, str]], follow: Callable[[AgentConfig], Following]
) -> None:
    _, node = add_node(gpus=1)
    following = follow(AgentConfig())
    old = following.on(node)[node]
    (pid,) = processes(fake, AGENT)
    os.kill(pid, signal.SIGKILL)
    new = wait_for(lambda: [f"http://{one}" for one in following.targets if f"http://{one}" != old], "a new agent", 90)
    assert {} in following.history, "the dead agent's target was withdrawn first"
    wait_for(lambda: Scrape(new[0]).values("verl_gpu_up"), "a first sample")


def test_a_dead_supervisor_is_started_again_with_its_agents(
    fake: FakeNvml, add_node: Callable[..., tuple[object, str]], follow: Callable[[AgentConfig], Following]
) -> None:
    _, node = add_node(gpus=1)
    following = follow(AgentConfig())
    old = following.on(node)
    (pid,) = processes(fake, "ray::GpuSupervisor")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: following.targets == {}, "the withdrawal", seconds=60)
    assert following.on(node) != old
    assert len(processes(fake, AGENT)) == 1
    assert following.errors.counts() == {"cluster": 1}


def test_stopping_ends_the_agents_and_withdraws_their_targets(
    fake: FakeNvml, add_node: Callable[..., tuple[object, str]], follow: Callable[[AgentConfig], Following]
) -> None:
    _, node = add_node(gpus=1)
    following = follow(AgentConfig())
    following.on(node)
    following.agents.stop()
    assert following.targets == {}
    wait_for(lambda: not processes(fake, AGENT), "the agents to end")
    assert following.errors.counts() == {}


DRIVER = """
import sys, time, ray
from verl_prometheus.cluster import ClusterAgents
from verl_prometheus.errors import ErrorLog
from verl_prometheus.gpu.agent import AgentConfig
ray.init(address=sys.argv[1], log_to_driver=False)
ClusterAgents(AgentConfig(), lambda targets: print(len(targets), flush=True), ErrorLog())
time.sleep(600)
"""


def test_agents_die_with_a_killed_trainer(
    fake: FakeNvml, cluster: Cluster, add_node: Callable[..., tuple[object, str]]
) -> None:
    add_node(gpus=1)
    command = [sys.executable, "-c", DRIVER, cluster.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline().strip() == "1"
        assert len(processes(fake, AGENT)) == 1
        driver.kill()
    wait_for(lambda: not processes(fake, AGENT), "the agents to end", seconds=60)


def test_simulated_gpus_are_as_many_as_ray_counts(
    add_node: Callable[..., tuple[object, str]], follow: Callable[[AgentConfig], Following]
) -> None:
    _, node = add_node(gpus=3)
    url = follow(AgentConfig(backend="simulated")).on(node)[node]
    wait_for(lambda: Scrape(url).values("verl_gpu_up"), "a first sample")
    names = [labels["name"] for labels in Scrape(url).label_sets("verl_gpu_info")]
    assert names == ["simulated NVIDIA H200"] * 3


def test_processes_of_the_run_are_told_apart(
    fake: FakeNvml, add_node: Callable[..., tuple[object, str]], follow: Callable[[AgentConfig], Following]
) -> None:
    """With the titles that this version of Ray really gives its actors."""

    class WorkerDict:
        def pid(self) -> int:
            return os.getpid()

    class vLLMHttpServer(WorkerDict):
        """Named as in verl."""

    _, node = add_node(gpus=1)
    train, rollout = (ray.remote(cls).options(num_cpus=0).remote() for cls in (WorkerDict, vLLMHttpServer))
    pids = ray.get([train.pid.remote(), rollout.pid.remote()])
    fake[0].run((pids[0], 40 * GIB), (pids[1], 20 * GIB), (os.getpid(), GIB))
    url = follow(AgentConfig()).on(node)[node]
    memory = wait_for(
        lambda: {
            sample.labels["role"]: sample.value
            for sample in Scrape(url).samples
            if sample.name == "verl_gpu_process_memory_bytes" and sample.labels["gpu"] == "0"
        },
        "a first sample",
    )
    assert memory == {"train": 40 * GIB, "rollout": 20 * GIB, "other": GIB}
    fake[0].run()


def test_a_real_prometheus_finds_and_scrapes_the_agents(
    newest_prometheus_bin: Path,
    tmp_path: Path,
    add_node: Callable[..., tuple[object, str]],
    follow: Callable[[AgentConfig], Following],
) -> None:
    nodes = [add_node(gpus=4)[1] for _ in range(2)]
    file = TargetsFile(tmp_path / "targets", "trainer", "gpu")
    urls = follow(AgentConfig(labels=LABELS, interval=0.1)).on(*nodes)
    file.write([{"targets": [url.removeprefix("http://") for url in urls.values()], "labels": {}}])
    discovery = {"verl": {"file_sd_configs": [{"files": [f"{tmp_path}/targets/*.json"], "refresh_interval": "1s"}]}}
    with Prometheus(newest_prometheus_bin, tmp_path / "prometheus", discovery) as prometheus:
        query = 'count by (instance) (verl_gpu_up{project="gsm8k", experiment="grpo"} == 1)'
        wait_for(lambda: len(prometheus.query(query)) == 2, "both nodes' GPUs")
        found = prometheus.query(query)
        assert {labels["instance"] for labels, _ in found} == {url.removeprefix("http://") for url in urls.values()}
        assert [value for _, value in found] == [4, 4]
