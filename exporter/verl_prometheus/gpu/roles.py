"""Which part of a verl run a process on the GPU belongs to, told by process titles, its own first, then its parents'.

Ray titles an actor's process `ray::Class.method`, vLLM `VLLM::...`, SGLang `sglang::...`. verl before 0.7 runs the
inference engine inside the trainer's processes: there "train" is both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from verl_prometheus.gpu.reading import GpuReading

TRAIN, ROLLOUT, OTHER, UNKNOWN = "train", "rollout", "other", "unknown"

_ROLLOUT_TITLE = re.compile(r"VLLM::|sglang::|ray::\w*(vLLM|SGLang|TRTLLM|CheckpointEngineWorker|RayWorkerWrapper)")
_TRAIN_TITLE = re.compile(
    r"ray::(WorkerDict|FusedWorker|\w*(Actor|Critic|Training)\w*Worker)|(?!ray::).*verl[./]trainer\b"
)
RAYLET = "/raylet/raylet"  # a local cluster's is a child of the driver, which is no parent to look at
_MOST_PARENTS = 16
_UNLISTED_BYTES = 2**30  # more than a driver keeps for itself on a GPU that no process uses


class ProcessRoles:
    """Roles of this machine's processes; remembers those that can't change any more."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._settled: dict[int, str] = {}

    def classify(self, pids: Iterable[int]) -> dict[int, str]:
        """PID -> role, for all processes now on the GPUs. "unknown" is a PID that isn't in /proc: it belongs to another
        PID namespace, as in a container that doesn't share the host's.
        """
        roles = {pid: self._settled.get(pid) or self._look(pid) for pid in pids}
        self._settled = {pid: role for pid, role in roles.items() if role in (TRAIN, ROLLOUT)}
        return roles

    def _look(self, pid: int) -> str:
        try:
            for _ in range(_MOST_PARENTS):
                title = self._title(pid)
                if _ROLLOUT_TITLE.match(title):
                    return ROLLOUT
                if _TRAIN_TITLE.match(title):
                    return TRAIN
                pid = self._parent(pid)
                if pid <= 1 or RAYLET in title:
                    break
        except (FileNotFoundError, ProcessLookupError):
            return UNKNOWN
        return OTHER

    def _title(self, pid: int) -> str:
        return (self._proc / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()

    def _parent(self, pid: int) -> int:
        stat = (self._proc / str(pid) / "stat").read_text(errors="replace")
        return int(stat[stat.rindex(")") + 1 :].split()[1])


def memory_by_role(gpu: GpuReading, roles: Mapping[int, str]) -> dict[str, int]:
    """Role -> bytes on this GPU; empty where the card doesn't tell. Memory in use that no process is listed for is
    "unknown": some drivers list nothing at all in a container without the host's PIDs.
    """
    if gpu.processes is None:
        return {}
    if not gpu.processes and (gpu.memory_used_bytes or 0) > _UNLISTED_BYTES:
        return {UNKNOWN: gpu.memory_used_bytes or 0}
    memory: dict[str, int] = {}
    for process in gpu.processes:
        if process.memory_bytes is not None:
            role = roles[process.pid]
            memory[role] = memory.get(role, 0) + process.memory_bytes
    return memory
