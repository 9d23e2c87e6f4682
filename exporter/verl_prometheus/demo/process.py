"""One training process with everything it starts: Ray's daemons and workers, torchrun's children."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

GRACE_SECONDS = 10.0  # to end by itself: verl tells its loggers, Ray ends its processes


class TrainingProcess:
    """A command with all it starts, to be ended together; use it as a context manager.

    Args:
        command, environment: see `verl_prometheus.demo.training`.
        log: file that takes its output.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._ray_folder = Path(environment["RAY_TMPDIR"], "ray")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # started by a script in the background, this process ignores it, and its children would
                preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
            )

    @property
    def pid(self) -> int:
        """Of the launcher; also the id of the session."""
        return self._process.pid

    def exit_status(self) -> int | None:
        """As a shell gives it, None while the launcher runs."""
        status = self._process.poll()
        return status if status is None or status >= 0 else 128 - status

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, when the launcher has ended. Raises subprocess.TimeoutExpired."""
        self._process.wait(timeout)
        status = self.exit_status()
        assert status is not None
        return status

    def stop(self) -> None:
        """Interrupt the training, give it a moment to end, then kill what is left of it."""
        sessions = {self.pid}
        if self._process.poll() is None:
            sessions |= _sessions_below(self.pid)
            self._process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_SECONDS)
        while left := [pid for pid, kin in _processes().items() if kin.session in sessions]:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        self._process.wait()
        self._remove_ray_session()

    def _remove_ray_session(self) -> None:
        for session in self._ray_folder.glob(f"session_*_{self.pid}"):
            shutil.rmtree(session, ignore_errors=True)
        latest = self._ray_folder / "session_latest"
        if latest.is_symlink() and not latest.exists():
            latest.unlink(missing_ok=True)
        for folder in (self._ray_folder, self._ray_folder.parent):
            with suppress(OSError):  # another run is in there
                folder.rmdir()

    def __enter__(self) -> TrainingProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _Kin(NamedTuple):
    parent: int
    session: int


def _processes() -> dict[int, _Kin]:
    """All living processes, by pid."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it has just ended
            continue
        if state not in "ZX":
            found[int(entry.name)] = _Kin(int(parent), int(session))
    return found


def _sessions_below(root: int) -> set[int]:
    """The sessions of a process's descendants: torchrun gives each of its workers one."""
    processes = _processes()
    family = {root}
    while born := {pid for pid, kin in processes.items() if kin.parent in family} - family:
        family |= born
    return {processes[pid].session for pid in family - {root}}
