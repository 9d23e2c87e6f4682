"""How the GPUs of a run are watched: by agents on the nodes of its cluster, in the trainer's process, or not at all."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from prometheus_client.registry import Collector

from verl_prometheus.collectors.gpu import GpuCollector
from verl_prometheus.errors import ErrorLog
from verl_prometheus.gpu import local
from verl_prometheus.gpu.agent import AgentConfig
from verl_prometheus.protection import Protection
from verl_prometheus.settings import RemoteWriteSettings

if TYPE_CHECKING:
    from verl_prometheus.cluster import ClusterAgents, Targets
    from verl_prometheus.gpu.sampler import GpuSampler


class GpuWatch:
    """Decides at construction, works from `start` to `stop`.

    Args:
        enabled: True, False, or None for: if there are GPUs.
        backend: one of `gpu.BACKENDS`.
        interval: seconds between samples.
        cluster: whether agents may be started on the nodes of a Ray cluster; else only this node's GPUs are watched.
        labels: of every series that an agent serves.
        address: what the trainer listens on, "" for all.
        protection: of the agents' endpoints.
        remote_write: where agents push to, if anywhere.

    `collectors` are to be served by this process; empty where agents do it.
    """

    def __init__(
        self,
        enabled: bool | None,
        backend: str,
        interval: float,
        cluster: bool,
        labels: Mapping[str, str],
        address: str,
        protection: Protection,
        remote_write: RemoteWriteSettings,
        errors: ErrorLog,
    ) -> None:
        self.collectors: tuple[Collector, ...] = ()
        self._errors = errors
        self._config: AgentConfig | None = None
        self._agents: ClusterAgents | None = None
        self._sampler: GpuSampler | None = None
        if enabled is False:
            return
        if cluster and _in_ray_with_gpus():
            self._config = AgentConfig(
                backend, interval, labels, address, protection=protection, remote_write=remote_write
            )
        elif enabled or backend == "simulated" or local.has_driver():
            simulated = int(os.environ.get("LOCAL_WORLD_SIZE", 8))
            self._sampler = local.sampler(backend, interval, errors, simulated, only_visible=True)
            self.collectors = (GpuCollector(self._sampler.snapshot, platform.node()),)

    def start(self, on_targets: Callable[[Targets], object]) -> None:
        """`on_targets` is told all targets of agents, host:port -> node, in another thread, whenever they change."""
        if self._sampler:
            self._sampler.start()
        elif self._config:
            from verl_prometheus.cluster import ClusterAgents, named

            self._agents = ClusterAgents(self._config, lambda targets: on_targets(named(targets)), self._errors)

    def stop(self) -> None:
        if self._sampler:
            self._sampler.stop()
        if self._agents:
            self._agents.stop()


def _in_ray_with_gpus() -> bool:
    if "ray" not in sys.modules:
        return False
    from verl_prometheus import cluster

    return cluster.has_gpus()
