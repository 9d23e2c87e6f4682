"""Targets announced to Prometheus in file_sd files: written whole or not at all, removed at the end."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

SUFFIX = ".json"


class TargetGroup(TypedDict):
    """One entry of a file_sd file. Labels that begin with __meta_ are for relabelling and vanish after it."""

    targets: list[str]
    labels: dict[str, str]


class TargetsFile:
    """One discovery file of one process, named after its node and pid, so that its remains can be told and removed."""

    def __init__(self, folder: str | Path, node: str, name: str) -> None:
        self._folder = Path(folder)
        self._node = node
        self.path = self._folder / f"{_plain(node)}.{os.getpid()}.{_plain(name)}{SUFFIX}"

    def write(self, groups: Sequence[TargetGroup]) -> None:
        """Replace the file at once. Raises OSError."""
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True)
            self._folder.chmod(0o1777)  # shared by the users of a machine, as /tmp is
        descriptor, temporary = tempfile.mkstemp(prefix=".", dir=self._folder)
        try:
            with os.fdopen(descriptor, "w") as stream:
                json.dump(groups, stream, indent=1)
            os.chmod(temporary, 0o644)
            os.replace(temporary, self.path)
        except BaseException:
            os.unlink(temporary)
            raise

    def remove(self) -> None:
        """Withdraw the targets; nothing happens if they are not there. Raises OSError."""
        self.path.unlink(missing_ok=True)

    def remove_remains(self) -> None:
        """Remove the files of processes of this node that are gone: a killed run could not remove its own."""
        prefix = f"{_plain(self._node)}."
        for path in self._folder.glob(f"{prefix}*{SUFFIX}"):
            pid = path.name.removeprefix(prefix).split(".", 1)[0]
            if pid.isdigit() and not Path("/proc", pid).exists() and not _anybody_listens(path):
                with contextlib.suppress(OSError):
                    path.unlink()


def _plain(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in text)


def _anybody_listens(path: Path) -> bool:
    """Whether a target of the file answers: pids of another container's namespace say nothing."""
    try:
        targets = [target for group in json.loads(path.read_text()) for target in group["targets"]]
    except (OSError, ValueError, LookupError, TypeError):
        return False
    for target in targets:
        host, _, port = target.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=0.5).close()
        except ConnectionRefusedError:
            continue
        except (OSError, ValueError):
            return True
        return True
    return False
