"""What one look at the GPUs of a node yields: plain immutable values, whoever read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

THROTTLE_REASONS = (
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
)


@dataclass(frozen=True)
class GpuProcess:
    """A process with a compute context on a GPU. `memory_bytes` is None where the driver doesn't attribute memory."""

    pid: int
    memory_bytes: int | None


@dataclass(frozen=True)
class GpuReading:
    """One GPU, or one MIG instance, at one instant. None means: this card does not report it.

    `index` is NVML's index of the GPU ("3"), with the instance's own index behind a dot for MIG ("3.0"). A GPU in MIG
    mode keeps what belongs to the board (power, energy, temperature, clock, throttling, ECC, XID); memory, utilisation
    and processes belong to its instances, so that sums over a node count nothing twice.
    """

    index: str
    uuid: str | None = None
    name: str | None = None
    up: bool = True
    utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    energy_joules: float | None = None
    temperature_celsius: float | None = None
    sm_clock_hertz: float | None = None
    throttle_reasons: frozenset[str] | None = None  # of THROTTLE_REASONS, those that hold the clocks down now
    uncorrectable_ecc_errors: int | None = None
    last_xid: int | None = None
    last_xid_timestamp: float | None = None
    processes: tuple[GpuProcess, ...] | None = None


@dataclass(frozen=True)
class NodeReading:
    """All GPUs of a node at one instant; `error` says why the driver could not be asked, None if it could."""

    driver: str | None = None
    error: str | None = None
    gpus: tuple[GpuReading, ...] = ()


class GpuReader(Protocol):
    """What the sampler asks: never raises for a card's refusal, a missing driver or a lost GPU."""

    def read(self) -> NodeReading: ...

    def close(self) -> None: ...
