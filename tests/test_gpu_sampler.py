"""The sampler and its collector, over the fake driver library."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pynvml
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fake_nvml import GIB, FakeNvml
from verl_prometheus.collectors.gpu import GpuCollector
from verl_prometheus.errors import ErrorLog
from verl_prometheus.gpu.reading import GpuReading, NodeReading
from verl_prometheus.gpu.sampler import GpuSampler
from verl_prometheus.nvml import Nvml

Labels = dict[str, str]


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeNvml]:
    with FakeNvml(tmp_path, gpus=2) as fake:
        yield fake


@pytest.fixture
def sampler(fake: FakeNvml) -> GpuSampler:
    return GpuSampler(Nvml(refresh_seconds=0, slow_seconds=0), classify, ErrorLog())


def classify(pids: Iterable[int]) -> dict[int, str]:
    return {pid: {100: "train", 200: "rollout"}.get(pid, "unknown") for pid in pids}


def scrape(sampler: GpuSampler) -> Callable[..., float | None]:
    """What a Prometheus would have stored: a function of sample name and labels."""
    registry = CollectorRegistry()
    registry.register(GpuCollector(sampler.snapshot, node="n1"))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}

    def value(name: str, /, **labels: str) -> float | None:
        return samples.get((name, tuple(sorted({"node": "n1", **labels}.items()))))

    return value


def test_all_families(fake: FakeNvml, sampler: GpuSampler) -> None:
    device = fake[0]
    device.memory_used, device.utilization_percent = 90 * GIB, 87
    device.throttle, device.ecc_uncorrected = pynvml.nvmlClocksThrottleReasonSwPowerCap, 1
    device.run((100, 80 * GIB), (200, 9 * GIB))
    sampler.sample()
    fake.xid(1, 79)
    sampler.sample()

    value = scrape(sampler)

    assert value("verl_gpu_up", gpu="0") == 1
    assert value("verl_gpu_info", gpu="0", uuid="GPU-00000000-fake", name="NVIDIA H200", driver="570.86.15") == 1
    assert value("verl_gpu_utilization_ratio", gpu="0") == 0.87
    assert value("verl_gpu_memory_used_bytes", gpu="0") == 90 * GIB
    assert value("verl_gpu_memory_total_bytes", gpu="0") == 141 * GIB
    assert value("verl_gpu_memory_peak_bytes", gpu="0") == 90 * GIB
    assert value("verl_gpu_process_memory_bytes", gpu="0", role="train") == 80 * GIB
    assert value("verl_gpu_process_memory_bytes", gpu="0", role="rollout") == 9 * GIB
    assert value("verl_gpu_power_watts", gpu="0") == 120
    assert value("verl_gpu_energy_joules_total", gpu="0") == 5_000
    assert value("verl_gpu_temperature_celsius", gpu="0") == 35
    assert value("verl_gpu_sm_clock_hertz", gpu="0") == 1.98e9
    assert value("verl_gpu_throttled", gpu="0", reason="sw_power_cap") == 1
    assert value("verl_gpu_throttled", gpu="0", reason="hw_thermal_slowdown") == 0
    assert value("verl_gpu_uncorrectable_ecc_errors", gpu="0") == 1
    assert value("verl_gpu_last_xid", gpu="0") is None
    assert value("verl_gpu_last_xid", gpu="1") == 79
    assert (value("verl_gpu_last_xid_timestamp_seconds", gpu="1") or 0) > 1.7e9
    assert value("verl_gpu_utilization_distribution_ratio_count", gpu="0") == 2
    assert value("verl_gpu_utilization_distribution_ratio_bucket", gpu="0", le="0.8") == 0
    assert value("verl_gpu_utilization_distribution_ratio_bucket", gpu="0", le="0.9") == 2
    assert value("verl_gpu_memory_distribution_ratio_bucket", gpu="0", le="0.7") == 2


def test_nothing_between_two_scrapes_is_lost(fake: FakeNvml, sampler: GpuSampler) -> None:
    for used, utilization in ((10, 100), (140, 0), (20, 50)):
        fake[0].memory_used, fake[0].utilization_percent = used * GIB, utilization
        sampler.sample()
    value = scrape(sampler)
    assert value("verl_gpu_memory_used_bytes", gpu="0") == 20 * GIB
    assert value("verl_gpu_memory_peak_bytes", gpu="0") == 140 * GIB
    assert value("verl_gpu_memory_distribution_ratio_bucket", gpu="0", le="0.98") == 2
    assert value("verl_gpu_memory_distribution_ratio_count", gpu="0") == 3
    assert value("verl_gpu_utilization_distribution_ratio_bucket", gpu="0", le="0.0") == 1
    assert value("verl_gpu_utilization_distribution_ratio_sum", gpu="0") == 1.5


def test_a_lost_gpu_is_down_and_keeps_its_peak_but_no_old_values(fake: FakeNvml, sampler: GpuSampler) -> None:
    fake[1].memory_used = 100 * GIB
    fake[1].run((100, 100 * GIB))
    sampler.sample()
    fake.scenario.gpus[1].lost = 1
    fake.xid(1, 79)
    sampler.sample()
    value = scrape(sampler)
    assert (value("verl_gpu_up", gpu="0"), value("verl_gpu_up", gpu="1")) == (1, 0)
    for family in ("utilization_ratio", "memory_used_bytes", "power_watts", "energy_joules_total"):
        assert value(f"verl_gpu_{family}", gpu="0") is not None
        assert value(f"verl_gpu_{family}", gpu="1") is None
    assert value("verl_gpu_process_memory_bytes", gpu="1", role="train") is None
    assert value("verl_gpu_memory_peak_bytes", gpu="1") == 100 * GIB
    assert value("verl_gpu_last_xid", gpu="1") == 79
    fake.scenario.gpus[1].lost = 0
    sampler.sample()
    assert scrape(sampler)("verl_gpu_up", gpu="1") == 1


def test_what_a_card_refuses_is_absent(fake: FakeNvml, sampler: GpuSampler) -> None:
    for call in ("memory", "utilization", "energy", "throttle", "ecc", "processes"):
        fake[0].refuse(call)
    sampler.sample()
    value = scrape(sampler)
    assert value("verl_gpu_power_watts", gpu="0") == 120
    for family in (
        "utilization_ratio",
        "memory_used_bytes",
        "memory_total_bytes",
        "memory_peak_bytes",
        "energy_joules_total",
        "uncorrectable_ecc_errors",
        "utilization_distribution_ratio_count",
        "memory_distribution_ratio_count",
    ):
        assert value(f"verl_gpu_{family}", gpu="0") is None, family
        assert value(f"verl_gpu_{family}", gpu="1") is not None, family
    assert value("verl_gpu_throttled", gpu="0", reason="hw_slowdown") is None


def test_without_a_driver_the_node_says_so(fake: FakeNvml, sampler: GpuSampler) -> None:
    fake.scenario.init_result = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    sampler.sample()
    assert scrape(sampler)("verl_gpu_up", gpu="all") == 0
    fake.scenario.init_result = 0
    sampler.sample()
    value = scrape(sampler)
    assert (value("verl_gpu_up", gpu="all"), value("verl_gpu_up", gpu="0")) == (None, 1)


def test_before_the_first_sample_there_is_nothing(sampler: GpuSampler) -> None:
    assert scrape(sampler)("verl_gpu_up", gpu="all") is None


def test_memory_no_process_can_be_seen_for_is_said_once(
    fake: FakeNvml, sampler: GpuSampler, caplog: pytest.LogCaptureFixture
) -> None:
    fake[0].memory_used = 50 * GIB
    fake[1].run((999, GIB))
    for _ in range(3):
        sampler.sample()
    value = scrape(sampler)
    assert value("verl_gpu_process_memory_bytes", gpu="0", role="unknown") == 50 * GIB
    assert value("verl_gpu_process_memory_bytes", gpu="1", role="unknown") == GIB
    assert len([record for record in caplog.records if "PID namespace" in record.message]) == 1


def test_mig_instances_are_gpus_of_their_own(fake: FakeNvml, sampler: GpuSampler) -> None:
    first, _second = fake.split(1, instances=2)
    first.memory_used = 8 * GIB
    sampler.sample()
    value = scrape(sampler)
    assert value("verl_gpu_memory_used_bytes", gpu="1") is None
    assert value("verl_gpu_memory_used_bytes", gpu="1.0") == 8 * GIB
    assert value("verl_gpu_memory_distribution_ratio_bucket", gpu="1.0", le="0.5") == 1
    assert value("verl_gpu_power_watts", gpu="1") == 120
    assert value("verl_gpu_power_watts", gpu="1.0") is None


def test_scraping_never_asks_the_driver(fake: FakeNvml, sampler: GpuSampler) -> None:
    sampler.sample()
    before = list(fake[0].called), list(fake[1].called), fake.scenario.init_calls
    for _ in range(3):
        scrape(sampler)
    assert (list(fake[0].called), list(fake[1].called), fake.scenario.init_calls) == before


class Hanging:
    """A driver that stops answering."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> NodeReading:
        self.reads += 1
        return NodeReading("1.0", None, (GpuReading("0", "GPU-a", "card", memory_used_bytes=5),))

    def close(self) -> None: ...


