"""nvml.py on the real pynvml, over a fake driver library (tests/fake_nvml)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from fake_nvml import GIB, FakeNvml, unload_pynvml
from verl_prometheus.gpu.reading import GpuProcess, GpuReading, NodeReading
from verl_prometheus.nvml import Nvml


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeNvml]:
    with FakeNvml(tmp_path) as fake:
        yield fake


@pytest.fixture
def nvml(fake: FakeNvml) -> Iterator[Nvml]:
    """Reads everything and looks for everything again in every sample."""
    nvml = Nvml(refresh_seconds=0, slow_seconds=0)
    yield nvml
    nvml.close()


def gpu(reading: NodeReading, index: str) -> GpuReading:
    (found,) = [gpu for gpu in reading.gpus if gpu.index == index]
    return found


def up(reading: NodeReading) -> dict[str, bool]:
    return {gpu.index: gpu.up for gpu in reading.gpus}


def test_every_field_of_a_data_centre_gpu(fake: FakeNvml, nvml: Nvml) -> None:
    device = fake[2]
    device.memory_used, device.utilization_percent, device.power_mw = 90 * GIB, 87, 655_250
    device.energy_mj, device.temperature_c, device.sm_clock_mhz = 123_456_789, 61, 1_755
    device.throttle = pynvml.nvmlClocksThrottleReasonSwPowerCap | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    device.ecc_uncorrected = 3
    device.run((4242, 80 * GIB), (4243, 10 * GIB))

    reading = nvml.read()

    assert (reading.driver, reading.error) == ("570.86.15", None)
    assert gpu(reading, "2") == GpuReading(
        index="2",
        uuid="GPU-00000002-fake",
        name="NVIDIA H200",
        up=True,
        utilization_ratio=0.87,
        memory_used_bytes=90 * GIB,
        memory_total_bytes=141 * GIB,
        power_watts=655.25,
        energy_joules=123_456.789,
        temperature_celsius=61,
        sm_clock_hertz=1.755e9,
        throttle_reasons=frozenset({"sw_power_cap", "hw_thermal_slowdown"}),
        uncorrectable_ecc_errors=3,
        processes=(GpuProcess(4242, 80 * GIB), GpuProcess(4243, 10 * GIB)),
    )


@pytest.mark.parametrize("count", [1, 8, 16])
def test_all_gpus_are_read(tmp_path: Path, count: int) -> None:
    with FakeNvml(tmp_path, gpus=count):
        reading = Nvml().read()
    assert up(reading) == {str(index): True for index in range(count)}


def test_an_idle_gpu_has_no_throttle_reason(fake: FakeNvml, nvml: Nvml) -> None:
    fake[0].throttle = pynvml.nvmlClocksThrottleReasonGpuIdle
    assert gpu(nvml.read(), "0").throttle_reasons == frozenset()


def test_memory_of_a_driver_that_does_not_tell_reserved_from_used(
    fake: FakeNvml, nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.read()
    monkeypatch.setitem(pynvml._nvmlGetFunctionPointer_cache, "nvmlDeviceGetMemoryInfo_v2", lambda *_: 13)
    fake[0].memory_used, fake[0].memory_reserved = 10 * GIB, GIB
    assert gpu(nvml.read(), "0").memory_used_bytes == 11 * GIB


def test_unified_memory_has_no_memory_of_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with FakeNvml(tmp_path, gpus=1) as fake:
        fake[0].name = b"NVIDIA GB10"
        for call in ("memory", "ecc", "energy"):
            fake[0].refuse(call)
        fake[0].run((7, 3 * GIB))
        nvml = Nvml(refresh_seconds=0, slow_seconds=0)
        for _ in range(3):
            (spark,) = nvml.read().gpus
    assert spark.up
    assert (spark.memory_used_bytes, spark.memory_total_bytes) == (None, None)
    assert (spark.energy_joules, spark.uncorrectable_ecc_errors) == (None, None)
    assert spark.power_watts == 120
    assert spark.processes == (GpuProcess(7, 3 * GIB),)
    assert sorted(record.message for record in caplog.records) == [
        f"GPU 0: NVIDIA GB10 does not report {field}: Not Supported; left out"
        for field in ("ECC errors", "energy", "memory")
    ]


def test_a_refused_field_is_said_once_for_all_gpus_of_a_kind(fake: FakeNvml, caplog: pytest.LogCaptureFixture) -> None:
    for index in range(8):
        fake[index].refuse("power", pynvml.NVML_ERROR_NO_PERMISSION)
    nvml = Nvml()
    for _ in range(5):
        reading = nvml.read()
    assert [gpu.power_watts for gpu in reading.gpus] == [None] * 8
    assert all(gpu.up and gpu.temperature_celsius == 35 for gpu in reading.gpus)
    assert len([record for record in caplog.records if "power" in record.message]) == 1
    assert fake[0].calls("power") == 1, "a refused field is not asked for again before the next refresh"


def test_a_passing_error_leaves_the_field_out_of_that_sample_only(fake: FakeNvml) -> None:
    nvml = Nvml()
    fake[1].refuse("clock", pynvml.NVML_ERROR_TIMEOUT)
    assert gpu(nvml.read(), "1").sm_clock_hertz is None
    fake[1].refuse("clock", pynvml.NVML_SUCCESS)
    assert gpu(nvml.read(), "1").sm_clock_hertz == 1.98e9


def test_slow_fields_are_kept_between_their_readings(fake: FakeNvml) -> None:
    nvml = Nvml(slow_seconds=3600)
    fake[0].run((1, GIB))
    for energy in (1_000, 2_000):
        fake[0].energy_mj, fake[0].temperature_c = energy, energy // 100
        reading = gpu(nvml.read(), "0")
    assert (reading.energy_joules, reading.temperature_celsius) == (1.0, 20.0)
    assert reading.processes == (GpuProcess(1, GIB),)
    assert fake[0].calls("energy") == 1


def test_a_process_whose_memory_the_driver_does_not_know(fake: FakeNvml, nvml: Nvml) -> None:
    fake[0].run((5, 2**64 - 1))
    assert gpu(nvml.read(), "0").processes == (GpuProcess(5, None),)


def test_mig_instances_carry_the_memory_and_their_gpu_the_power(fake: FakeNvml, nvml: Nvml) -> None:
    first, second = fake.split(1, instances=2)
    first.memory_used, second.memory_used = 5 * GIB, 6 * GIB
    second.run((77, 6 * GIB))

    reading = nvml.read()

    assert list(up(reading)) == ["0", "1", "1.0", "1.1", "2", "3", "4", "5", "6", "7"]
    board, instance = gpu(reading, "1"), gpu(reading, "1.1")
    assert (board.power_watts, board.memory_used_bytes, board.processes) == (120, None, None)
    assert (instance.memory_used_bytes, instance.memory_total_bytes) == (6 * GIB, 16 * GIB)
    assert instance.processes == (GpuProcess(77, 6 * GIB),)
    assert (instance.uuid, instance.name) == ("MIG-0001-0001-fake", "NVIDIA H200 MIG 1g.18gb")
    assert (instance.utilization_ratio, instance.power_watts) == (None, None)


def test_mig_can_be_reconfigured(fake: FakeNvml, nvml: Nvml) -> None:
    fake.split(0, instances=3)
    assert "0.2" in up(nvml.read())
    fake.scenario.gpus[0].mig_count = 1
    assert "0.0" in up(nvml.read())
    assert "0.2" not in up(nvml.read())
    fake.scenario.gpus[0].mig_enabled = 0
    assert gpu(nvml.read(), "0").memory_total_bytes == 141 * GIB


def test_a_gpu_of_another_container_is_left_out(fake: FakeNvml, caplog: pytest.LogCaptureFixture) -> None:
    fake[3].refuse("handle", pynvml.NVML_ERROR_NO_PERMISSION)
    nvml = Nvml(refresh_seconds=0)
    nvml.read()
    assert "3" not in up(nvml.read())
    assert len(caplog.records) == 1


def test_a_gpu_falls_off_the_bus_and_comes_back(fake: FakeNvml, nvml: Nvml, caplog: pytest.LogCaptureFixture) -> None:
    nvml.read()
    fake.scenario.gpus[3].lost = 1
    for _ in range(3):
        reading = nvml.read()
    assert up(reading) == {str(index): index != 3 for index in range(8)}
    assert gpu(reading, "3") == GpuReading("3", "GPU-00000003-fake", "NVIDIA H200", up=False)
    fake.scenario.gpus[3].lost = 0
    assert gpu(nvml.read(), "3").memory_total_bytes == 141 * GIB
    assert [record.message for record in caplog.records] == [
        "GPU 3 can't be read any more, looking for it every 0 s",
        "GPU 3 is back",
    ]


def test_a_lost_gpu_needs_a_new_session(fake: FakeNvml) -> None:
    nvml = Nvml(refresh_seconds=3600)
    nvml.read()
    fake.scenario.gpus[3].lost = 1
    nvml.read()
    fake.scenario.gpus[3].lost = 0
    assert not gpu(nvml.read(), "3").up
    assert fake.scenario.init_calls == 1
    nvml.close()
    assert gpu(nvml.read(), "3").up


def test_indices_stay_with_their_gpus_when_one_is_no_longer_listed(fake: FakeNvml, nvml: Nvml) -> None:
    for index in range(8):
        fake[index].temperature_c = 40 + index
    nvml.read()
    fake.scenario.gpus[2].lost = fake.scenario.gpus[2].absent = 1
    nvml.read()
    reading = nvml.read()
    assert up(reading) == {str(index): index != 2 for index in range(8)}
    assert gpu(reading, "5").temperature_celsius == 45
    fake.scenario.gpus[2].lost = fake.scenario.gpus[2].absent = 0
    assert gpu(nvml.read(), "2").temperature_celsius == 42


def test_a_gpu_lost_before_anybody_saw_it(fake: FakeNvml, nvml: Nvml) -> None:
    fake.scenario.gpus[0].lost = 1
    assert up(nvml.read()) == {str(index): index != 0 for index in range(8)}
    fake.scenario.gpus[0].lost = 0
    assert gpu(nvml.read(), "0").uuid == "GPU-00000000-fake"
    assert all(up(nvml.read()).values())


def test_xids_are_kept_also_of_a_lost_gpu(fake: FakeNvml, nvml: Nvml, caplog: pytest.LogCaptureFixture) -> None:
    assert gpu(nvml.read(), "6").last_xid is None
    fake.xid(6, 48)
    fake.xid(6, 79)
    fake.scenario.gpus[6].lost = 1
    reading = gpu(nvml.read(), "6")
    assert (reading.up, reading.last_xid) == (False, 79)
    assert reading.last_xid_timestamp is not None
    assert gpu(nvml.read(), "5").last_xid is None
    assert gpu(nvml.read(), "6").last_xid == 79
    assert [record.message for record in caplog.records][:2] == ["GPU 6: XID 48", "GPU 6: XID 79"]


def test_a_card_without_events_is_said_once(fake: FakeNvml, caplog: pytest.LogCaptureFixture) -> None:
    fake[0].refuse("events")
    fake.xid(0, 13)
    nvml = Nvml(refresh_seconds=0, slow_seconds=0)
    nvml.read()
    assert gpu(nvml.read(), "0").last_xid is None
    assert [r.message for r in caplog.records] == ["GPU 0 does not report XID errors: Not Supported; left out"]


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "load the kernel driver"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "reload it or reboot"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "/dev/nvidiactl"),
    ],
)
def test_no_driver_until_there_is_one(
    fake: FakeNvml, nvml: Nvml, code: int, remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    fake.scenario.init_result = code
    nvml.read()
    reading = nvml.read()
    assert reading.gpus == ()
    assert remedy in str(reading.error)
    assert [record.levelno for record in caplog.records] == [logging.WARNING], "said once"
    fake.scenario.init_result = 0
    assert len(nvml.read().gpus) == 8
    assert nvml.read().error is None


def test_the_driver_goes_away_mid_run(fake: FakeNvml, nvml: Nvml) -> None:
    nvml.read()
    fake.scenario.gpus[0].lost = 1
    fake.scenario.init_result = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    nvml.read()
    reading = nvml.read()
    assert up(reading) == {str(index): False for index in range(8)}
    assert "mismatch" in str(reading.error).lower()


def test_no_library_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    unload_pynvml()
    monkeypatch.setattr(pynvml, "CDLL", missing)
    reading = Nvml().read()
    assert reading.gpus == ()
    assert "install the NVIDIA driver" in str(reading.error)


def test_another_user_of_nvml_in_the_process_keeps_its_session(fake: FakeNvml, nvml: Nvml) -> None:
    pynvml.nvmlInit()
    nvml.read()
    nvml.close()
    assert pynvml.nvmlDeviceGetCount() == 8
    pynvml.nvmlShutdown()


def test_calls_do_not_hold_the_interpreter_lock(tmp_path: Path) -> None:
    """While NVML takes its time, other threads run: the sampler can't slow training down."""
    with FakeNvml(tmp_path, gpus=1) as fake:
        fake.scenario.call_cost_us = 100_000
        started, done = threading.Event(), threading.Event()

        def read() -> None:
            started.set()
            Nvml().read()
            done.set()

        thread = threading.Thread(target=read)
        thread.start()
        started.wait()
        turns = 0
        while not done.is_set():
            turns += 1
        thread.join()
    assert turns > 1000
