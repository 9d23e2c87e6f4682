"""A node's agent: its endpoint and page, alone and as `verl-prometheus node`; and which GPUs a run watches how."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from fake_nvml import GIB, FakeNvml
from helpers.prometheus import free_port, get
from helpers.scrape import Scrape
from helpers.waiting import wait_for
from verl_prometheus import node_command
from verl_prometheus.errors import ErrorLog
from verl_prometheus.gpu import page
from verl_prometheus.gpu.agent import AgentConfig, GpuAgent
from verl_prometheus.gpu.reading import GpuReading, NodeReading
from verl_prometheus.gpu.sampler import GpuSnapshot
from verl_prometheus.gpu.visible import VisibleGpus, visible_devices
from verl_prometheus.gpu.watch import GpuWatch
from verl_prometheus.protection import Protection
from verl_prometheus.settings import RemoteWriteSettings

RAYLET = "/site-packages/ray/core/src/ray/raylet/raylet\0--raylet_socket_name=x"


@pytest.fixture(autouse=True)
def all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeNvml]:
    with FakeNvml(tmp_path, gpus=4) as fake:
        yield fake


@pytest.fixture
def agent(fake: FakeNvml) -> Iterator[GpuAgent]:
    agent = GpuAgent(AgentConfig(interval=0.1, labels={"project": "p"}, address="127.0.0.1"))
    wait_for(lambda: Scrape(f"http://{agent.target}").values("verl_gpu_up"), "a first sample")
    yield agent
    agent.close()


# The endpoint


def test_an_agent_serves_its_gpus_and_itself(fake: FakeNvml, agent: GpuAgent) -> None:
    scrape = Scrape(f"http://{agent.target}")
    assert scrape.values("verl_gpu_up", project="p", node=platform.node()) == [1, 1, 1, 1]
    assert scrape.values("verl_exporter_errors_total") == []
    assert scrape.value("process_resident_memory_bytes", project="p") > 0


def test_samples_go_on_between_scrapes(fake: FakeNvml, agent: GpuAgent) -> None:
    def counted() -> float:
        return Scrape(f"http://{agent.target}").value("verl_gpu_memory_distribution_ratio_count", gpu="0")

    before = counted()
    fake[0].memory_used = 100 * GIB
    wait_for(lambda: counted() > before + 2, "more samples")
    fake[0].memory_used = 0
    assert Scrape(f"http://{agent.target}").value("verl_gpu_memory_peak_bytes", gpu="0") == 100 * GIB


def test_a_closed_agent_frees_its_port_and_its_driver(fake: FakeNvml) -> None:
    agent = GpuAgent(AgentConfig(address="127.0.0.1"))
    agent.close()
    with pytest.raises(OSError, match="refused"):
        get(f"http://{agent.target}/metrics")
    with pytest.raises(pynvml.NVMLError):
        pynvml.nvmlDeviceGetCount()


# The page


def test_the_page_shows_gpus_at_a_glance(fake: FakeNvml, agent: GpuAgent) -> None:
    fake[0].memory_used = 47 * GIB
    wait_for(lambda: "47.0 of 141 GiB" in get(f"http://{agent.target}/").decode(), "the memory")
    shown = get(f"http://{agent.target}/").decode()
    assert "120 W" in shown
    assert f"GPUs of {platform.node()}" in shown


def test_the_page_says_what_is_wrong_and_escapes_it() -> None:
    reading = NodeReading("<1>", "no <driver>", (GpuReading("0", "u", "<b>card</b>", up=False),))
    text = page.render("<node>", GpuSnapshot(reading))
    for expected in ("no &lt;driver&gt;", "&lt;b&gt;card&lt;/b&gt;", "down", "&lt;node&gt;", "Driver: &lt;1&gt;"):
        assert expected in text
    assert "No sample yet." in page.render("n", None)


def test_the_page_says_simulated() -> None:
    agent = GpuAgent(AgentConfig(backend="simulated", address="127.0.0.1", simulated=2))
    try:
        page_of = f"http://{agent.target}/"
        wait_for(lambda: get(page_of).decode().count("simulated NVIDIA H200") == 2, "two GPUs that say what they are")
    finally:
        agent.close()


# Which GPUs


class Two:
    """Two GPUs, the second in MIG mode."""

    def read(self) -> NodeReading:
        names = [("0", "GPU-aa"), ("1", "GPU-bb"), ("1.0", "MIG-cc"), ("1.1", "MIG-dd"), ("10", "GPU-ee")]
        return NodeReading(gpus=tuple(GpuReading(index, uuid) for index, uuid in names))

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("devices", "shown"),
    [
        ("0", ["0"]),
        ("1", ["1", "1.0", "1.1"]),
        ("10, 0", ["0", "10"]),
        ("GPU-bb", ["1"]),
        ("MIG-dd", ["1", "1.1"]),
        ("4,5", ["0", "1", "1.0", "1.1", "10"]),
        ("0,5", ["0", "1", "1.0", "1.1", "10"]),
    ],
)
def test_a_run_is_shown_the_gpus_it_may_use(devices: str, shown: list[str]) -> None:
    assert [gpu.index for gpu in VisibleGpus(Two(), devices).read().gpus] == shown


def parent(proc: Path, command: str, environment: str) -> None:
    directory = proc / str(os.getppid())
    directory.mkdir()
    (directory / "cmdline").write_text(command)
    (directory / "environ").write_text(environment)


def test_ray_empties_the_variable_but_the_raylet_has_it(tmp_path: Path) -> None:
    parent(tmp_path, RAYLET, "A=b\0CUDA_VISIBLE_DEVICES=2,3\0C=d\0")
    assert visible_devices({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == "2,3"


def test_a_raylet_without_the_variable_may_use_all(tmp_path: Path) -> None:
    parent(tmp_path, RAYLET, "A=b\0")
    assert visible_devices({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) is None


def test_without_ray_the_process_itself_says(tmp_path: Path) -> None:
    parent(tmp_path, "torchrun", "CUDA_VISIBLE_DEVICES=7\0")
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "0,1"}, tmp_path) == "0,1"
    assert visible_devices({}, tmp_path) is None


# How they are watched, without Ray (with it: test_cluster.py)


def watch(**options: Any) -> GpuWatch:
    defaults: dict[str, Any] = {
        "enabled": None,
        "backend": "nvml",
        "interval": 1.0,
        "cluster": True,
        "labels": {},
        "address": "",
        "protection": Protection(),
        "remote_write": RemoteWriteSettings(),
    }
    return GpuWatch(**{**defaults, **options}, errors=ErrorLog())


def test_the_gpus_of_this_node_are_watched_in_this_process(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    watching = watch()
    (collector,) = watching.collectors
    watching.start(lambda targets: None)

    def up() -> list[str]:
        return [s.labels["gpu"] for family in collector.collect() for s in family.samples if s.name == "verl_gpu_up"]

    assert wait_for(up, "a first sample") == ["1", "2"]
    watching.stop()


def test_nothing_is_watched_where_there_is_nothing(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watch(enabled=False).collectors == ()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert watch().collectors == ()
    assert len(watch(enabled=True).collectors) == 1
    assert len(watch(backend="simulated").collectors) == 1


def test_auto_needs_a_driver_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("verl_prometheus.gpu.local.ctypes.CDLL", missing)
    watching = watch()
    assert watching.collectors == ()
    watching.start(lambda targets: None)
    watching.stop()


# verl-prometheus node


def node_arguments(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    node_command.arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_node_command_serves_until_it_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    fake = FakeNvml(tmp_path, gpus=2)
    port = free_port()
    code = "import argparse, sys; from verl_prometheus import node_command as n; p = argparse.ArgumentParser(); "
    code += "n.arguments(p); sys.exit(n.run(p.parse_args()))"
    options = ["--port", str(port), "--address", "127.0.0.1", "--label", "cluster=a", "--interval", "0.1"]
    options += ["--targets-dir", str(tmp_path / "targets")]
    command = [sys.executable, "-c", code, *options]
    with subprocess.Popen(command, env=os.environ | fake.environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(lambda: Scrape(url).values("verl_gpu_up"), "a first sample")
            assert Scrape(url).values("verl_gpu_up", cluster="a") == [1, 1]
            (file,) = (tmp_path / "targets").glob("*.json")
            assert json.loads(file.read_text()) == [{"targets": [f"127.0.0.1:{port}"], "labels": {}}]
        finally:
            process.send_signal(number)
        assert process.wait(timeout=30) == 0
        assert process.stdout is not None
        assert f"serving {url}/metrics" in process.stdout.read()
    assert list((tmp_path / "targets").iterdir()) == []


def test_a_node_without_a_driver_says_so(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path)
    fake.scenario.init_result = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    with fake:
        agent = GpuAgent(AgentConfig(address="127.0.0.1"))
        wait_for(lambda: Scrape(f"http://{agent.target}").values("verl_gpu_up", gpu="all") == [0], "the bad news")
        assert "load the kernel driver" in get(f"http://{agent.target}/").decode()
        agent.close()


@pytest.mark.parametrize("interval", ["0.05", "0", "-1", "nan", "soon"])
def test_an_interval_the_driver_cannot_keep_up_with_is_refused(
    interval: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        node_arguments("--interval", interval)
    assert "--interval" in capsys.readouterr().err


@pytest.mark.parametrize("label", ["nonsense", "project=x", "1a=b"])
def test_a_bad_label_is_refused_before_anything_starts(label: str) -> None:
    with pytest.raises(ValueError, match=r"label"):
        node_command.run(node_arguments("--label", label))