def test_a_driver_that_hangs_takes_its_values_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("verl_prometheus.gpu.sampler.time.monotonic", lambda: now[0])
    sampler = GpuSampler(Hanging(), classify, ErrorLog())
    sampler.sample()
    now[0] += 14
    assert scrape(sampler)("verl_gpu_memory_used_bytes", gpu="0") == 5
    now[0] += 2
    value = scrape(sampler)
    assert (value("verl_gpu_up", gpu="0"), value("verl_gpu_memory_used_bytes", gpu="0")) == (0, None)
    snapshot = sampler.snapshot()
    assert snapshot is not None
    assert "not answered for 16 s" in str(snapshot.reading.error)


def test_a_driver_that_hangs_from_the_start_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("verl_prometheus.gpu.sampler.time.monotonic", lambda: now[0])
    sampler = GpuSampler(Hanging(), classify, ErrorLog())
    now[0] += 60
    assert scrape(sampler)("verl_gpu_up", gpu="all") == 0


class Failing(Hanging):
    """A reader with a bug, which the sampler survives."""

    def __init__(self) -> None:
        super().__init__()
        self.recovered = threading.Event()
        self.closed = threading.Event()

    def read(self) -> NodeReading:
        reading = super().read()
        if self.reads <= 3:
            raise RuntimeError("a bug")
        if self.reads == 5:
            self.recovered.set()
        return reading

    def close(self) -> None:
        self.closed.set()


def test_the_thread_survives_errors_and_closes_the_reader(caplog: pytest.LogCaptureFixture) -> None:
    reader = Failing()
    errors = ErrorLog()
    sampler = GpuSampler(reader, classify, errors, interval=0.01)
    sampler.start()
    assert reader.recovered.wait(30)
    sampler.stop()
    assert reader.closed.wait(30)
    assert errors.counts() == {"gpu": 3}
    assert [record.levelno for record in caplog.records] == [logging.WARNING], "said once"
    assert scrape(sampler)("verl_gpu_up", gpu="0") == 1
