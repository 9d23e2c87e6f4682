"""The end of a journal that this process appends to, and no other."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import weakref
from pathlib import Path

from verl_prometheus import journal

NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # some network file systems


class JournalFile:
    """Appends whole lines, in new parts when the last one is full.

    Raises BlockingIOError if another process appends to the journal, OSError if the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.part = max(journal.parts(path), default=0)
        self._unwritten = b""
        self._size = 0  # bytes in the part
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = self._open()
        self._torn = self._size > 0 and os.pread(self._descriptor, 1, self._size - 1) != b"\n"

    @property
    def position(self) -> journal.Position:
        """Where the next line begins."""
        return journal.Position(self.part, self._size + self._torn)

    @property
    def is_full(self) -> bool:
        return self._size >= journal.PART_BYTES

    def append(self, lines: bytes) -> None:
        """Write `lines`. Raises OSError; what is not written then is kept for the next call, even an empty one."""
        self._unwritten += lines
        rest = b"\n" + self._unwritten if self._torn else self._unwritten
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        finally:
            written = len(self._unwritten) - len(rest)
            if written >= 0:  # else not even the newline that ends the torn line
                complete = self._unwritten.rfind(b"\n", 0, written) + 1
                self._torn = written > complete
                self._unwritten = self._unwritten[complete:]
            self._size = os.fstat(self._descriptor).st_size

    def begin_part(self) -> None:
        """Go on in a new part; parts that are too old go away. Raises OSError."""
        self.part += 1
        try:
            descriptor = self._open()
        except OSError:
            self.part -= 1
            raise
        os.close(self._descriptor)
        self._descriptor, self._torn = descriptor, False
        for part in journal.parts(self.path)[: -journal.PARTS]:
            journal.part_path(self.path, part).unlink(missing_ok=True)

    def sync(self) -> None:
        """Have it on disk, not only in the kernel. Raises OSError."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(journal.part_path(self.path, self.part), flags, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in NO_LOCKS_HERE:
                os.close(descriptor)
                raise
        self._size = os.fstat(descriptor).st_size
        _close_in_children(self, descriptor)
        return descriptor


def _close_in_children(owner: JournalFile, descriptor: int) -> None:
    """A forked child (a data loader) that outlives a killed trainer would keep the lock from the next attempt."""
    reference = weakref.ref(owner)

    def close() -> None:
        one = reference()
        if one is not None and one._descriptor == descriptor:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    os.register_at_fork(after_in_child=close)
