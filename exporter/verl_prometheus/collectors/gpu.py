"""The GPUs of one node as metric families."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from verl_prometheus.gpu.reading import THROTTLE_REASONS, GpuReading
from verl_prometheus.gpu.sampler import GpuSnapshot

ALL = "all"  # the label `gpu` where the driver can't be asked which GPUs there are

# (family, help, what it is of a GPU; None: the card does not report it)
_GAUGES: tuple[tuple[str, str, Callable[[GpuReading], float | None]], ...] = (
    (
        "verl_gpu_utilization_ratio",
        "Share of the driver's last sampling period in which a kernel ran.",
        lambda gpu: gpu.utilization_ratio,
    ),
    ("verl_gpu_memory_used_bytes", "Memory in use, as nvidia-smi counts it.", lambda gpu: gpu.memory_used_bytes),
    ("verl_gpu_memory_total_bytes", "Memory of the GPU or MIG instance.", lambda gpu: gpu.memory_total_bytes),
    ("verl_gpu_power_watts", "Power drawn by the board.", lambda gpu: gpu.power_watts),
    ("verl_gpu_temperature_celsius", "Temperature of the GPU core.", lambda gpu: gpu.temperature_celsius),
    ("verl_gpu_sm_clock_hertz", "Clock of the streaming multiprocessors.", lambda gpu: gpu.sm_clock_hertz),
    (
        "verl_gpu_uncorrectable_ecc_errors",
        "Uncorrectable memory errors since the driver was loaded.",
        lambda gpu: gpu.uncorrectable_ecc_errors,
    ),
    ("verl_gpu_last_xid", "Code of the last XID error, absent before the first.", lambda gpu: gpu.last_xid),
    (
        "verl_gpu_last_xid_timestamp_seconds",
        "When the last XID error was seen, Unix time.",
        lambda gpu: gpu.last_xid_timestamp,
    ),
)


class GpuCollector(Collector):
    """Renders the latest sample; `snapshot` must not wait for a driver. `node` is a label of every series."""

    def __init__(self, snapshot: Callable[[], GpuSnapshot | None], node: str) -> None:
        self._snapshot = snapshot
        self._node = node

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        if snapshot is None:
            return
        gpus = snapshot.reading.gpus
        labels = [(gpu, [self._node, gpu.index]) for gpu in gpus]
        yield self._up(gpus)
        yield self._info(snapshot)
        for name, help_text, value_of in _GAUGES:
            gauge = GaugeMetricFamily(name, help_text, labels=["node", "gpu"])
            for gpu, values in labels:
                value = value_of(gpu)
                if value is not None:
                    gauge.add_metric(values, value)
            yield gauge
        energy = CounterMetricFamily(
            "verl_gpu_energy_joules", "Energy drawn by the board since the driver was loaded.", labels=["node", "gpu"]
        )
        throttled = GaugeMetricFamily(
            "verl_gpu_throttled", "1 while the clocks are held down for this reason.", labels=["node", "gpu", "reason"]
        )
        for gpu, values in labels:
            if gpu.energy_joules is not None:
                energy.add_metric(values, gpu.energy_joules)
            if gpu.throttle_reasons is not None:
                for reason in THROTTLE_REASONS:
                    throttled.add_metric([*values, reason], reason in gpu.throttle_reasons)
        yield energy
        yield throttled
        yield self._role_memory(snapshot)
        yield from self._history(snapshot)

    def _up(self, gpus: tuple[GpuReading, ...]) -> Metric:
        up = GaugeMetricFamily(
            "verl_gpu_up",
            f'1 if the GPU answers, 0 if it is lost. gpu="{ALL}" is 0 where the driver does not answer at all.',
            labels=["node", "gpu"],
        )
        for gpu in gpus:
            up.add_metric([self._node, gpu.index], gpu.up)
        if not gpus:
            up.add_metric([self._node, ALL], 0)
        return up

    def _info(self, snapshot: GpuSnapshot) -> Metric:
        info = GaugeMetricFamily(
            "verl_gpu_info", "Identity of a GPU or MIG instance.", labels=["node", "gpu", "uuid", "name", "driver"]
        )
        for gpu in snapshot.reading.gpus:
            if gpu.uuid:
                info.add_metric([self._node, gpu.index, gpu.uuid, gpu.name or "", snapshot.reading.driver or ""], 1)
        return info

    def _role_memory(self, snapshot: GpuSnapshot) -> Metric:
        family = GaugeMetricFamily(
            "verl_gpu_process_memory_bytes",
            "Memory of the processes on the GPU by role: train (workers), rollout (vLLM, SGLang engines), other, "
            "unknown (not visible from here). An engine inside a worker process counts as train (verl before 0.7).",
            labels=["node", "gpu", "role"],
        )
        for index, memory in snapshot.role_memory.items():
            for role, used in memory.items():
                family.add_metric([self._node, index, role], used)
        return family

    def _history(self, snapshot: GpuSnapshot) -> Iterator[Metric]:
        peak = GaugeMetricFamily(
            "verl_gpu_memory_peak_bytes",
            "Highest sample of memory in use since this exporter started.",
            labels=["node", "gpu"],
        )
        utilization = HistogramMetricFamily(
            "verl_gpu_utilization_distribution_ratio",
            "Samples of the utilisation, those between scrapes included.",
            labels=["node", "gpu"],
        )
        memory = HistogramMetricFamily(
            "verl_gpu_memory_distribution_ratio",
            "Samples of used over total memory, those between scrapes included.",
            labels=["node", "gpu"],
        )
        for index, history in snapshot.history.items():
            values = [self._node, index]
            if history.memory_peak_bytes is not None:
                peak.add_metric(values, history.memory_peak_bytes)
            for family, distribution in ((utilization, history.utilization), (memory, history.memory)):
                if any(distribution.counts):
                    family.add_metric(values, distribution.buckets(), distribution.total)
        yield peak
        yield utilization
        yield memory
