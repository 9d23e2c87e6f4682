"""What one `Tracking.log` of a 95-key step costs each of verl's backends, interleaved in one run.

    python bench/log.py [--steps N]

Prints a table of p50 and p99 in microseconds and as ratios to verl's `file` backend. tensorboard and wandb (offline) are
measured if they are installed.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FIXTURE = Path(__file__).parent.parent / "tests" / "fixtures" / "grpo_v1.jsonl"
SCRAPERS = 20
SCRAPER = """
import sys, threading, urllib.request
def scrape():
    while True:
        urllib.request.urlopen(sys.argv[1]).read()
for _ in range(int(sys.argv[2])):
    threading.Thread(target=scrape).start()
print("scraping", flush=True)
"""


def step_values() -> dict[str, Any]:
    """A 95-key step of a real GRPO run, with NumPy scalars where verl logs them."""
    data = next(json.loads(line)["data"] for line in FIXTURE.read_text().splitlines() if json.loads(line)["step"] == 1)
    numpy = {key for key in data if key.startswith(("global_seqlen/", "training/num_turns/", "response_length"))}
    return {key: np.float64(value) if key in numpy else value for key, value in data.items()}


def backends(folder: Path) -> dict[str, Any]:
    from verl.utils.tracking import Tracking

    os.environ["VERL_FILE_LOGGER_PATH"] = str(folder / "file.jsonl")
    os.environ["TENSORBOARD_DIR"] = str(folder / "tensorboard")
    os.environ |= {"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "WANDB_SILENT": "true"}
    names = ["file", "prometheus", "console"]
    names += ["tensorboard"] if importlib.util.find_spec("tensorboard") else []
    names += ["wandb"] if importlib.util.find_spec("wandb") else []
    section = {"port": 0, "address": "127.0.0.1", "targets_dir": str(folder / "targets"), "linger_seconds": 0}
    trainer = {"prometheus": section}
    trackings = {name: Tracking("bench", name, [name], {"trainer": trainer}) for name in names}
    kept = {"trainer": {**trainer, "default_local_dir": str(folder), "resume_mode": "disable"}}
    trackings["prometheus, with journal"] = Tracking("bench", "journal", ["prometheus"], kept)
    return trackings


def measure(logs: dict[str, Callable[..., None]], steps: int, data: dict[str, Any]) -> dict[str, list[float]]:
    """Seconds of each call, every backend in turn, in a new order at each step."""
    seconds: dict[str, list[float]] = {name: [] for name in logs}
    order = list(logs)
    for step in range(1, steps + 1):
        values = {key: value + step * 1e-9 for key, value in data.items()}
        random.shuffle(order)
        for name in order:
            began = time.perf_counter()
            logs[name](data=values, step=step)
            seconds[name].append(time.perf_counter() - began)
    return seconds


def quantiles(seconds: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return cuts[49] * 1e6, cuts[98] * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    steps = parser.parse_args().steps
    data = step_values()
    with tempfile.TemporaryDirectory() as folder:
        trackings = backends(Path(folder))
        gc.collect()
        with contextlib.redirect_stdout(io.StringIO()):  # what console prints; printing is part of its cost
            seconds = measure({name: one.log for name, one in trackings.items()}, steps, data)
        file_p50, file_p99 = quantiles(seconds["file"])
        print(f"{len(data)} keys, {steps} steps\n")
        print("| backend | p50 µs | p99 µs | p50 / file | p99 / file |\n|---|---|---|---|---|")
        for name in seconds:
            p50, p99 = quantiles(seconds[name])
            print(f"| {name} | {p50:.1f} | {p99:.1f} | {p50 / file_p50:.2f} | {p99 / file_p99:.2f} |")

        ours = trackings["prometheus"]
        url = f"{ours.logger['prometheus'].url}/metrics"
        alone, crowded = _paced(ours, data, steps), _crowded(ours, data, steps, url)
        print(f"\np99 of log(), one call a millisecond: {alone:.1f} µs alone,")
        print(f"{crowded:.1f} µs with {SCRAPERS} scrapers that never pause: {crowded / alone:.2f} times")
        for tracking in trackings.values():
            tracking.finish()


def _paced(tracking: Any, data: dict[str, Any], steps: int) -> float:
    seconds = []
    for step in range(steps):
        time.sleep(0.001)
        began = time.perf_counter()
        tracking.log(data=data, step=step)
        seconds.append(time.perf_counter() - began)
    return quantiles(seconds)[1]


def _crowded(tracking: Any, data: dict[str, Any], steps: int, url: str) -> float:
    """With scrapers that never pause, in a process of their own as Prometheis are."""
    command = [sys.executable, "-c", SCRAPER, url, str(SCRAPERS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as scrapers:
        assert scrapers.stdout is not None
        scrapers.stdout.readline()
        try:
            return _paced(tracking, data, steps)
        finally:
            scrapers.kill()


if __name__ == "__main__":
    main()
