"""A thread that samples the GPUs and keeps what a scrape needs: the latest sample, peaks, distributions."""

from __future__ import annotations

import logging
import operator
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from verl_prometheus.distribution import Distribution
from verl_prometheus.errors import ErrorLog
from verl_prometheus.gpu.reading import GpuReader, GpuReading, NodeReading
from verl_prometheus.gpu.roles import UNKNOWN, memory_by_role

logger = logging.getLogger("verl_prometheus")

UTILIZATION_BUCKETS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
MEMORY_BUCKETS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 1.0)


@dataclass
class GpuHistory:
    """What all samples of one GPU add up to."""

    memory_peak_bytes: int | None = None
    utilization: Distribution = field(default_factory=lambda: Distribution(UTILIZATION_BUCKETS))  # ratio
    memory: Distribution = field(default_factory=lambda: Distribution(MEMORY_BUCKETS))  # used / total

    def add(self, gpu: GpuReading) -> None:
        if gpu.utilization_ratio is not None:
            self.utilization.observe(gpu.utilization_ratio)
        if gpu.memory_used_bytes is not None:
            self.memory_peak_bytes = max(self.memory_peak_bytes or 0, gpu.memory_used_bytes)
            if gpu.memory_total_bytes:
                self.memory.observe(gpu.memory_used_bytes / gpu.memory_total_bytes)

    def copy(self) -> GpuHistory:
        return GpuHistory(self.memory_peak_bytes, self.utilization.copy(), self.memory.copy())


@dataclass(frozen=True)
class GpuSnapshot:
    """The latest sample, and what the samples so far add up to. Mappings are by the GPU's index."""

    reading: NodeReading
    role_memory: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # then role -> bytes
    history: Mapping[str, GpuHistory] = field(default_factory=dict)


class GpuSampler:
    """Reads every `interval` seconds in a daemon thread of its own, from `start` to `stop`.

    `classify` gives the role of each of the given PIDs. Whatever goes wrong in the thread goes to `errors`, and the
    sampling goes on.
    """

    def __init__(
        self,
        reader: GpuReader,
        classify: Callable[[Iterable[int]], Mapping[int, str]],
        errors: ErrorLog,
        interval: float = 1.0,
    ) -> None:
        self._errors = errors
        self._reader = reader
        self._classify = classify
        self._interval = interval
        self._stale_after = max(10 * interval, 15.0)
        self._lock = threading.Lock()  # over the four below
        self._reading: NodeReading | None = None
        self._role_memory: Mapping[str, Mapping[str, int]] = {}
        self._history: dict[str, GpuHistory] = {}
        self._sampled_at = time.monotonic()
        self._processes: list[object] = []  # what _role_memory was made from
        self._unknown_reported = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="verl-prometheus-gpu", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, which closes the reader. A driver that hangs is left behind after two seconds."""
        self._stopping.set()
        self._thread.join(timeout=2)

    def snapshot(self) -> GpuSnapshot | None:
        """None before the first sample. Never asks the driver: where that hangs, the GPUs are down."""
        with self._lock:
            age = time.monotonic() - self._sampled_at
            if age > self._stale_after:
                return GpuSnapshot(_hanging(self._reading, age), {}, self._copy_history())
            if self._reading is None:
                return None
            return GpuSnapshot(self._reading, self._role_memory, self._copy_history())

    def sample(self) -> None:
        """Take one sample now; the thread does this."""
        reading = self._reader.read()
        role_memory = self._attribute(reading)
        with self._lock:
            for gpu in reading.gpus:
                if gpu.up:
                    self._history.setdefault(gpu.index, GpuHistory()).add(gpu)
            self._reading, self._role_memory = reading, role_memory
            self._sampled_at = time.monotonic()

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            try:
                self.sample()
            except Exception as error:
                self._errors.add("gpu", error)
            due = max(due + self._interval, time.monotonic())
            if self._stopping.wait(due - time.monotonic()):
                break
        self._reader.close()

    def _attribute(self, reading: NodeReading) -> Mapping[str, Mapping[str, int]]:
        """Memory by role. Readers list processes less often than they sample, and hand out the same list until then."""
        processes: list[object] = [gpu.processes for gpu in reading.gpus]
        if len(processes) == len(self._processes) and all(map(operator.is_, processes, self._processes)):
            return self._role_memory
        self._processes = processes
        roles = self._classify({process.pid for gpu in reading.gpus for process in gpu.processes or ()})
        role_memory = {gpu.index: memory_by_role(gpu, roles) for gpu in reading.gpus}
        if not self._unknown_reported and any(UNKNOWN in memory for memory in role_memory.values()):
            self._unknown_reported = True
            logger.warning(
                "some processes on the GPUs can't be seen from here: their memory has role=%r. "
                "To tell them apart, share the host's PID namespace (hostPID: true, --pid=host)",
                UNKNOWN,
            )
        return role_memory

    def _copy_history(self) -> dict[str, GpuHistory]:
        return {index: history.copy() for index, history in self._history.items()}


def _hanging(reading: NodeReading | None, age: float) -> NodeReading:
    """The GPUs of a driver that hasn't answered for `age` seconds."""
    known = reading or NodeReading()
    gpus = tuple(GpuReading(gpu.index, gpu.uuid, gpu.name, up=False) for gpu in known.gpus)
    return NodeReading(known.driver, f"the driver has not answered for {age:.0f} s", gpus)
