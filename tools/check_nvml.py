"""Holds the GPU families against nvidia-smi on a real NVIDIA machine.

    python tools/check_nvml.py [--seconds 5]

The agent's own endpoint is scraped right before and right after nvidia-smi runs: what nvidia-smi says must lie between the
two, give or take the tolerance. What nvidia-smi calls N/A must have no series. Energy is held against power over
`--seconds`. Prints a line per GPU and family; exit status 1 if one is off.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from verl_prometheus.gpu.agent import AgentConfig, GpuAgent

MIB = 2**20


@dataclass(frozen=True)
class Check:
    """A family, nvidia-smi's name of the same, the factor to the family's unit, and what may lie between them."""

    family: str
    field: str
    factor: float
    tolerance: float
    of_instances: bool = False  # under MIG the instances have it, not the GPU


CHECKS = (
    Check("verl_gpu_utilization_ratio", "utilization.gpu", 0.01, 0.2, of_instances=True),
    Check("verl_gpu_memory_used_bytes", "memory.used", MIB, 64 * MIB, of_instances=True),
    Check("verl_gpu_memory_total_bytes", "memory.total", MIB, MIB, of_instances=True),
    Check("verl_gpu_power_watts", "power.draw", 1, 30),
    Check("verl_gpu_temperature_celsius", "temperature.gpu", 1, 2),
    Check("verl_gpu_sm_clock_hertz", "clocks.sm", 1e6, 150e6),
    Check("verl_gpu_uncorrectable_ecc_errors", "ecc.errors.uncorrected.volatile.total", 1, 0),
)
IDENTITY = ("index", "uuid", "name", "driver_version", "mig.mode.current")


class Endpoint:
    """The samples of one scrape of the agent."""

    def __init__(self, agent: GpuAgent) -> None:
        self.at = time.monotonic()
        with urllib.request.urlopen(f"http://{agent.target}/metrics") as response:
            text = response.read().decode()
        self.samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def value(self, name: str, gpu: str) -> float | None:
        """The sum over the other labels; None without any sample."""
        values = [sample.value for sample in self.samples if sample.name == name and sample.labels.get("gpu") == gpu]
        return sum(values) if values else None

    def identity(self, gpu: str) -> dict[str, str]:
        infos = [s.labels for s in self.samples if s.name == "verl_gpu_info" and s.labels["gpu"] == gpu]
        return dict(infos[0]) if infos else {}


@dataclass(frozen=True)
class Result:
    gpu: str
    family: str
    ours: str
    theirs: str
    ok: bool


def nvidia_smi(query: str, fields: tuple[str, ...]) -> list[dict[str, str]]:
    command = ["nvidia-smi", f"--query-{query}={','.join(fields)}", "--format=csv,noheader,nounits"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [dict(zip(fields, row, strict=True)) for row in csv.reader(output.splitlines(), skipinitialspace=True)]


def number(text: str) -> float | None:
    """None for [N/A], [Not Supported] and their like."""
    try:
        return float(text)
    except ValueError:
        return None


def compare(before: Endpoint, after: Endpoint, gpu: dict[str, str]) -> Iterator[Result]:
    index = gpu["index"]
    info = before.identity(index)
    for label, field in (("uuid", "uuid"), ("name", "name"), ("driver", "driver_version")):
        ours = info.get(label, "absent")
        yield Result(index, f"verl_gpu_info{{{label}}}", ours, gpu[field], ours == gpu[field])
    mig = gpu["mig.mode.current"] == "Enabled"
    for check in CHECKS:
        raw = number(gpu[check.field])
        theirs = None if raw is None or (mig and check.of_instances) else raw * check.factor
        yield between(index, check.family, before, after, theirs, check.tolerance)


def between(
    index: str, family: str, before: Endpoint, after: Endpoint, theirs: float | None, tolerance: float
) -> Result:
    ours = [value for value in (before.value(family, index), after.value(family, index)) if value is not None]
    ok = theirs is None and not ours
    if theirs is not None and ours:
        ok = min(ours) - tolerance <= theirs <= max(ours) + tolerance
    return Result(index, family, " to ".join(f"{value:.6g}" for value in ours) or "absent", show(theirs), ok)


def show(value: float | None) -> str:
    return "N/A" if value is None else f"{value:.6g}"


def compare_processes(before: Endpoint, after: Endpoint, gpu: dict[str, str]) -> Iterator[Result]:
    rows = nvidia_smi("compute-apps", ("gpu_uuid", "pid", "used_memory"))
    memory = [number(row["used_memory"]) for row in rows if row["gpu_uuid"] == gpu["uuid"]]
    if memory and None not in memory:
        theirs = sum(value or 0 for value in memory) * MIB
        yield between(gpu["index"], "verl_gpu_process_memory_bytes", before, after, theirs, 64 * MIB)


def compare_energy(before: Endpoint, after: Endpoint, gpu: dict[str, str]) -> Iterator[Result]:
    """The energy counter grows by the power drawn, within a quarter."""
    index = gpu["index"]
    energy = [scrape.value("verl_gpu_energy_joules_total", index) for scrape in (before, after)]
    power = [scrape.value("verl_gpu_power_watts", index) for scrape in (before, after)]
    if None in energy or None in power:
        return
    watts = ((energy[1] or 0) - (energy[0] or 0)) / (after.at - before.at)
    low, high = min(value or 0 for value in power), max(value or 0 for value in power)
    ok = 0.75 * low - 30 <= watts <= 1.25 * high + 30
    yield Result(index, "verl_gpu_energy_joules_total", f"{watts:.6g} W", f"{low:.6g} to {high:.6g} W", ok)


def results(seconds: float) -> Iterator[Result]:
    agent = GpuAgent(AgentConfig(interval=0.1, address="127.0.0.1", only_visible=False))
    try:
        time.sleep(1)
        before = Endpoint(agent)
        gpus = nvidia_smi("gpu", IDENTITY + tuple(check.field for check in CHECKS))
        time.sleep(0.2)
        after = Endpoint(agent)
        for gpu in gpus:
            yield from compare(before, after, gpu)
            yield from compare_processes(before, after, gpu)
        time.sleep(seconds)
        later = Endpoint(agent)
        for gpu in gpus:
            yield from compare_energy(after, later, gpu)
    finally:
        agent.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seconds", type=float, default=5, help="over which energy is held against power (%(default)s)"
    )
    options = parser.parse_args()
    found = list(results(options.seconds))
    for one in found:
        print(
            f"{'ok ' if one.ok else 'OFF'} GPU {one.gpu:3} {one.family:40} ours {one.ours:28} nvidia-smi {one.theirs}"
        )
    off = sum(not one.ok for one in found)
    print(f"{len(found)} checks, {off} off")
    return 1 if off or not found else 0


if __name__ == "__main__":
    sys.exit(main())
