"""The plugin on every verl that it supports: Tracking, its end, and the timers, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

OLDER = ("0.6.1", "0.7.1", "0.8.0")  # they need VERL_USE_EXTERNAL_MODULES
INSTALLED = "0.9.1"  # finds the entry point
SCRIPT = """
import gc, json, os, sys, urllib.request
from pathlib import Path
import verl
from verl.trainer.ppo import metric_utils
from verl.utils.debug import marked_timer
from verl.utils.tracking import Tracking
from verl_prometheus.phases import TRACKER

folder = Path(sys.argv[1])
section = {"port": 0, "address": "127.0.0.1", "targets_dir": str(folder / "targets"), "linger_seconds": 0}
os.environ["VERL_FILE_LOGGER_PATH"] = str(folder / "log.jsonl")
tracking = Tracking("p", "e", ["file", "prometheus"], {"trainer": {"prometheus": section}})
backend = tracking.logger["prometheus"]
timing = {}
with marked_timer("step", timing), marked_timer("gen", timing):
    active = list(TRACKER.read().active)
tracking.log({"actor/entropy": 1.5, "timing_s/gen": timing["gen"]}, step=7)
text = urllib.request.urlopen(backend.url + "/metrics").read().decode()
targets = len(list((folder / "targets").iterdir()))
if sys.argv[2] == "finish":
    tracking.finish(exit_code=1)
    assert not list((folder / "targets").iterdir())
del tracking
gc.collect()
print(json.dumps({
    "version": verl.__version__, "active": active, "after": list(TRACKER.read().active), "missing": TRACKER.missing,
    "entropy": [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith("verl_actor_entropy{")],
    "targets": [targets, len(list((folder / "targets").iterdir()))],
    "batches": hasattr(metric_utils.compute_data_metrics, "_verl_prometheus"),
    "file": (folder / "log.jsonl").read_text().count("actor/entropy"),
}))
"""


def environment(version: str) -> dict[str, str]:
    variables = {**os.environ, "PYTHONWARNINGS": "ignore"}
    if version == INSTALLED:
        return variables
    folder = Path(os.environ["VERL_VERSIONS"], version)
    assert (folder / "verl").is_dir(), f"no verl {version}: run the tests with `make test`"
    return variables | {"PYTHONPATH": str(folder), "VERL_USE_EXTERNAL_MODULES": "verl_prometheus.plugin"}


@pytest.mark.parametrize("end", ["finish", "garbage"])
@pytest.mark.parametrize("version", [*OLDER, INSTALLED])
def test_a_run_on_each_verl(version: str, end: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), end]
    output = subprocess.run(
        command, env=environment(version), cwd=tmp_path, check=True, capture_output=True, text=True, timeout=180
    ).stdout
    assert json.loads(output.splitlines()[-1]) == {
        "version": version,
        "active": ["step", "gen"],
        "after": [],
        "missing": None,
        "entropy": ["1.5"],
        "targets": [1, 0],
        "batches": True,
        "file": 1,
    }


@pytest.mark.parametrize("version", [*OLDER[1:], INSTALLED])  # 0.6.1's agent loop needs an older transformers
def test_trajectories_are_seen_on_each_verl(version: str) -> None:
    code = "import verl.experimental.agent_loop.agent_loop as one; one.AgentLoopManager._performance_metrics._verl_prometheus"
    subprocess.run([sys.executable, "-c", code], env=environment(version), check=True, timeout=180)
