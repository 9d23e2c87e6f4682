"""The GPUs a run may use: a run on half of a shared machine must not raise alarms about the other half."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from verl_prometheus.gpu.reading import GpuReader, GpuReading, NodeReading
from verl_prometheus.gpu.roles import RAYLET

VARIABLE = "CUDA_VISIBLE_DEVICES"


class VisibleGpus:
    """A `GpuReader` that shows those GPUs of `reader` that `devices`, a value of CUDA_VISIBLE_DEVICES, names.

    Names are indices or beginnings of UUIDs. If one of them is none of the GPUs, as where a container numbers its GPUs
    anew, all GPUs are shown.
    """

    def __init__(self, reader: GpuReader, devices: str) -> None:
        self._reader = reader
        self._names = [name for name in (part.strip() for part in devices.split(",")) if name]

    def read(self) -> NodeReading:
        reading = self._reader.read()
        chosen = {name: {gpu.index for gpu in reading.gpus if _is(gpu, name)} for name in self._names}
        if not all(chosen.values()):
            return reading
        indices = set().union(*chosen.values())
        indices |= {index.partition(".")[0] for index in indices}  # the board of a MIG instance
        return replace(reading, gpus=tuple(gpu for gpu in reading.gpus if gpu.index in indices))

    def close(self) -> None:
        self._reader.close()


def _is(gpu: GpuReading, name: str) -> bool:
    return name in (gpu.index, gpu.index.partition(".")[0]) or (gpu.uuid or "").startswith(name)


def visible_devices(environment: Mapping[str, str] = os.environ, proc: Path = Path("/proc")) -> str | None:
    """CUDA_VISIBLE_DEVICES as this node's part of the run was started with; None if it was not set.

    Ray empties the variable for its processes without GPUs; their raylet still has it.
    """
    parent = proc / str(os.getppid())
    try:
        if RAYLET.encode() not in (parent / "cmdline").read_bytes():
            return environment.get(VARIABLE)
        for entry in (parent / "environ").read_bytes().split(b"\0"):
            name, _, value = entry.decode(errors="replace").partition("=")
            if name == VARIABLE:
                return value
    except OSError:
        pass
    return None
