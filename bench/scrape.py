"""What a scrape costs: CPU time and bytes for runs of 100, 1,000 and 10,000 series, and the memory of it all.

    python bench/scrape.py

CPU is that of the whole serving process. Memory is the resident set over that of a process with verl imported, before the
backend is built.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from typing import Any

ACCEPT = {"text": "text/plain", "OpenMetrics": "application/openmetrics-text; version=1.0.0"}
SCRAPES = 20


def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def serve(series: int, folder: str) -> tuple[Any, int]:
    before = resident()
    from verl_prometheus.backend import PrometheusBackend
    from verl_prometheus.settings import Settings

    settings = Settings(port=0, address="127.0.0.1", targets_dir=folder, linger_seconds=0)
    with contextlib.redirect_stdout(io.StringIO()):
        backend = PrometheusBackend("bench", "scrape", settings)
    data = {f"group{index % 50}/metric{index}/mean": float(index) for index in range(series)}
    for step in range(3):
        backend.log(data, step)
    return backend, before


def scrape(url: str, accept: str) -> tuple[float, int, int]:
    """CPU seconds of a scrape, bytes of it, bytes compressed. The client is another process, as Prometheus is."""
    code = f"""
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={{"Accept": sys.argv[2], "Accept-Encoding": "gzip"}})
for _ in range({SCRAPES}):
    body = urllib.request.urlopen(request).read()
sys.stdout.buffer.write(body)
"""
    began = time.process_time()
    body = subprocess.run([sys.executable, "-c", code, url, accept], check=True, capture_output=True).stdout
    return (time.process_time() - began) / SCRAPES, len(gzip.decompress(body)), len(body)


def memory_over(steps: int, series: int) -> tuple[int, int]:
    """Resident bytes added after the first 1,000 steps and after all, read after a scrape as in a run."""
    import verl  # noqa: F401, what a trainer's process has anyway

    with tempfile.TemporaryDirectory() as folder:
        backend, before = serve(series, folder)
        data = {f"group{index % 50}/metric{index}/mean": float(index) for index in range(series)}
        added = []
        for step in range(steps):
            backend.log(data, step)
            if step in (1000, steps - 1):
                urllib.request.urlopen(f"{backend.url}/metrics").read()
                added.append(resident() - before)
        backend.finish()
    return added[0], added[-1]


def main() -> None:
    if len(sys.argv) == 3:
        first, last = memory_over(int(sys.argv[1]), int(sys.argv[2]))
        print(f"{first / 1e6:.1f} {last / 1e6:.1f}")
        return
    print("| series | format | CPU ms | kB | kB gzip |\n|---|---|---|---|---|")
    for series in (100, 1000, 10_000):
        with tempfile.TemporaryDirectory() as folder:
            backend, _ = serve(series, folder)
            for name, accept in ACCEPT.items():
                runs = [scrape(f"{backend.url}/metrics", accept) for _ in range(3)]
                cpu = statistics.median(one[0] for one in runs)
                print(f"| {series} | {name} | {cpu * 1e3:.1f} | {runs[0][1] / 1e3:.0f} | {runs[0][2] / 1e3:.0f} |")
            backend.finish()
    steps, series = 100_000, 1000
    output = subprocess.run(
        [sys.executable, __file__, str(steps), str(series)], check=True, capture_output=True, text=True
    ).stdout
    first, last = output.split()
    print(f"\nmemory added at {series} series: {first} MB after 1,000 steps, {last} MB after {steps:,}")


if __name__ == "__main__":
    main()
