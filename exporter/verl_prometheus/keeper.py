"""Keeps what a run logs: in the journal, at the remote write receiver, and as the state of the next attempt."""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from prometheus_client.registry import Collector

from verl_prometheus.attempt import Attempt
from verl_prometheus.collectors.push import PushCollector
from verl_prometheus.delivery import Delivery
from verl_prometheus.errors import ErrorLog
from verl_prometheus.exposition import Exposition
from verl_prometheus.journal import Encoder, Position
from verl_prometheus.journal_file import JournalFile
from verl_prometheus.parse import AUTO
from verl_prometheus.push import JournalPush, LiveFrames
from verl_prometheus.recorder import Recorder
from verl_prometheus.remote_write import RemoteWriteClient
from verl_prometheus.replay import JOB
from verl_prometheus.resume import Lineage, RunFile
from verl_prometheus.run import Call, RunState
from verl_prometheus.settings import RemoteWriteSettings, Settings, SettingsError

JOURNAL = "journal.jsonl"
DISK_SECONDS = 10.0
logger = logging.getLogger("verl_prometheus")


class Keeper:
    """Keeps from construction to `close`. Raises `SettingsError` for a journal or a receiver that cannot be used.

    Without a journal, one in a temporary folder serves push as its queue, and goes with the process.

    Args:
        attempt, run: what is tracked.
        lineage, run_file: what the next attempt will need.
        folder: for the journal, unless the settings name another place; None: there is none.
    """

    def __init__(
        self,
        attempt: Attempt,
        run: RunState,
        lineage: Lineage,
        run_file: RunFile,
        settings: Settings,
        folder: Path | None,
        errors: ErrorLog,
    ) -> None:
        self._errors = errors
        self._url = settings.remote_write.url
        self._spool: tempfile.TemporaryDirectory[str] | None = None
        self._push: JournalPush | None = None
        self._delivery = Delivery(_client(settings.remote_write), errors) if self._url else None
        self._encoder = Encoder(attempt.identity)
        self._file = _journal_file(settings.journal, folder, lineage.run_id, errors)
        if self._file is None and self._delivery is not None:
            self._spool = tempfile.TemporaryDirectory(prefix="verl-prometheus-")
            self._file = JournalFile(Path(self._spool.name, JOURNAL))
        self._begin = Position(0, 0)
        if self._file is not None:
            self._begin = self._file.position
            try:
                self._file.append(self._encoder.attempt(attempt, attempt.identity.started))
            except OSError as error:
                errors.add("journal", error)  # the line is kept, and written before the first step

        def continuation() -> bytes:
            return self._encoder.attempt(replace(attempt, history=run.history()), time.time())

        def save() -> None:
            run_file.save(replace(lineage, history=run.history()))

        self._recorder = Recorder(attempt.identity, self._file, continuation, save, errors)

    @property
    def journal(self) -> Path | None:
        """The journal that outlives the process."""
        return None if self._file is None or self._spool else self._file.path

    @property
    def collectors(self) -> list[Collector]:
        """About the push, if there is one."""
        return [PushCollector(self._delivery.samples)] if self._delivery else []

    def start_push(self, live: Exposition) -> None:
        """Begin to push, if there is a receiver: the journal, and `live` besides."""
        if self._delivery is not None and self._file is not None:
            frames = LiveFrames(live, {"job": JOB})
            self._push = JournalPush(self._file.path, self._begin, self._url, self._delivery, frames, self._errors)

    def add(self, call: Call) -> None:
        """Keep a call of `log`; takes a microsecond or two."""
        self._recorder.add(call)

    def close(self, exit_code: int, seconds: float) -> None:
        """Keep the end; wait at most `seconds` for the receiver, and a little for a slow disk in any case."""
        end = time.monotonic() + seconds
        self._recorder.close(exit_code, max(seconds, DISK_SECONDS))
        if self._push is not None and not sys.is_finalizing():
            self._push.close(max(end - time.monotonic(), 0.0))
        if self._spool is not None:
            self._spool.cleanup()


def _client(settings: RemoteWriteSettings) -> RemoteWriteClient:
    try:
        return RemoteWriteClient(settings)
    except ImportError as error:
        raise SettingsError(
            f"trainer.prometheus.remote_write.url needs a library that is missing ({error}): "
            "pip install 'verl-prometheus[remote-write]'."
        ) from error
    except OSError as error:
        raise SettingsError(f"trainer.prometheus.remote_write: the TLS files cannot be used: {error}.") from error


def _journal_file(setting: str, folder: Path | None, run_id: str, errors: ErrorLog) -> JournalFile | None:
    """The journal, opened; None if there shall be none, or there is no place for one."""
    if not setting or (setting == AUTO and folder is None):
        return None
    path = folder / JOURNAL if setting == AUTO and folder else Path(setting).absolute()
    if path.is_dir():
        path = path / JOURNAL
    try:
        try:
            return JournalFile(path)
        except BlockingIOError:
            other = path.with_name(f"{path.stem}-{run_id[:8]}{path.suffix}")
            logger.warning("verl-prometheus: another run writes %s: this one takes %s", path, other)
            return JournalFile(other)
    except OSError as error:
        if setting != AUTO:
            raise SettingsError(
                f"trainer.prometheus.journal is {setting!r}: it cannot be written: {error}. Name a file in a folder "
                "that can be written, or set trainer.prometheus.journal=false."
            ) from error
        logger.warning("verl-prometheus: no journal, %s cannot be written: %s", path, error)
        return None
