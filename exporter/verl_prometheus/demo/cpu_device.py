"""The `torch.<device>` module of the CPU platform: `torch.cpu` plus what verl asks of an accelerator's module.

torch keeps no allocator statistics for the CPU, so "device memory" is the resident memory of the process.
"""

from __future__ import annotations

import resource

import psutil
from torch import get_rng_state, set_rng_state
from torch.cpu import current_device, device_count, is_available, set_device, synchronize

__all__ = [
    "current_device",
    "device_count",
    "empty_cache",
    "get_device_name",
    "get_rng_state",
    "is_available",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "set_device",
    "set_rng_state",
    "synchronize",
]


def empty_cache() -> None:
    pass


def get_device_name() -> str:
    """The key of verl's table of peak FLOPS."""
    return "CPU"


def memory_allocated() -> int:
    """Resident memory of this process, in bytes."""
    return int(psutil.Process().memory_info().rss)


def max_memory_allocated() -> int:
    """Peak resident memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def mem_get_info() -> tuple[int, int]:
    """Free and total memory of the machine, in bytes."""
    memory = psutil.virtual_memory()
    return memory.available, memory.total


memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated
