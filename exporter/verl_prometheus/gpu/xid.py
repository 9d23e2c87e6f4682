"""XID errors as NVML's event set delivers them: what the kernel driver also writes to dmesg."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from typing import Any

import pynvml

_MOST_EVENTS = 64  # in one go; a GPU in trouble repeats itself


class XidEvents:
    """Collects XIDs of physical GPUs (`handles`: index -> NVML handle) from the moment it is made."""

    def __init__(self, handles: Mapping[str, Any]) -> None:
        """Raises NVMLError where the driver has no events; GPUs that refuse them are in `refused`."""
        self._set = pynvml.nvmlEventSetCreate()
        self._indices: dict[int | None, str] = {}
        self.refused: dict[str, pynvml.NVMLError] = {}
        for index, handle in handles.items():
            try:
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
                self._indices[_address(handle)] = index
            except pynvml.NVMLError as error:
                self.refused[index] = error

    def drain(self) -> Iterator[tuple[str, int]]:
        """(index, XID code) of everything since the last call, oldest first; never waits."""
        for _ in range(_MOST_EVENTS):
            try:
                event = pynvml.nvmlEventSetWait(self._set, 0)
            except pynvml.NVMLError:  # a timeout: nothing more to tell; or the GPU is lost, which the reading tells
                return
            index = self._indices.get(_address(event.device))
            if index is not None and event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                yield index, event.eventData

    def close(self) -> None:
        pynvml.nvmlEventSetFree(self._set)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
