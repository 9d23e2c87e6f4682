"""Real verl runs, watched while they train."""

from __future__ import annotations

import http.client
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from helpers.fixtures import calls
from helpers.prometheus import free_port
from helpers.scrape import Scrape
from verl_prometheus.demo import training
from verl_prometheus.demo.training import Kind

Seconds = float


class Poll(NamedTuple):
    """`starts`: active phase -> since when, as the endpoint said between `before` and `after` (Unix seconds)."""

    before: float
    after: float
    starts: dict[str, float]


class RealRun:
    """A run of the tiny model with `logger=[console,file,prometheus]`, and what polling its endpoint saw.

    `polls` holds what each poll saw of the phases, `url` is the endpoint.
    """

    def __init__(
        self,
        kind: Kind,
        folder: Path,
        steps: int,
        overrides: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.targets = folder / "targets"
        self._file = folder / "file.jsonl"
        self.log = folder / "console.log"
        self.polls: list[Poll] = []
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        ours = (f"port={port}", f"targets_dir={self.targets}", "address=127.0.0.1", "linger_seconds=20")
        command = training.command(
            kind,
            training_folder(),
            steps=steps,
            logger=["console", "file", "prometheus"],
            experiment=folder.name,
            overrides=[*(f"+trainer.prometheus.{setting}" for setting in ours), *overrides],
        )
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                env={
                    **training.environment(training_folder()),
                    "VERL_FILE_LOGGER_PATH": str(self._file),
                    **(environment or {}),
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def watch(self, pause: Seconds = 0.02, limit: Seconds = 300) -> int:
        """Poll the endpoint until the run ends; its exit status."""
        poller = threading.Thread(target=self._poll, args=(pause,))
        poller.start()
        try:
            return self.process.wait(limit)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, 9)
            poller.join()

    def logged(self) -> list[tuple[int, dict[str, float]]]:
        """What verl's `file` logger of the same run wrote."""
        return calls(self._file)

    def output(self) -> str:
        """The end of what the run printed, for messages of failed assertions."""
        return self.log.read_text()[-4000:]

    def _poll(self, pause: Seconds) -> None:
        while self.process.poll() is None:
            before = time.time()
            try:
                scrape = Scrape(self.url)
            except (OSError, http.client.HTTPException):
                time.sleep(pause)
                continue
            starts = {
                one.labels["phase"]: one.value
                for one in scrape.samples
                if one.name == "verl_phase_start_timestamp_seconds"
            }
            active = {labels["phase"] for labels in scrape.label_sets("verl_phase_active")}
            assert active == set(starts)
            self.polls.append(Poll(before, time.time(), starts))
            time.sleep(pause)


def training_folder() -> Path:
    """Where the tiny model and its data are, made once for all runs."""
    folder = Path(os.environ.get("TRAINING_FOLDER", "/tmp/verl-prometheus-tests"))
    training.prepare(folder)
    return folder
