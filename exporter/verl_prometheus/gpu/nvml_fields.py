"""What is read from one NVML handle, field by field: each function returns some fields of a `GpuReading`.

Each raises `pynvml.NVMLError` where the card refuses. Source: https://docs.nvidia.com/deploy/nvml-api/.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

from verl_prometheus.gpu.reading import GpuProcess

Values = dict[str, Any]
Field = Callable[[Any], Values]

_THROTTLE_BITS = {
    pynvml.nvmlClocksThrottleReasonSwPowerCap: "sw_power_cap",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hw_slowdown",
    pynvml.nvmlClocksThrottleReasonSyncBoost: "sync_boost",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "sw_thermal_slowdown",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hw_thermal_slowdown",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "hw_power_brake_slowdown",
}


def utilization(handle: Any) -> Values:
    """Share of the driver's last sampling period (a sixth of a second to a second) in which a kernel ran."""
    return {"utilization_ratio": pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100}


def memory(handle: Any) -> Values:
    """Used memory as nvidia-smi counts it: without what the driver reserves, where the driver tells them apart."""
    try:
        info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError_FunctionNotFound:  # drivers before 510
        info = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return {"memory_used_bytes": info.used, "memory_total_bytes": info.total}


def processes(handle: Any) -> Values:
    running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return {"processes": tuple(GpuProcess(process.pid, process.usedGpuMemory) for process in running)}


def power(handle: Any) -> Values:
    return {"power_watts": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000}


def energy(handle: Any) -> Values:
    """Since the driver was loaded."""
    return {"energy_joules": pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000}


def temperature(handle: Any) -> Values:
    return {"temperature_celsius": float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))}


def sm_clock(handle: Any) -> Values:
    return {"sm_clock_hertz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) * 1e6}


def throttling(handle: Any) -> Values:
    bits = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return {"throttle_reasons": frozenset(reason for bit, reason in _THROTTLE_BITS.items() if bits & bit)}


def ecc_errors(handle: Any) -> Values:
    """Uncorrectable errors since the driver was loaded."""
    kind, period = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    return {"uncorrectable_ecc_errors": pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, period)}


@dataclass(frozen=True)
class FieldSet:
    """Fields by the name a person knows them under; `fast` ones change within a second."""

    fast: dict[str, Field]
    slow: dict[str, Field]

    def __or__(self, other: FieldSet) -> FieldSet:
        return FieldSet(self.fast | other.fast, self.slow | other.slow)


BOARD = FieldSet(
    fast={"power": power, "temperature": temperature, "SM clock": sm_clock, "throttle reasons": throttling},
    slow={"energy": energy, "ECC errors": ecc_errors},
)
COMPUTE = FieldSet(fast={"utilization": utilization, "memory": memory}, slow={"processes": processes})
