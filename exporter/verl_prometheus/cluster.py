"""Ray: one GPU agent per GPU node of the cluster, for as long as the job lives.

The trainer holds a supervisor, an actor on its own node; the supervisor holds the agents. Ray ends an actor when its owner
ends, so nothing outlives the job, however that ends. The trainer itself only waits for the supervisor to say that targets
have changed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from verl_prometheus.errors import ErrorLog
from verl_prometheus.gpu.agent import AgentConfig, GpuAgent
from verl_prometheus.network import ALL_ADDRESSES, node_address

REFRESH_SECONDS = 10.0  # how soon a node that joins is noticed
GATHER_SECONDS = 0.5  # agents that start or die together change the targets once
LONGEST_RETRY_SECONDS = 300.0
LOOPBACK_ADDRESSES = ("localhost", "127.0.0.1", "::1")
Targets = dict[str, str]  # host:port -> Ray's id of the node
logger = logging.getLogger("verl_prometheus")


def has_gpus() -> bool:
    """Whether this process belongs to a Ray cluster that has GPUs."""
    return bool(ray.is_initialized() and ray.cluster_resources().get("GPU", 0) > 0)


def named(targets: Targets) -> Targets:
    """The targets with the nodes' host names, which people know, for Ray's ids."""
    names = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes()} if targets else {}
    return {target: names.get(node, node) for target, node in targets.items()}


class ClusterAgents:
    """Keeps the agents going until `stop`; tells `on_targets`, in a thread of its own, all targets when they change."""

    def __init__(self, config: AgentConfig, on_targets: Callable[[Targets], object], errors: ErrorLog) -> None:
        self._config = config
        self._on_targets = on_targets
        self._errors = errors
        self._supervisor: Any = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="verl-prometheus-cluster", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the agents and withdraw their targets."""
        self._stopping.set()
        if self._supervisor is not None:
            try:
                ray.kill(self._supervisor)
            except Exception as error:  # Ray may have ended before us
                logger.debug("ending the GPU agents: %r", error)
        self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            here = ray.get_runtime_context().get_node_id()
            self._supervisor = _actor(GpuSupervisor, here, max_restarts=-1).remote(self._config)
            self._follow()
            self._on_targets({})
        except Exception as error:
            self._errors.add("cluster", error)

    def _follow(self) -> None:
        targets: Targets = {}
        while not self._stopping.is_set() and ray.is_initialized():
            try:
                targets = ray.get(self._supervisor.next_targets.remote(targets))
                self._on_targets(targets)
            except Exception as error:
                if not self._stopping.is_set():
                    self._errors.add("cluster", error)
                    self._stopping.wait(REFRESH_SECONDS)


@dataclass
class _Agent:
    """A GPU node's agent: starting (no target yet), running, or waiting for its next try."""

    node: str
    gpus: int
    actor: Any = None
    pending: Any = None  # ref to its target while it starts, then to a call that ends only with the actor
    target: str = ""
    started_at: float = 0.0
    retry_at: float = 0.0
    retry_seconds: float = 1.0


class GpuSupervisor:
    """Starts agents on GPU nodes, starts them anew when they die, forgets nodes that are gone."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._agents: dict[str, _Agent] = {}
        self._refresh_at = 0.0

    def next_targets(self, known: Targets) -> Targets:
        """The targets, as soon as they are others than `known`."""
        while (targets := {agent.target: agent.node for agent in self._agents.values() if agent.target}) == known:
            self._supervise()
        return targets

    def _supervise(self) -> None:
        """One round; returns when something happened, or when something is to be tried."""
        now = time.monotonic()
        if now >= self._refresh_at:
            self._refresh_at = now + REFRESH_SECONDS
            self._match_nodes()
        for agent in self._agents.values():
            if agent.pending is None and now >= agent.retry_at:
                self._start(agent)
        due = min([self._refresh_at, *(agent.retry_at for agent in self._agents.values() if agent.pending is None)])
        pending = {agent.pending: agent for agent in self._agents.values() if agent.pending is not None}
        if not pending:
            time.sleep(max(0.0, due - now))
            return
        ready, _ = ray.wait(list(pending), timeout=max(0.0, due - now), fetch_local=False)
        if ready:
            ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=GATHER_SECONDS, fetch_local=False)
        for ref in ready:
            self._advance(pending[ref])

    def _match_nodes(self) -> None:
        gpus = {node["NodeID"]: int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]}
        self._agents = {node: agent for node, agent in self._agents.items() if gpus.get(node)}
        for node, count in gpus.items():
            if count and node not in self._agents:
                self._agents[node] = _Agent(node, count)

    def _start(self, agent: _Agent) -> None:
        agent.actor = _actor(NodeGpuAgent, agent.node).remote(replace(self._config, simulated=agent.gpus))
        agent.pending = agent.actor.target.remote()
        agent.started_at = time.monotonic()

    def _advance(self, agent: _Agent) -> None:
        """The agent has told its target, or it has died."""
        try:
            agent.target = ray.get(agent.pending)
            agent.pending = agent.actor.run.remote()
        except Exception as error:
            now = time.monotonic()
            if now - agent.started_at > LONGEST_RETRY_SECONDS:
                agent.retry_seconds = 1.0
            logger.warning("GPU agent of node %s died, next try in %g s: %s", agent.node, agent.retry_seconds, error)
            agent.actor, agent.pending, agent.target = None, None, ""
            agent.retry_at = now + agent.retry_seconds
            agent.retry_seconds = min(2 * agent.retry_seconds, LONGEST_RETRY_SECONDS)


class NodeGpuAgent:
    """The actor on a GPU node. It listens on all addresses if the trainer does, else on the one Ray knows its node by."""

    def __init__(self, config: AgentConfig) -> None:
        same = config.address in (*ALL_ADDRESSES, *LOOPBACK_ADDRESSES)
        self._agent = GpuAgent(config if same else replace(config, address=node_address()))

    def target(self) -> str:
        return self._agent.target

    def run(self) -> None:
        """Never returns: its caller learns of the actor's end."""
        threading.Event().wait()


def _actor(cls: type, node: str, **options: Any) -> Any:
    """An actor class for that node alone, which takes no CPU from anybody."""
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(cls).options(num_cpus=0, scheduling_strategy=strategy, **options)
