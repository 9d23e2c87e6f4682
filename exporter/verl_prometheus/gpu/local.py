"""The GPUs of this node: whether there are any, and a sampler of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping

from verl_prometheus.errors import ErrorLog
from verl_prometheus.gpu.reading import GpuReader
from verl_prometheus.gpu.roles import ProcessRoles
from verl_prometheus.gpu.sampler import GpuSampler
from verl_prometheus.gpu.visible import VisibleGpus, visible_devices


def has_driver() -> bool:
    """Whether this node has NVIDIA's library, and the run was not told to use no GPU."""
    if visible_devices() == "":
        return False
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def sampler(backend: str, interval: float, errors: ErrorLog, simulated: int, only_visible: bool) -> GpuSampler:
    """A sampler that has not started yet; see `gpu.BACKENDS`. `simulated`: how many GPUs to simulate."""
    reader: GpuReader
    classify: Callable[[Iterable[int]], Mapping[int, str]]
    if backend == "simulated":
        from verl_prometheus.gpu.simulated import SimulatedGpus

        reader = simulation = SimulatedGpus(simulated)
        classify = simulation.classify
    else:
        from verl_prometheus.nvml import Nvml

        reader = Nvml()
        classify = ProcessRoles().classify
        devices = visible_devices() if only_visible else None
        if devices:
            reader = VisibleGpus(reader, devices)
    return GpuSampler(reader, classify, errors, interval)
