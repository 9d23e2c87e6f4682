"""GPUs that don't exist, for demos and replays: plausible, the same every time, and named so that nobody is misled."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

from verl_prometheus.gpu.reading import GpuProcess, GpuReading, NodeReading
from verl_prometheus.gpu.roles import ROLLOUT, TRAIN

NAME = "simulated NVIDIA H200"
_TOTAL_BYTES = 141 * 2**30
_POWER_LIMIT = 700.0  # watts
_STEP_SECONDS = 30.0
_ROLLOUT_UNTIL, _UPDATE_UNTIL = 0.6, 0.95  # shares of a step: generation, policy update, weight transfer


class SimulatedGpus:
    """A `GpuReader` of `count` GPUs that go through the phases of a GRPO step again and again.

    A reading depends on the seconds since `clock()` was first asked, and on nothing else; energy is power over time.
    """

    def __init__(self, count: int = 8, clock: Callable[[], float] = time.monotonic) -> None:
        self._count = count
        self._clock = clock
        self._started = self._last = clock()
        self._energy = [0.0] * count  # joules

    def read(self) -> NodeReading:
        now = self._clock()
        gpus = tuple(self._gpu(number, now - self._started, now - self._last) for number in range(self._count))
        self._last = now
        return NodeReading(driver="simulated", gpus=gpus)

    def classify(self, pids: Iterable[int]) -> dict[int, str]:
        """Even PIDs train, odd ones are inference engines."""
        return {pid: ROLLOUT if pid % 2 else TRAIN for pid in pids}

    def close(self) -> None:
        """Nothing to close."""

    def _gpu(self, number: int, elapsed: float, since_last: float) -> GpuReading:
        step = elapsed / _STEP_SECONDS % 1
        wobble = math.sin(elapsed * 1.7 + number) * math.sin(elapsed * 0.41 + 3 * number)  # -1 to 1
        if step < _ROLLOUT_UNTIL:  # the batch thins out as short responses end
            utilization = 0.95 - 0.6 * (step / _ROLLOUT_UNTIL) ** 3 + 0.04 * wobble
            train, rollout = 0.12, 0.74 + 0.01 * wobble
        elif step < _UPDATE_UNTIL:
            utilization, train, rollout = 0.97 + 0.02 * wobble, 0.71 + 0.03 * wobble, 0.03
        else:
            utilization, train, rollout = 0.06, 0.3, 0.2
        power = 90 + 560 * utilization + 10 * wobble
        self._energy[number] += power * since_last
        train_bytes, rollout_bytes = int(train * _TOTAL_BYTES), int(rollout * _TOTAL_BYTES)
        capped = power > 0.92 * _POWER_LIMIT
        return GpuReading(
            index=str(number),
            uuid=f"GPU-simulated-{number:04d}",
            name=NAME,
            utilization_ratio=utilization,
            memory_used_bytes=train_bytes + rollout_bytes,
            memory_total_bytes=_TOTAL_BYTES,
            power_watts=power,
            energy_joules=self._energy[number],
            temperature_celsius=30 + 0.06 * power,
            sm_clock_hertz=1.83e9 if capped else 1.98e9,
            throttle_reasons=frozenset({"sw_power_cap"}) if capped else frozenset(),
            uncorrectable_ecc_errors=0,
            processes=(GpuProcess(2 * number, train_bytes), GpuProcess(2 * number + 1, rollout_bytes)),
        )
