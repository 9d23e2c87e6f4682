"""The logger backend that verl's Tracking holds: one run, from its first log to its end."""

from __future__ import annotations

import atexit
import importlib.metadata
import json
import logging
import os
import platform
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from prometheus_client import ProcessCollector
from prometheus_client.registry import Collector

from verl_prometheus import __version__, hyperparameters, page, resume
from verl_prometheus.attempt import Attempt
from verl_prometheus.catalog import printable
from verl_prometheus.collectors.active_phases import ActivePhaseCollector
from verl_prometheus.collectors.exporter import ExporterCollector
from verl_prometheus.collectors.snapshot import SnapshotCollector
from verl_prometheus.discovery import TargetGroup, TargetsFile
from verl_prometheus.distribution import Distribution
from verl_prometheus.errors import ErrorLog
from verl_prometheus.exposition import Exposition
from verl_prometheus.gpu.watch import GpuWatch
from verl_prometheus.keeper import Keeper
from verl_prometheus.network import announced_address, host_and_port
from verl_prometheus.phases import TRACKER
from verl_prometheus.protection import Protection
from verl_prometheus.run import RunIdentity, RunState
from verl_prometheus.samples import SAMPLES
from verl_prometheus.server import MetricsServer
from verl_prometheus.settings import Settings, SettingsError
from verl_prometheus.signals import Lengths

