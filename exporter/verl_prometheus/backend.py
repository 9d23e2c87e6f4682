"""The logger backend that verl's Tracking holds: one run, from its first log to its end."""

from __future__ import annotations

import atexit
import importlib.metadata
import logging
import os
import platform
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector

from verl_prometheus import __version__, catalog, hyperparameters, page
from verl_prometheus.catalog import printable
from verl_prometheus.collectors.exporter import ExporterCollector
from verl_prometheus.collectors.phases import PhaseCollector
from verl_prometheus.collectors.run import RunCollector
from verl_prometheus.collectors.signals import SignalCollector
from verl_prometheus.collectors.snapshot import SnapshotCollector
from verl_prometheus.collectors.training import TrainingCollector
from verl_prometheus.discovery import TargetsFile
from verl_prometheus.distribution import Distribution
from verl_prometheus.errors import ErrorLog
from verl_prometheus.exposition import Exposition
from verl_prometheus.network import host_and_port, node_address
from verl_prometheus.phases import TRACKER
from verl_prometheus.run import RunIdentity, RunState
from verl_prometheus.server import MetricsServer
from verl_prometheus.settings import Settings, SettingsError
from verl_prometheus.signals import Lengths, Signals

logger = logging.getLogger("verl_prometheus")
LOG_DURATION_BUCKETS = (
    1e-6,
    2.5e-6,
    5e-6,
    1e-5,
    2.5e-5,
    5e-5,
    1e-4,
    2.5e-4,
    5e-4,
    1e-3,
    2.5e-3,
    5e-3,
    1e-2,
    2.5e-2,
    5e-2,
    1e-1,
)


class PrometheusBackend:
    """What `trainer.logger=[prometheus]` adds to a verl run: `log` and `finish`, as verl's other backends have them.

    Serves from construction to `finish`. `log` never raises and does no I/O. `finish` acts once, whoever calls it first:
    verl, garbage collection or the end of the process.

    Args:
        project, experiment: verl's names of the run; the labels of every series.
        settings: how to serve.
        config: verl's config as nested mappings, or None.
        trainer: name of the trainer's class, "" if unknown.
        step_target: step at which training ends, None if unknown.

    Raises `SettingsError` for an address or port that cannot be served.
    """

    def __init__(
        self,
        project: str,
        experiment: str,
        settings: Settings,
        config: Mapping[str, Any] | None = None,
        trainer: str = "",
        step_target: int | None = None,
    ) -> None:
        self.settings = settings
        self._errors = ErrorLog()
        lengths = Lengths(settings.window, settings.baseline_steps, settings.warmup_steps)
        signals = Signals(lengths, hyperparameters.response_limit(config))
        self._run = RunState(catalog.load(), signals, settings.max_series)
        self._log_duration = Distribution(LOG_DURATION_BUCKETS)
        self._identity = RunIdentity(
            project=printable(str(project)),
            experiment=printable(str(experiment)),
            run_id=uuid.uuid4().hex,
            started=time.time(),
            step_target=step_target or hyperparameters.step_target(config),
            facts={
                "attempt": "1",
                "verl_version": _version("verl"),
                "exporter_version": __version__,
                "trainer": trainer,
                "algorithm": hyperparameters.algorithm(config),
                "model": hyperparameters.model(config),
                "node": platform.node(),
            },
            config=hyperparameters.compared(config),
        )
        self._pid = os.getpid()
        self._finished = False
        self._server = self._serve()
        host = self.settings.address or node_address()
        self.url = f"http://{host_and_port(host, self._server.port)}"
        self._targets = self._announce(host_and_port(host, self._server.port))
        atexit.register(self._at_exit)
        if TRACKER.missing:
            logger.warning("verl-prometheus: verl_phase_active stays empty: %s", TRACKER.missing)
        where = f", announced in {self._targets.path}" if self._targets else ""
        print(f"verl-prometheus: serving {self.url}/metrics{where}", flush=True)

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """One call of the trainer. Takes microseconds, whatever comes."""
        began = time.perf_counter()
        try:
            self._run.log(data, step)
        except Exception as error:
            self._errors.add("log", error)
        self._log_duration.observe(time.perf_counter() - began)

    def finish(self, exit_code: int = 0) -> None:
        """Show the end, let it be scraped once (see `linger_seconds`), withdraw the target, free the port."""
        if self._finished or os.getpid() != self._pid:
            return
        self._finished = True
        atexit.unregister(self._at_exit)
        self._run.finish(exit_code)
        self._attempt("finish", self._linger)
        if self._targets:
            self._attempt("discovery", self._targets.remove)
        if not sys.is_finalizing():  # threads no longer run then, and the process is about to end anyway
            self._attempt("server", self._server.close)

    def _at_exit(self) -> None:
        """The interpreter ends and nobody called finish: failed if an exception is what ends it."""
        self.finish(exit_code=int(getattr(sys, "last_value", None) is not None))

    def _linger(self) -> None:
        if not sys.is_finalizing():
            self._server.wait_for_scrapers(self.settings.linger_seconds)

    def _serve(self) -> MetricsServer:
        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        parts = (
            RunCollector(self._identity),
            TrainingCollector(catalog.load()),
            PhaseCollector(TRACKER),
            SignalCollector(self.settings.thresholds),
            ExporterCollector(self._log_duration.copy, self._errors),
        )
        registry.register(SnapshotCollector(self._run, parts, self._errors))
        labels = {"project": self._identity.project, "experiment": self._identity.experiment, **self.settings.labels}
        try:
            return MetricsServer(
                Exposition([registry], labels, self._errors),
                lambda: page.render(self._identity, self._run.snapshot, TRACKER.read()),
                self._errors,
                self.settings.address,
                self.settings.port,
            )
        except OSError as error:
            raise SettingsError(
                f"trainer.prometheus.address {self.settings.address!r} and port {self.settings.port} cannot be served: "
                f"{error}. Name an address of this machine (or none, for all) and a port that is free (0: any)."
            ) from error

    def _announce(self, target: str) -> TargetsFile | None:
        if not self.settings.targets_dir:
            return None
        targets = TargetsFile(self.settings.targets_dir, platform.node(), self._identity.run_id)
        labels = {
            "__meta_verl_project": self._identity.project,
            "__meta_verl_experiment": self._identity.experiment,
            "__meta_verl_run_id": self._identity.run_id,
        }
        try:
            targets.write([{"targets": [target], "labels": labels}])
            targets.remove_remains()
        except OSError as error:
            self._errors.add("discovery", error, "set trainer.prometheus.targets_dir to a folder that can be written")
            return None
        return targets

    def _attempt(self, component: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            self._errors.add(component, error)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
