"""The GPUs of a replayed run as Prometheus would have seen them, recorded or simulated."""

from __future__ import annotations

from collections.abc import Mapping

from verl_prometheus.collectors.gpu import GpuCollector
from verl_prometheus.errors import ErrorLog
from verl_prometheus.gpu.recorded import RecordedGpus, Sample
from verl_prometheus.gpu.sampler import GpuSampler
from verl_prometheus.gpu.simulated import SimulatedGpus
from verl_prometheus.virtual_scrapes import Scrape, VirtualRun

SIMULATED = "simulated"


class VirtualGpus:
    """One agent a node, there as long as the run is.

    `gpus`: how many to simulate, or the samples of each node, timed like the run's own log.
    """

    def __init__(self, gpus: int | Mapping[str, list[Sample]], run: VirtualRun) -> None:
        self._run = run
        self._now = 0.0
        readers: dict[str, SimulatedGpus | RecordedGpus] = {}
        if isinstance(gpus, Mapping):
            for node, samples in gpus.items():
                readers[node] = RecordedGpus(samples, lambda: self._now - run.shift)
        elif gpus:
            readers[SIMULATED] = SimulatedGpus(gpus, lambda: self._now)
        errors = ErrorLog()
        self._samplers = {node: GpuSampler(reader, reader.classify, errors) for node, reader in readers.items()}

    def scrape(self, now: float) -> Scrape:
        """What is stored for this time, after the run's own scrape at it."""
        self._now = now
        found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        if self._run.is_up:
            for node, sampler in self._samplers.items():
                sampler.sample()
                found.update(self._run.target(f"{node}:9401", GpuCollector(sampler.snapshot, node).collect(), node))
        return found
