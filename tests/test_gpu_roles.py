"""Which role a process on the GPU has, from a /proc made of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_prometheus.gpu.reading import GpuProcess, GpuReading
from verl_prometheus.gpu.roles import ProcessRoles, memory_by_role

RAYLET = "/site-packages/ray/core/src/ray/raylet/raylet --raylet_socket_name=/tmp/ray"
DRIVER = "python -m verl.trainer.main_ppo trainer.nnodes=1"


class Proc:
    """Writes processes the way Linux shows them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.add(1, 0, "/sbin/init")

    def add(self, pid: int, parent: int, title: str) -> None:
        directory = self.path / str(pid)
        directory.mkdir(exist_ok=True)
        (directory / "cmdline").write_bytes(title.replace(" ", "\0").encode() + b"\0" * 20)
        (directory / "stat").write_text(f"{pid} (a (strange) name) S {parent} {pid} 0 0 -1")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


@pytest.mark.parametrize(
    ("title", "role"),
    [
        ("ray::WorkerDict", "train"),
        ("ray::WorkerDict.actor_rollout_update_actor", "train"),
        ("ray::FusedWorker_Actor_Critic.execute", "train"),
        ("ray::DetachActorWorker", "train"),
        ("ray::TrainingWorker.train_batch", "train"),
        ("VLLM::EngineCore_DP0", "rollout"),
        ("VLLM::Worker_TP3", "rollout"),
        ("sglang::scheduler_TP1", "rollout"),
        ("ray::vLLMHttpServer.generate", "rollout"),
        ("ray::SGLangHttpServer", "rollout"),
        ("ray::TRTLLMHttpServer", "rollout"),
        ("ray::CheckpointEngineWorker", "rollout"),
        ("ray::AgentLoopWorker", "other"),
        ("ray::IDLE", "other"),
        ("/usr/bin/Xorg", "other"),
    ],
)
def test_ray_and_engine_titles(proc: Proc, title: str, role: str) -> None:
    proc.add(20, 1, DRIVER)
    proc.add(21, 20, RAYLET)
    proc.add(22, 21, title)
    assert ProcessRoles(proc.path).classify([22]) == {22: role}


def test_descendants_take_the_role_of_their_nearest_ancestor(proc: Proc) -> None:
    proc.add(10, 1, RAYLET)
    proc.add(11, 10, "ray::vLLMHttpServer")
    proc.add(12, 11, "python -c from multiprocessing.spawn import spawn_main")
    proc.add(13, 12, "python -c from multiprocessing.spawn import spawn_main")
    proc.add(14, 10, "ray::WorkerDict")
    proc.add(15, 14, "pt_data_worker")
    proc.add(16, 14, "VLLM::Worker_TP0")
    assert ProcessRoles(proc.path).classify([13, 15, 16]) == {13: "rollout", 15: "train", 16: "rollout"}


def test_sft_under_torchrun_trains(proc: Proc) -> None:
    proc.add(30, 1, "/usr/bin/python /usr/bin/torchrun --nproc_per_node 8 -m verl.trainer.sft_trainer")
    proc.add(31, 30, "/usr/bin/python -u -m verl.trainer.sft_trainer")
    proc.add(32, 1, "/usr/bin/python /src/verl/trainer/fsdp_sft_trainer.py")
    assert ProcessRoles(proc.path).classify([31, 32]) == {31: "train", 32: "train"}


def test_another_job_is_other(proc: Proc) -> None:
    proc.add(40, 1, "python train.py --title ray::WorkerDict")
    assert ProcessRoles(proc.path).classify([40]) == {40: "other"}


def test_a_process_of_another_namespace_is_unknown(proc: Proc) -> None:
    assert ProcessRoles(proc.path).classify([123456]) == {123456: "unknown"}


def test_a_title_may_still_become_an_engine(proc: Proc) -> None:
    roles = ProcessRoles(proc.path)
    proc.add(50, 1, "python -c from multiprocessing.spawn import spawn_main")
    assert roles.classify([50]) == {50: "other"}
    proc.add(50, 1, "VLLM::EngineCore")
    assert roles.classify([50]) == {50: "rollout"}


def test_a_pid_may_be_reused(proc: Proc) -> None:
    roles = ProcessRoles(proc.path)
    proc.add(60, 1, "VLLM::EngineCore")
    roles.classify([60])
    roles.classify([])
    proc.add(60, 1, "/usr/bin/Xorg")
    assert roles.classify([60]) == {60: "other"}


def test_memory_is_summed_by_role() -> None:
    gpu = GpuReading("0", memory_used_bytes=60, processes=tuple(GpuProcess(pid, pid) for pid in (1, 2, 3)))
    assert memory_by_role(gpu, {1: "train", 2: "rollout", 3: "train"}) == {"train": 4, "rollout": 2}


def test_memory_the_card_does_not_attribute_is_left_out() -> None:
    gpu = GpuReading("0", memory_used_bytes=2**35, processes=(GpuProcess(1, None),))
    assert memory_by_role(gpu, {1: "train"}) == {}
    assert memory_by_role(GpuReading("0", memory_used_bytes=2**35), {}) == {}


def test_memory_in_use_without_any_listed_process_is_unknown() -> None:
    assert memory_by_role(GpuReading("0", memory_used_bytes=2**35, processes=()), {}) == {"unknown": 2**35}
    assert memory_by_role(GpuReading("0", memory_used_bytes=2**29, processes=()), {}) == {}
