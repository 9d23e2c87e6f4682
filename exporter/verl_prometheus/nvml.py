"""Every NVIDIA GPU of this node as plain values, through NVML (`pynvml`, from the distribution nvidia-ml-py)."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pynvml

from verl_prometheus.gpu.nvml_fields import BOARD, COMPUTE, Field, FieldSet, Values
from verl_prometheus.gpu.reading import GpuReading, NodeReading
from verl_prometheus.gpu.xid import XidEvents

logger = logging.getLogger("verl_prometheus")

_LOST = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_UNINITIALIZED}
_REFUSED = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
}
_REMEDIES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "install the NVIDIA driver, or start the container with the NVIDIA runtime",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "load the kernel driver, or give the container its devices",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was upgraded under running processes: reload it or reboot, "
    "then restart this process",
    pynvml.NVML_ERROR_NO_PERMISSION: "this user or container may not open /dev/nvidiactl",
}


@dataclass
class _Device:
    """A GPU or MIG instance with the fields it has not refused yet."""

    handle: Any
    identity: GpuReading
    fast: dict[str, Field]
    slow: dict[str, Field]
    slow_values: Values = field(default_factory=dict)
    lost: bool = False


class Nvml:
    """Reads all GPUs; goes on without a driver, without refused fields, without GPUs that fell off the bus.

    Every `refresh_seconds` the devices are listed anew (MIG may have been reconfigured), in a new NVML session if a
    GPU was lost or there is none. A GPU seen once keeps its index, and is reported down while it is gone.
    For one thread.
    """

    def __init__(self, refresh_seconds: float = 30.0, slow_seconds: float = 1.0) -> None:
        self._refresh_seconds = refresh_seconds
        self._slow_seconds = slow_seconds
        self._refresh_at = self._slow_at = 0.0
        self._session = False
        self._error: str | None = None
        self._driver: str | None = None
        self._devices: list[_Device] = []
        self._gone: list[GpuReading] = []  # seen before, or known to be there, but not to be had now
        self._known: dict[str, GpuReading] = {}  # uuid -> identity of every physical GPU ever seen
        self._down: set[str] = set()
        self._xids: XidEvents | None = None
        self._last_xids: dict[str, Values] = {}  # by index
        self._reported: set[str] = set()

    def read(self) -> NodeReading:
        """One sample. Slow fields (energy, ECC, processes, XID) may be up to `slow_seconds` older than the rest."""
        now = time.monotonic()
        if now >= self._refresh_at:
            self._refresh_at = now + self._refresh_seconds
            self._refresh()
        slow = now >= self._slow_at
        if slow:
            self._slow_at = now + self._slow_seconds
            self._drain_xids()
        gpus = [self._read(device, slow) for device in self._devices] + self._gone
        self._report_changes(gpus)
        xids = self._last_xids
        return NodeReading(
            self._driver,
            self._error,
            tuple(replace(gpu, **xids[gpu.index]) if gpu.index in xids else gpu for gpu in gpus),
        )

    def close(self) -> None:
        """End the session; a later `read` opens a new one."""
        if self._xids:
            with suppress(pynvml.NVMLError):
                self._xids.close()
        if self._session:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
        self._session, self._xids, self._devices, self._refresh_at = False, None, [], 0.0

    def _refresh(self) -> None:
        if self._error or self._gone or any(device.lost for device in self._devices):
            self.close()
            self._refresh_at = time.monotonic() + self._refresh_seconds
        try:
            if not self._session:
                pynvml.nvmlInit()
                self._session = True
                self._driver = pynvml.nvmlSystemGetDriverVersion()
            self._list_devices()
            error_text = None
        except pynvml.NVMLError as error:
            self._devices, self._gone = [], [replace(gpu, up=False) for gpu in self._known.values()]
            remedy = _REMEDIES.get(error.value)
            error_text = f"NVML: {error}" + (f" ({remedy})" if remedy else "")
            if error_text != self._error:
                logger.warning("GPUs can't be read, trying again every %g s. %s", self._refresh_seconds, error_text)
        self._error = error_text

    def _list_devices(self) -> None:
        devices: list[_Device] = []
        boards: dict[str, Any] = {}
        lost: list[str] = []
        for number in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(number)
                uuid, name = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)
                identity = self._known.setdefault(uuid, GpuReading(self._free_index(number), uuid, name))
                devices += self._with_instances(handle, identity)
                boards[identity.index] = handle
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_NO_PERMISSION:  # another container's
                    self._report_once(f"GPU {number} is left out: {error}")
                else:
                    lost.append(str(number))
        missing = [replace(gpu, up=False) for gpu in self._known.values() if gpu.index not in boards]
        # A lost GPU is most likely one we know; only more of them than we miss are news.
        taken = {gpu.index for gpu in self._known.values()}
        unnamed = [GpuReading(index, up=False) for index in lost if index not in taken]
        self._devices, self._gone = devices, missing + unnamed[: max(0, len(lost) - len(missing))]
        if self._xids is None:
            self._watch_xids(boards)

    def _free_index(self, number: int) -> str:
        taken = {gpu.index for gpu in self._known.values()}
        while str(number) in taken:
            number += 1
        return str(number)

    def _with_instances(self, handle: Any, identity: GpuReading) -> list[_Device]:
        try:
            mig = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        except pynvml.NVMLError:
            mig = False
        if not mig:
            return [_device(handle, identity, BOARD | COMPUTE)]
        devices = [_device(handle, identity, BOARD)]
        for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
                uuid, name = pynvml.nvmlDeviceGetUUID(instance), pynvml.nvmlDeviceGetName(instance)
            except pynvml.NVMLError:  # an empty slot
                continue
            devices.append(_device(instance, GpuReading(f"{identity.index}.{number}", uuid, name), COMPUTE))
        return devices

    def _watch_xids(self, boards: dict[str, Any]) -> None:
        try:
            self._xids = XidEvents(boards)
        except pynvml.NVMLError as error:
            self._report_once(f"XID errors are left out: {error}")
            return
        for index, refusal in self._xids.refused.items():
            self._report_once(f"GPU {index} does not report XID errors: {refusal}; left out")

    def _drain_xids(self) -> None:
        for index, xid in self._xids.drain() if self._xids else ():
            logger.warning("GPU %s: XID %d", index, xid)
            self._last_xids[index] = {"last_xid": xid, "last_xid_timestamp": time.time()}

    def _read(self, device: _Device, slow: bool) -> GpuReading:
        if slow and not device.lost:
            device.slow_values = self._values(device, device.slow)
        values = {} if device.lost else self._values(device, device.fast) | device.slow_values
        if device.lost or not values:
            return replace(device.identity, up=False)
        return replace(device.identity, **values)

    def _values(self, device: _Device, fields: dict[str, Field]) -> Values:
        values: Values = {}
        for name, read in list(fields.items()):
            try:
                values |= read(device.handle)
            except pynvml.NVMLError as error:
                if error.value in _LOST:
                    device.lost = True
                    break
                if error.value in _REFUSED:
                    del fields[name]
                gpu = device.identity
                self._report_once(f"{gpu.name} does not report {name}: {error}; left out", f"GPU {gpu.index}")
        return values

    def _report_once(self, message: str, first: str = "") -> None:
        if message not in self._reported:
            self._reported.add(message)
            logger.warning("%s", f"{first}: {message}" if first else message)

    def _report_changes(self, gpus: list[GpuReading]) -> None:
        down = {gpu.index for gpu in gpus if not gpu.up}
        if down == self._down:
            return
        for index in sorted(down - self._down):
            logger.warning("GPU %s can't be read any more, looking for it every %g s", index, self._refresh_seconds)
        for index in sorted(self._down - down):
            logger.warning("GPU %s is back", index)
        self._down = down


def _device(handle: Any, identity: GpuReading, fields: FieldSet) -> _Device:
    return _Device(handle, identity, dict(fields.fast), dict(fields.slow))
