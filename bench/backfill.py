"""What `verl-prometheus backfill` takes for a long run: time, peak memory, size.

    python bench/backfill.py [--steps N] [--keys N] [--step-seconds N]

Writes a journal of that many steps into a temporary folder and turns it into OpenMetrics, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from verl_prometheus.attempt import Attempt
from verl_prometheus.backfill.source import call
from verl_prometheus.journal import Encoder
from verl_prometheus.run import RunIdentity

FIXTURE = Path(__file__).parent.parent / "tests" / "fixtures" / "grpo_v1.jsonl"
START = 1_700_000_000.0


def keys(number: int) -> list[str]:
    """The keys of a real GRPO step, and as many others as are missing."""
    real = next(
        list(json.loads(line)["data"]) for line in FIXTURE.read_text().splitlines() if json.loads(line)["step"] == 1
    )
    return [*real, *(f"extra/key_{index}" for index in range(number))][:number]


def write_journal(path: Path, steps: int, names: list[str], step_seconds: float) -> None:
    identity = RunIdentity("bench", "backfill", "0" * 32, START)
    encoder = Encoder(identity)
    with path.open("wb") as stream:
        stream.write(encoder.attempt(Attempt(identity), START))
        for step in range(1, steps + 1):
            data = {name: random.random() * (step_seconds if name.startswith("timing_s/") else 1) for name in names}
            stream.write(encoder.call(call(START + step * step_seconds, step, data)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--step-seconds", type=float, default=30.0)
    namespace = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        journal, output = Path(folder, "journal.jsonl"), Path(folder, "openmetrics.txt")
        write_journal(journal, namespace.steps, keys(namespace.keys), namespace.step_seconds)
        began = time.perf_counter()
        command = [sys.executable, "-m", "verl_prometheus.cli", "backfill", str(journal), "--output", str(output)]
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - began
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(
            f"{namespace.steps} steps x {namespace.keys} keys, {namespace.step_seconds:g} s each: {seconds:.1f} s "
            f"({usage.ru_utime + usage.ru_stime:.1f} s of CPU), {usage.ru_maxrss / 1024:.0f} MiB at most; "
            f"journal {journal.stat().st_size / 2**20:.0f} MiB, output {output.stat().st_size / 2**20:.0f} MiB"
        )


if __name__ == "__main__":
    main()
