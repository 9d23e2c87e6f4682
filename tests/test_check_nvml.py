"""tools/check_nvml.py, which needs a real GPU to mean anything: here it has to find agreement and disagreement."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fake_nvml import GIB, FakeNvml

TOOL = Path(__file__).parents[1] / "tools" / "check_nvml.py"


def run(tmp_path: Path, fake: FakeNvml, memory_mib: str) -> subprocess.CompletedProcess[str]:
    """The tool, with an nvidia-smi that answers in its real format."""
    gpu = f"0, GPU-00000000-fake, NVIDIA H200, 570.86.15, Disabled, 80, {memory_mib}, 144384, 120.00, 35, 1980, 0"
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        f'#!/bin/sh\ncase "$1" in *compute-apps*) echo "GPU-00000000-fake, {os.getpid()}, 30720";; *) echo "{gpu}";; esac\n'
    )
    smi.chmod(0o755)
    environment = os.environ | fake.environment() | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [sys.executable, str(TOOL), "--seconds", "0.5"]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    fake = FakeNvml(tmp_path, gpus=1)
    fake[0].memory_used, fake[0].utilization_percent = 40 * GIB, 80
    fake[0].run((os.getpid(), 30 * GIB))
    fake[0].refuse("energy")
    return fake


def test_agreement(tmp_path: Path, fake: FakeNvml) -> None:
    result = run(tmp_path, fake, memory_mib="40960")
    assert "11 checks, 0 off" in result.stdout, result.stdout
    assert result.returncode == 0


def test_disagreement(tmp_path: Path, fake: FakeNvml) -> None:
    result = run(tmp_path, fake, memory_mib="50000")
    (off,) = [line for line in result.stdout.splitlines() if line.startswith("OFF")]
    assert "verl_gpu_memory_used_bytes" in off
    assert result.returncode == 1


def test_what_nvidia_smi_does_not_know_must_have_no_series(tmp_path: Path, fake: FakeNvml) -> None:
    assert run(tmp_path, fake, memory_mib="[N/A]").returncode == 1
    fake[0].refuse("memory")
    off = [line for line in run(tmp_path, fake, memory_mib="[N/A]").stdout.splitlines() if line.startswith("OFF")]
    assert ["memory_total" in line for line in off] == [True], "which this nvidia-smi knows"