logger = logging.getLogger("verl_prometheus")
LOG_DURATION_BUCKETS = (
    *(float(f"{digits}e{power}") for power in range(-6, -1) for digits in (1, 2.5, 5)),
    0.1,
)  # seconds


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
        self._log_duration = Distribution(LOG_DURATION_BUCKETS)
        folder = resume.folder(config)
        run_file = resume.RunFile(folder)
        lineage = run_file.begin(resume.resumes(config), self._errors)
        self._identity = RunIdentity(
            project=printable(str(project)),
            experiment=printable(str(experiment)),
            run_id=lineage.run_id,
            started=time.time(),
            step_target=step_target or hyperparameters.step_target(config),
            facts={
                "attempt": str(lineage.attempt),
                "verl_version": _version("verl"),
                "exporter_version": __version__,
                "trainer": trainer,
                "algorithm": hyperparameters.algorithm(config),
                "model": hyperparameters.model(config),
                "node": platform.node(),
            },
            config=hyperparameters.compared(config),
        )
        self._attempt = Attempt(
            identity=self._identity,
            labels=settings.labels,
            thresholds=settings.thresholds,
            lengths=Lengths(settings.window, settings.baseline_steps, settings.warmup_steps),
            response_limit=hyperparameters.response_limit(config),
            max_series=settings.max_series,
            history=lineage.history,
        )
        self._labels = self._attempt.series_labels
        self._run = self._run_state()
        SAMPLES.wanted = True
        self._pid = os.getpid()
        self._finished = False
        self._protection = Protection(
            settings.tls.cert_file,
            settings.tls.key_file,
            settings.basic_auth.username,
            settings.basic_auth.password_file,
        )
        self._gpus = self._watch_gpus()
        self._keeper = Keeper(self._attempt, self._run, lineage, run_file, settings, folder, self._errors)
        self._server = self._serve()
        self._target = host_and_port(announced_address(settings.address), self._server.port)
        self.url = f"{self._protection.scheme}://{self._target}"
        self._targets_file = TargetsFile(settings.targets_dir, platform.node(), self._identity.run_id)
        self._groups: list[TargetGroup] = []
        self._announce({})
        self._try("gpu", lambda: self._gpus.start(self._announce))
        atexit.register(self._at_exit)
        if TRACKER.missing:
            logger.warning("verl-prometheus: verl_phase_active stays empty: %s", TRACKER.missing)
        where = f", announced in {self._targets_file.path}" if settings.targets_dir else ""
        where += f", every step kept in {self._keeper.journal}" if self._keeper.journal else ""
        print(f"verl-prometheus: serving {self.url}/metrics{where}", flush=True)

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """One call of the trainer. Takes microseconds, whatever comes."""
        began = time.perf_counter()
        try:
            self._keeper.add(self._run.log(data, step, SAMPLES.take()))
            if SAMPLES.error is not None:
                error, SAMPLES.error = SAMPLES.error, None
                self._errors.add("samples", error)
        except Exception as error:
            self._errors.add("log", error)
        self._log_duration.observe(time.perf_counter() - began)

    def finish(self, exit_code: int = 0) -> None:
        """Show the end, let it be pushed and scraped (see `linger_seconds`), withdraw the target, free the port."""
        if self._finished or os.getpid() != self._pid:
            return
        self._finished = True
        atexit.unregister(self._at_exit)
        end = time.monotonic() + self.settings.linger_seconds
        self._run.finish(exit_code)
        self._try("journal", lambda: self._keeper.close(exit_code, self.settings.linger_seconds))
        if not sys.is_finalizing():
            self._try("finish", lambda: self._server.wait_for_scrapers(max(end - time.monotonic(), 0.0)))
        self._try("gpu", self._gpus.stop)
        self._try("discovery", self._targets_file.remove)
        if not sys.is_finalizing():  # threads no longer run then, and the process is about to end anyway
            self._try("server", self._server.close)

    def _at_exit(self) -> None:
        """The interpreter ends and nobody called finish: failed if an exception is what ends it."""
        self.finish(exit_code=int(getattr(sys, "last_value", None) is not None))

    def _run_state(self) -> RunState:
        try:
            return self._attempt.run_state()
        except ValueError as error:
            self._errors.add("resume", error, "the signals start anew")
            return replace(self._attempt, history=None).run_state()

    def _serve(self) -> MetricsServer:
        exporter = ExporterCollector(self._log_duration.copy, self._errors)
        step = SnapshotCollector(self._run, [*self._attempt.parts(), exporter], self._errors)
        process: list[Collector] = [
            ActivePhaseCollector(TRACKER),
            ProcessCollector(registry=None),
            *self._keeper.collectors,
            *self._gpus.collectors,
        ]
        try:
            server = MetricsServer(
                Exposition([step, *process], self._labels, self._errors),
                lambda: page.render(self._identity, self._run.snapshot, TRACKER.read()),
                self._errors,
                self.settings.address,
                self.settings.port,
                lambda: json.dumps(self._groups),
                self._protection,
            )
        except OSError as error:
            self._keeper.close(exit_code=1, seconds=1)
            if isinstance(error, ssl.SSLError):
                raise SettingsError(
                    f"trainer.prometheus.tls.cert_file {self.settings.tls.cert_file!r} and tls.key_file "
                    f"{self.settings.tls.key_file!r} are no certificate and its key in PEM: {error}."
                ) from error
            raise SettingsError(
                f"trainer.prometheus.address {self.settings.address!r} and port {self.settings.port} cannot be served: "
                f"{error}. Name an address of this machine (or none, for all) and a port that is free (0: any)."
            ) from error
        self._keeper.start_push(
            Exposition([SnapshotCollector(self._run, [exporter], self._errors), *process], self._labels, self._errors)
        )
        return server

    def _watch_gpus(self) -> GpuWatch:
        settings = self.settings.gpu
        return GpuWatch(
            {"true": True, "false": False}.get(settings.enabled),
            settings.backend,
            settings.interval,
            self.settings.cluster != "off",
            self._labels,
            self.settings.address,
            self._protection,
            self.settings.remote_write,
            self._errors,
        )

    def _announce(self, agents: Mapping[str, str]) -> None:
        """Write the discovery file: this process and the GPU agents (host:port -> node)."""
        if self._finished:
            return
        labels = {
            "__scheme__": self._protection.scheme,
            "__meta_verl_project": self._identity.project,
            "__meta_verl_experiment": self._identity.experiment,
            "__meta_verl_run_id": self._identity.run_id,
        }
        self._groups = [TargetGroup(targets=[self._target], labels=labels)]
        for agent, node in agents.items():
            self._groups.append(TargetGroup(targets=[agent], labels={**labels, "__meta_verl_node": node}))
        if self.settings.targets_dir:
            try:
                self._targets_file.write(self._groups)
                self._targets_file.remove_remains()
            except OSError as error:
                remedy = "set trainer.prometheus.targets_dir to a folder that can be written"
                self._errors.add("discovery", error, remedy)

    def _try(self, component: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            self._errors.add(component, error)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
