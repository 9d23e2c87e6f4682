"""One node's GPUs as a Prometheus target: sampler, collectors and endpoint."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client import ProcessCollector

from verl_prometheus.collectors.agent import AgentCollector
from verl_prometheus.collectors.gpu import GpuCollector
from verl_prometheus.errors import ErrorLog
from verl_prometheus.exposition import Exposition
from verl_prometheus.gpu import local, page
from verl_prometheus.network import announced_address, host_and_port
from verl_prometheus.protection import Protection
from verl_prometheus.server import MetricsServer


@dataclass(frozen=True)
class AgentConfig:
    """How a node's GPUs are read and served; travels to the node.

    `labels` are on every series. `address` is what to listen on; one that stands for all announces the node's own.
    `simulated` is the number of GPUs that backend "simulated" makes up; `only_visible` leaves out those that
    CUDA_VISIBLE_DEVICES excludes.
    """

    backend: str = "nvml"
    interval: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    port: int = 0
    simulated: int = 8
    only_visible: bool = True
    protection: Protection = field(default_factory=Protection)


class GpuAgent:
    """Samples and serves from construction to `close`. Raises OSError if it cannot listen."""

    def __init__(self, config: AgentConfig) -> None:
        errors = ErrorLog()
        node = platform.node()
        self._sampler = local.sampler(config.backend, config.interval, errors, config.simulated, config.only_visible)
        collectors = (
            GpuCollector(self._sampler.snapshot, node),
            AgentCollector(errors),
            ProcessCollector(registry=None),
        )
        self._server = MetricsServer(
            Exposition(collectors, config.labels, errors),
            lambda: page.render(node, self._sampler.snapshot()),
            errors,
            config.address,
            config.port,
            protection=config.protection,
        )
        self.target = host_and_port(announced_address(config.address), self._server.port)
        self._sampler.start()

    def close(self) -> None:
        self._server.close()
        self._sampler.stop()
