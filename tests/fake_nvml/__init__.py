"""A fake libnvidia-ml.so.1, compiled from fake_nvml.c, and the scenario it answers from, which a test changes at will.

In this process: `with FakeNvml(directory) as fake:`. In others: start them with `fake.environment()`.
"""

from __future__ import annotations

import _ctypes
import atexit
import ctypes
import functools
import mmap
import os
import shutil
import subprocess
import tempfile
from ctypes import Array, Structure, c_char, c_uint32, c_uint64
from pathlib import Path
from types import TracebackType

import pynvml

MAX_GPUS, MAX_MIG, MAX_PROCESSES, MAX_EVENTS = 16, 7, 16, 64
GIB = 2**30

# Groups of calls, as in the C file: the index into `result` and `called`.
CALLS = [
    "handle",
    "identity",
    "utilization",
    "memory",
    "processes",
    "power",
    "energy",
    "temperature",
    "clock",
    "throttle",
    "ecc",
    "events",
    "other",
]


class Process(Structure):
    pid: int
    gpu_instance: int
    memory: int
    _fields_ = (("pid", c_uint32), ("gpu_instance", c_uint32), ("memory", c_uint64))


class Device(Structure):
    """What a GPU or MIG instance answers."""

    uuid: bytes
    name: bytes
    result: Array[c_uint32]
    process_count: int
    called: Array[c_uint64]
    memory_total: int
    memory_reserved: int
    memory_used: int
    energy_mj: int
    throttle: int
    ecc_uncorrected: int
    utilization_percent: int
    power_mw: int
    temperature_c: int
    sm_clock_mhz: int
    processes: Array[Process]
    _fields_ = (
        ("uuid", c_char * 96),
        ("name", c_char * 96),
        ("result", c_uint32 * len(CALLS)),
        ("process_count", c_uint32),
        ("called", c_uint64 * len(CALLS)),
        ("memory_total", c_uint64),
        ("memory_reserved", c_uint64),
        ("memory_used", c_uint64),
        ("energy_mj", c_uint64),
        ("throttle", c_uint64),
        ("ecc_uncorrected", c_uint64),
        ("utilization_percent", c_uint32),
        ("power_mw", c_uint32),
        ("temperature_c", c_uint32),
        ("sm_clock_mhz", c_uint32),
        ("processes", Process * MAX_PROCESSES),
    )

    def refuse(self, call: str, code: int = pynvml.NVML_ERROR_NOT_SUPPORTED) -> None:
        self.result[CALLS.index(call)] = code

    def calls(self, call: str) -> int:
        """How often this group of calls was made."""
        return int(self.called[CALLS.index(call)])

    def run(self, *processes: tuple[int, int]) -> None:
        """These (pid, bytes) and no others have a context on the device."""
        self.process_count = len(processes)
        for slot, (pid, memory) in zip(self.processes, processes, strict=False):
            slot.pid, slot.memory = pid, memory


class Gpu(Structure):
    device: Device
    absent: int
    lost: int
    mig_enabled: int
    mig_count: int
    mig: Array[Device]
    _fields_ = (
        ("device", Device),
        ("absent", c_uint32),
        ("lost", c_uint32),
        ("mig_enabled", c_uint32),
        ("mig_count", c_uint32),
        ("mig", Device * MAX_MIG),
    )


class Event(Structure):
    gpu: int
    data: int
    _fields_ = (("gpu", c_uint32), ("unused", c_uint32), ("data", c_uint64))


class Scenario(Structure):
    init_result: int
    gpu_count: int
    init_calls: int
    event_count: int
    driver: bytes
    call_cost_us: int
    events: Array[Event]
    gpus: Array[Gpu]
    _fields_ = (
        ("init_result", c_uint32),
        ("gpu_count", c_uint32),
        ("init_calls", c_uint64),
        ("event_count", c_uint64),
        ("driver", c_char * 80),
        ("call_cost_us", c_uint32),
        ("unused", c_uint32),
        ("events", Event * MAX_EVENTS),
        ("gpus", Gpu * MAX_GPUS),
    )


class FakeNvml:
    """One scenario, kept in `directory`: `gpus` GPUs of an H200's shape to begin with."""

    def __init__(self, directory: Path, gpus: int = 8) -> None:
        self._path = directory / "scenario"
        self._path.write_bytes(bytes(ctypes.sizeof(Scenario)))
        with self._path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self.scenario = Scenario.from_buffer(self._memory)
        self.scenario.gpu_count = gpus
        self.scenario.driver = b"570.86.15"
        for number in range(gpus):
            fill(self.scenario.gpus[number].device, f"GPU-{number:08d}-fake", "NVIDIA H200", 141 * GIB)

    def __getitem__(self, gpu: int) -> Device:
        return self.scenario.gpus[gpu].device

    def split(self, gpu: int, instances: int) -> list[Device]:
        """Put a GPU into MIG mode with so many instances."""
        entry = self.scenario.gpus[gpu]
        entry.mig_enabled, entry.mig_count = 1, instances
        for number in range(instances):
            fill(entry.mig[number], f"MIG-{gpu:04d}-{number:04d}-fake", "NVIDIA H200 MIG 1g.18gb", 16 * GIB)
        return list(entry.mig)[:instances]

    def xid(self, gpu: int, code: int) -> None:
        slot = self.scenario.events[self.scenario.event_count % MAX_EVENTS]
        slot.gpu, slot.data = gpu, code
        self.scenario.event_count += 1

    def environment(self) -> dict[str, str]:
        """Environment variables with which a new process finds this library and this scenario."""
        path = os.pathsep.join(filter(None, [str(library().parent), os.environ.get("LD_LIBRARY_PATH")]))
        return {"LD_LIBRARY_PATH": path, "FAKE_NVML_SCENARIO": str(self._path)}

    def __enter__(self) -> FakeNvml:
        """Load the library here: the loader gives pynvml what is already loaded under this soname."""
        os.environ["FAKE_NVML_SCENARIO"] = str(self._path)
        unload_pynvml()
        self._loaded = ctypes.CDLL(str(library()))
        size = self._loaded.fake_nvml_scenario_size
        size.restype = c_uint64
        if size() != ctypes.sizeof(Scenario):
            raise RuntimeError(f"fake_nvml.c has a scenario of {size()} bytes, its mirror {ctypes.sizeof(Scenario)}")
        self._loaded.fake_nvml_reset()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unload_pynvml()
        _ctypes.dlclose(self._loaded._handle)
        del os.environ["FAKE_NVML_SCENARIO"]


def fill(device: Device, uuid: str, name: str, memory_total: int) -> None:
    """Healthy, idle values."""
    device.uuid, device.name = uuid.encode(), name.encode()
    device.memory_total, device.memory_reserved = memory_total, 600 * 2**20
    device.power_mw, device.temperature_c, device.sm_clock_mhz = 120_000, 35, 1_980
    device.energy_mj = 5_000_000


@functools.cache
def library() -> Path:
    """Compile the library, once in this process; it goes away with it."""
    directory = Path(tempfile.mkdtemp(prefix="fake-nvml-"))
    atexit.register(shutil.rmtree, directory)
    target = directory / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("fake_nvml.c")
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    soname = f"-Wl,-soname,{target.name}"
    subprocess.run([os.environ.get("CC", "cc"), *flags, soname, "-o", str(target), str(source)], check=True)
    return target


def unload_pynvml() -> None:
    """Make pynvml forget its library, so that its next nvmlInit looks for one."""
    if pynvml.nvmlLib is not None:
        _ctypes.dlclose(pynvml.nvmlLib._handle)
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()
