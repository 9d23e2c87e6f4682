"""Lets verl train without an accelerator; verl loads it through VERL_USE_EXTERNAL_MODULES.

Ray is told that the node has GPUs (`ray.init(num_gpus=...)`); no code touches one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, set_platform

from verl_prometheus.demo import cpu_device


class CPUPlatform(PlatformBase):  # type: ignore[misc]
    """verl's view of the machine: one device, named "cpu", that talks gloo."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module: ModuleType = cpu_device

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        return torch.device("cpu")  # torch reads a bare index as an accelerator's

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"  # the pretended one: verl places its workers by this resource

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
    """verl asks for "cpu:gloo,<device>:<backend>", and torch refuses to be told twice about the cpu."""
    torch_init_process_group("cpu:gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)


set_platform(CPUPlatform())

torch_init_process_group = torch.distributed.init_process_group
torch.distributed.init_process_group = init_process_group

# verl always offloads the reference policy to pinned memory, and torch pins only for an accelerator.
torch.Tensor.pin_memory = lambda self, *args, **kwargs: self
