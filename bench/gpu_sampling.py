"""What sampling GPUs costs, beside nvitop-exporter on the same fake driver library at the same rate.

    python bench/gpu_sampling.py [--seconds 20] [--rounds 3]

The fake library answers at once: this is the cost of our code, without what the driver itself takes. nvitop-exporter is
installed into a virtual environment that is thrown away. Printed as JSON:

    ours, nvitop         median CPU seconds per second of wall time (share of one core), sampling GPUS GPUs at 10 Hz
    longest_hold_ms      longest time the sampling thread kept the interpreter's lock, over all rounds
    scrape_ms            rendering a scrape of GPUS GPUs
    discovery_ms         writing one discovery file of 1,000 nodes
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from fake_nvml import GIB, FakeNvml

GPUS, HERTZ, NODES = 8, 10, 1000

OURS = """
import json, sys, time
from verl_prometheus.errors import ErrorLog
from verl_prometheus.gpu.roles import ProcessRoles
from verl_prometheus.gpu.sampler import GpuSampler
from verl_prometheus.nvml import Nvml
sampler = GpuSampler(Nvml(), ProcessRoles().classify, ErrorLog(), interval=1 / float(sys.argv[2]))
sampler.start()
def samples():
    return sum(sampler.snapshot().history["0"].memory.counts)
"""

NVITOP = """
import json, sys, threading, time
from nvitop import Device
from nvitop_exporter import PrometheusExporter
exporter = PrometheusExporter(Device.all(), hostname="bench", interval=1 / float(sys.argv[2]))
rounds = []
update_host = exporter.update_host
exporter.update_host = lambda: (rounds.append(1), update_host())
threading.Thread(target=exporter.collect, daemon=True).start()
def samples():
    return len(rounds)
"""

MEASURE = """
time.sleep(2)
cpu, wall, before = time.process_time(), time.perf_counter(), samples()
time.sleep(float(sys.argv[1]))
wall = time.perf_counter() - wall
print(json.dumps({"cpu": (time.process_time() - cpu) / wall, "hertz": (samples() - before) / wall}))
"""

# How long the sampling thread keeps the lock once it has it: its own CPU time between calls that let go of it. The switch
# interval is set so high that the interpreter takes the lock away from nobody.
HOLD = """
import json, sys, time
sys.setswitchinterval(1000)
import pynvml
from verl_prometheus.errors import ErrorLog
from verl_prometheus.gpu.roles import ProcessRoles
from verl_prometheus.gpu.sampler import GpuSampler
from verl_prometheus.nvml import Nvml
holds, last = [], time.thread_time()
def letting_go(call):
    def wrapped(*args):
        global last
        holds.append(time.thread_time() - last)
        try:
            return call(*args)
        finally:
            last = time.thread_time()
    return wrapped
sampler = GpuSampler(Nvml(), ProcessRoles().classify, ErrorLog())
for _ in range(20):
    sampler.sample()
    if not holds:
        cache = pynvml._nvmlGetFunctionPointer_cache
        for name in cache:
            cache[name] = letting_go(cache[name])
    last = time.thread_time()
holds.clear()
for _ in range(100):
    time.sleep(0.02)
    last = time.thread_time()
    sampler.sample()
    holds.append(time.thread_time() - last)
print(json.dumps({"longest_ms": 1e3 * max(holds), "median_ms": 1e3 * sorted(holds)[len(holds) // 2]}))
"""


def run(python: str, code: str, environment: dict[str, str], *arguments: object) -> dict[str, float]:
    command = [python, "-c", code, *map(str, arguments)]
    output = subprocess.run(command, env=os.environ | environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return dict(json.loads(output.splitlines()[-1]))


def scrape_ms() -> float:
    from prometheus_client import CollectorRegistry, generate_latest

    from verl_prometheus.collectors.gpu import GpuCollector
    from verl_prometheus.errors import ErrorLog
    from verl_prometheus.gpu.sampler import GpuSampler
    from verl_prometheus.gpu.simulated import SimulatedGpus

    gpus = SimulatedGpus(GPUS)
    sampler = GpuSampler(gpus, gpus.classify, ErrorLog())
    sampler.sample()
    registry = CollectorRegistry()
    registry.register(GpuCollector(sampler.snapshot, node="bench"))
    return median_ms(lambda: generate_latest(registry))


def discovery_ms(folder: Path) -> float:
    from verl_prometheus.discovery import TargetGroup, TargetsFile

    file = TargetsFile(folder, "bench", "gpu")
    groups = [TargetGroup(targets=[f"10.0.{n // 250}.{n % 250}:9401"], labels={"node": f"n{n}"}) for n in range(NODES)]
    return median_ms(lambda: file.write(groups))


def median_ms(action: object) -> float:
    assert callable(action)
    times = []
    for _ in range(21):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-python", help="a Python that has nvitop-exporter, instead of a fresh environment")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        peer = options.peer_python
        if not peer:
            venv.create(folder / "peer", with_pip=True)
            peer = str(folder / "peer" / "bin" / "python")
            subprocess.run([peer, "-m", "pip", "install", "-q", "nvitop-exporter"], check=True, stdout=sys.stderr)
        fake = FakeNvml(folder, gpus=GPUS)
        for gpu in range(GPUS):
            fake[gpu].memory_used, fake[gpu].utilization_percent = 90 * GIB, 80
            fake[gpu].run((os.getpid(), 60 * GIB), (os.getppid(), 30 * GIB))
        measured: dict[str, list[dict[str, float]]] = {"ours": [], "nvitop": []}
        holds = []
        for _ in range(options.rounds):
            for who, python, code in (("ours", sys.executable, OURS), ("nvitop", peer, NVITOP)):
                measured[who].append(run(python, code + MEASURE, fake.environment(), options.seconds, HERTZ))
            holds.append(run(sys.executable, HOLD, fake.environment()))
        ours, nvitop = (statistics.median(one["cpu"] for one in measured[who]) for who in ("ours", "nvitop"))
        report = {
            "gpus": GPUS,
            "ours": ours,
            "nvitop": nvitop,
            "ours_over_nvitop": ours / nvitop,
            "hertz": {who: statistics.median(one["hertz"] for one in measured[who]) for who in measured},
            "longest_hold_ms": max(hold["longest_ms"] for hold in holds),
            "median_hold_ms": statistics.median(hold["median_ms"] for hold in holds),
            "scrape_ms": scrape_ms(),
            "discovery_ms": discovery_ms(folder),
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
