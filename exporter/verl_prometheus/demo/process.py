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

GRACE_SECONDS = 10.0  # to end by itself: verl tells its loggers, Ray ends its processes


class TrainingProcess:
    """A command in a session of its own, so that all it starts can be found and ended; use it as a context manager.

    Args:
        command, environment: see `verl_prometheus.demo.training`.
        log: file that takes its output.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
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
        """Interrupt the training, give it a moment to end, then kill what is left of its session."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_SECONDS)
        while left := _session(self.pid):
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


def _session(session: int) -> list[int]:
    """The living processes of a session; those that died are somebody else's to bury."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, _, _, its_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it has just ended
            continue
        if int(its_session) == session and state not in "ZX":
            members.append(int(entry.name))
    return members
