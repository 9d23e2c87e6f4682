"""The GPUs of one node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from verl_prometheus.collectors.families import add, counter, gauge, histogram
from verl_prometheus.gpu.reading import THROTTLE_REASONS, GpuReading
from verl_prometheus.gpu.sampler import GpuSnapshot

ALL = "all"  # the label `gpu` where the driver can't be asked which GPUs there are

_GAUGES: dict[str, Callable[[GpuReading], float | None]] = {
    "verl_gpu_utilization_ratio": lambda gpu: gpu.utilization_ratio,
    "verl_gpu_memory_used_bytes": lambda gpu: gpu.memory_used_bytes,
    "verl_gpu_memory_total_bytes": lambda gpu: gpu.memory_total_bytes,
    "verl_gpu_power_watts": lambda gpu: gpu.power_watts,
    "verl_gpu_temperature_celsius": lambda gpu: gpu.temperature_celsius,
    "verl_gpu_sm_clock_hertz": lambda gpu: gpu.sm_clock_hertz,
    "verl_gpu_uncorrectable_ecc_errors": lambda gpu: gpu.uncorrectable_ecc_errors,
    "verl_gpu_last_xid": lambda gpu: gpu.last_xid,
    "verl_gpu_last_xid_timestamp_seconds": lambda gpu: gpu.last_xid_timestamp,
}


class GpuCollector(Collector):
    """Renders the latest sample; `snapshot` must not wait for a driver. `node` is a label of every series.

    What a card does not report has no series. A GPU that is lost keeps its peak, its distributions and its last XID.
    """

    def __init__(self, snapshot: Callable[[], GpuSnapshot | None], node: str) -> None:
        self._snapshot = snapshot
        self._node = node

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        if snapshot is None:
            return
        gpus = snapshot.reading.gpus
        yield self._up(gpus)
        yield self._info(snapshot)
        for name, value_of in _GAUGES.items():
            yield self._gauge(name, ((gpu.index, value_of(gpu)) for gpu in gpus))
        yield self._energy(gpus)
        yield self._throttled(gpus)
        yield self._role_memory(snapshot)
        yield from self._history(snapshot)

    def _up(self, gpus: tuple[GpuReading, ...]) -> Metric:
        family = gauge("verl_gpu_up")
        for gpu in gpus:
            family.add_metric((self._node, gpu.index), gpu.up)
        if not gpus:
            family.add_metric((self._node, ALL), 0)
        return family

    def _info(self, snapshot: GpuSnapshot) -> Metric:
        family = gauge("verl_gpu_info")
        for gpu in snapshot.reading.gpus:
            if gpu.uuid:
                family.add_metric((self._node, gpu.index, gpu.uuid, gpu.name or "", snapshot.reading.driver or ""), 1)
        return family

    def _gauge(self, name: str, values: Iterable[tuple[str, float | None]]) -> Metric:
        family = gauge(name)
        for index, value in values:
            if value is not None:
                family.add_metric((self._node, index), value)
        return family

    def _energy(self, gpus: tuple[GpuReading, ...]) -> Metric:
        family = counter("verl_gpu_energy_joules_total")
        for gpu in gpus:
            if gpu.energy_joules is not None:
                family.add_metric((self._node, gpu.index), gpu.energy_joules)
        return family

    def _throttled(self, gpus: tuple[GpuReading, ...]) -> Metric:
        family = gauge("verl_gpu_throttled")
        for gpu in gpus:
            if gpu.throttle_reasons is not None:
                for reason in THROTTLE_REASONS:
                    family.add_metric((self._node, gpu.index, reason), reason in gpu.throttle_reasons)
        return family

    def _role_memory(self, snapshot: GpuSnapshot) -> Metric:
        family = gauge("verl_gpu_process_memory_bytes")
        for index, memory in snapshot.role_memory.items():
            for role, used in memory.items():
                family.add_metric((self._node, index, role), used)
        return family

    def _history(self, snapshot: GpuSnapshot) -> Iterator[Metric]:
        history = snapshot.history
        yield self._gauge(
            "verl_gpu_memory_peak_bytes", ((index, one.memory_peak_bytes) for index, one in history.items())
        )
        utilization = histogram("verl_gpu_utilization_distribution_ratio")
        memory = histogram("verl_gpu_memory_distribution_ratio")
        for index, one in history.items():
            for family, distribution in ((utilization, one.utilization), (memory, one.memory)):
                if any(distribution.counts):
                    add(family, (self._node, index), distribution)
        yield utilization
        yield memory
