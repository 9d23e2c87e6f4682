"""One node's GPUs as a Prometheus target: sampler, collectors and endpoint."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import ProcessCollector

from verl_prometheus.collectors.agent import AgentCollector
from verl_prometheus.collectors.gpu import GpuCollector
from verl_prometheus.errors import ErrorLog
from verl_prometheus.exposition import Exposition
from verl_prometheus.gpu import local, page
from verl_prometheus.network import announced_address, host_and_port
from verl_prometheus.protection import Protection
from verl_prometheus.server import MetricsServer
from verl_prometheus.settings import RemoteWriteSettings

if TYPE_CHECKING:
    from verl_prometheus.push import LivePush


@dataclass(frozen=True)
class AgentConfig:
    """How a node's GPUs are read and served; travels to the node.

    `labels` are on every series. `address` is what to listen on; one that stands for all announces the node's own.
    `simulated` is the number of GPUs that backend "simulated" makes up; `only_visible` leaves out those that
    CUDA_VISIBLE_DEVICES excludes. The files that `remote_write` names must be on every node.
    """

    backend: str = "nvml"
    interval: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    port: int = 0
    simulated: int = 8
    only_visible: bool = True
    protection: Protection = field(default_factory=Protection)
    remote_write: RemoteWriteSettings = field(default_factory=RemoteWriteSettings)


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
        exposition = Exposition(collectors, config.labels, errors)
        self._server = MetricsServer(
            exposition,
            lambda: page.render(node, self._sampler.snapshot()),
            errors,
            config.address,
            config.port,
            protection=config.protection,
        )
        self.target = host_and_port(announced_address(config.address), self._server.port)
        self._sampler.start()
        self._push = _push(exposition, config.remote_write, self.target, errors) if config.remote_write.url else None

    def close(self) -> None:
        self._server.close()
        if self._push:
            self._push.close()
        self._sampler.stop()


def _push(exposition: Exposition, settings: RemoteWriteSettings, target: str, errors: ErrorLog) -> LivePush | None:
    """Push besides; a node that lacks a file or a library for it is only scraped."""
    try:
        from verl_prometheus.delivery import Delivery
        from verl_prometheus.push import LiveFrames, LivePush
        from verl_prometheus.remote_write import RemoteWriteClient
        from verl_prometheus.replay import JOB

        frames = LiveFrames(exposition, {"job": JOB, "instance": target})
        return LivePush(frames, Delivery(RemoteWriteClient(settings), errors), errors)
    except (ImportError, OSError) as error:
        errors.add("remote_write", error, "this node's GPUs are not pushed")
        return None
