"""Real verl runs of the tiny model: the one place that builds them, for the demo, the tests and the scenarios.

A run is a subprocess with `command(...)` and `environment(...)`, on a folder that `prepare(...)` has filled.
`config/` holds verl's settings; everything in there can be overridden.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

Kind = Literal["grpo", "ppo", "sft"]

HERE = Path(__file__).parent
EXTERNAL_MODULES = tuple(f"verl_prometheus.demo.{name}" for name in ("cpu_platform", "rollout", "critic"))
NOT_INHERITED = (
    "RAY_ADDRESS",  # a cluster of its own
    "CUDA_VISIBLE_DEVICES",  # Ray refuses to pretend more GPUs than it names
)
LONGEST_RAY_FOLDER = 36  # its sockets' paths, 70 bytes longer, must fit into the 107 of a Unix address


def prepare(folder: Path) -> None:
    """Write the tiny model and its data sets into `folder`, unless they are there. Takes ten seconds, once.

    Raises RuntimeError with the reason if that fails.
    """
    assets = _assets(folder)
    if assets.is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as unfinished:
        written = Path(unfinished, "assets")
        writer = subprocess.run(
            [sys.executable, "-m", "verl_prometheus.demo.assets", str(written)],
            env=environment(folder),
            capture_output=True,
            text=True,
        )
        if writer.returncode:
            raise RuntimeError(f"the tiny model could not be made: {writer.stderr.strip()}")
        try:
            written.rename(assets)
        except OSError:
            if not assets.is_dir():  # else another process was quicker
                raise


def command(
    kind: Kind,
    folder: Path,
    *,
    steps: int,
    logger: Sequence[str],
    experiment: str,
    overrides: Sequence[str] = (),
    gpus: int = 1,
) -> list[str]:
    """The command line of a run.

    Args:
        kind: GRPO or PPO with a critic (`verl.trainer.main_ppo`), or SFT (`verl.trainer.sft_trainer` under torchrun).
        folder: where `prepare` wrote to; checkpoints go there, too.
        steps: training steps.
        logger: verl's `trainer.logger`.
        experiment: verl's `trainer.experiment_name`.
        overrides: of verl's settings, as Hydra takes them; a `+` is needed for those that verl does not know.
        gpus: pretended GPUs of an RL run, processes of SFT.
    """
    if kind == "sft":
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}"]
        trainer = [*launcher, "-m", "verl.trainer.sft_trainer"]
    else:
        trainer = ["-m", "verl.trainer.main_ppo"]
    settings = {
        "folder": str(folder),
        "assets": str(_assets(folder)),
        "trainer.total_training_steps": steps,
        "trainer.n_gpus_per_node": gpus,
        "trainer.experiment_name": experiment,
        "trainer.logger": list(logger),
    }
    quoted = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in settings.items()]
    return [sys.executable, *trainer, f"--config-dir={HERE / 'config'}", f"--config-name={kind}", *quoted, *overrides]


def environment(folder: Path) -> dict[str, str]:
    """The environment of a run, made from this process's. VERL_FILE_LOGGER_PATH is left to the caller."""
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    modules = [*filter(None, inherited.get("VERL_USE_EXTERNAL_MODULES", "").split(",")), *EXTERNAL_MODULES]
    return inherited | {
        "VERL_USE_EXTERNAL_MODULES": ",".join(dict.fromkeys(modules)),
        "VERL_ENGINE_DEVICE": "cuda",  # verl registers its FSDP engines for accelerators only; which entry, not where
        "OMP_NUM_THREADS": "1",  # the model is too small for more
        "TQ_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(_ray_folder(folder)),
    }


def _assets(folder: Path) -> Path:
    """Named after the code that writes them: what an older version wrote is never used."""
    return folder / f"assets-{_digest((HERE / 'assets.py').read_bytes())}"


def _ray_folder(folder: Path) -> Path:
    inside = folder / "ray"
    if len(os.fsencode(inside)) <= LONGEST_RAY_FOLDER:
        return inside
    return Path(f"/tmp/verl-{os.getuid()}-{_digest(os.fsencode(folder))}")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]
