"""The simulated GPUs: deterministic, plausible, and impossible to take for real ones."""

from __future__ import annotations

from itertools import pairwise

import pytest

from verl_prometheus.gpu.reading import GpuReading
from verl_prometheus.gpu.roles import memory_by_role
from verl_prometheus.gpu.simulated import SimulatedGpus


def minute(count: int = 8) -> list[tuple[GpuReading, ...]]:
    """Two steps, sampled every second."""
    now = [0.0]
    gpus = SimulatedGpus(count, clock=lambda: now[0])
    readings = []
    for second in range(60):
        now[0] = float(second)
        readings.append(gpus.read().gpus)
    return readings


def test_named_so_that_nobody_is_misled() -> None:
    reading = SimulatedGpus().read()
    assert reading.driver == "simulated"
    assert all("simulated" in str(gpu.name) and "simulated" in str(gpu.uuid) for gpu in reading.gpus)


def test_the_same_every_time() -> None:
    assert minute() == minute()


def test_values_a_card_could_have() -> None:
    for gpus in minute():
        for gpu in gpus:
            assert 0 <= (gpu.utilization_ratio or 0) <= 1
            assert 0 < (gpu.memory_used_bytes or 0) < (gpu.memory_total_bytes or 0)
            assert 80 < (gpu.power_watts or 0) <= 700
            assert 30 < (gpu.temperature_celsius or 0) < 85


def test_energy_is_power_over_time() -> None:
    readings = minute(count=1)
    for (before,), (after,) in pairwise(readings):
        assert after.energy_joules is not None
        assert before.energy_joules is not None
        assert after.energy_joules - before.energy_joules == pytest.approx(after.power_watts)


def test_rollout_and_training_alternate() -> None:
    gpus = SimulatedGpus()
    roles = gpus.classify(range(16))
    memory = [memory_by_role(reading[0], roles) for reading in minute()]
    rolling_out = [by_role["rollout"] > by_role["train"] for by_role in memory]
    assert {*rolling_out[:17], *rolling_out[30:47]} == {True}
    assert {*rolling_out[18:28], *rolling_out[48:58]} == {False}
