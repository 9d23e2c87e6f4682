"""Puts what a run logs on disk, in a thread of its own: the journal, and the state that a resumed run needs."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable

from verl_prometheus.errors import ErrorLog
from verl_prometheus.journal import Encoder, End
from verl_prometheus.journal_file import JournalFile
from verl_prometheus.run import Call, RunIdentity

BACKLOG = 8 * 2**20  # bytes of calls that may wait for a disk that does not answer
CALL = 300  # bytes that a call takes besides its numbers
BATCH = 256
SAVE_SECONDS = 5.0
RETRY_SECONDS = 1.0


class Recorder:
    """Records from construction to `close`.

    Args:
        identity: whose calls these are.
        file: the journal, which already says that the attempt has begun; None: keep none.
        continuation: the line that begins a further part of the journal.
        save: saves the state; called every few seconds while steps come, and at the end.
    """

    def __init__(
        self,
        identity: RunIdentity,
        file: JournalFile | None,
        continuation: Callable[[], bytes],
        save: Callable[[], object],
        errors: ErrorLog,
    ) -> None:
        self._encoder = Encoder(identity)
        self._file = file
        self._continuation = continuation
        self._save = save
        self._errors = errors
        self._queue: queue.SimpleQueue[Call | End] = queue.SimpleQueue()
        self._added = self._taken = 0  # bytes, each written by one thread
        self._unsaved = False
        self._saved_at = 0.0
        self._closing = threading.Event()
        self._ended = threading.Event()
        threading.Thread(target=self._work, name="verl-prometheus-recorder", daemon=True).start()

    def add(self, call: Call) -> None:
        """Record a call; takes a microsecond, whatever the disk does."""
        if self._added - self._taken < BACKLOG:
            self._added += _size(call)
            self._queue.put(call)
        else:
            self._errors.add("journal", BufferError("the disk is too slow: a step is left out of the journal"))

    def close(self, exit_code: int, seconds: float) -> None:
        """Record the end; wait at most `seconds` until everything is on disk."""
        self._closing.set()
        self._queue.put(End(time.time(), exit_code))
        if sys.is_finalizing():  # the thread no longer runs
            while not self._queue.empty():
                self._round()
        else:
            self._ended.wait(seconds)

    def _work(self) -> None:
        while not self._ended.is_set():
            try:
                self._round()
            except Exception as error:
                self._errors.add("journal", error)

    def _round(self) -> None:
        """Everything that waits; or, if nothing does, until something comes or the state is to be saved."""
        entries = self._take()
        ended = any(isinstance(entry, End) for entry in entries)
        try:
            if entries:
                self._unsaved = True
                if self._file is not None:
                    self._write(self._file, b"".join(map(self._encode, entries)))
            if self._unsaved and (ended or time.monotonic() - self._saved_at >= SAVE_SECONDS):
                self._unsaved, self._saved_at = False, time.monotonic()
                self._save()
            if ended and self._file:
                self._file.sync()
                self._file.close()
        finally:
            if ended:
                self._ended.set()

    def _take(self) -> list[Call | End]:
        timeout = max(self._saved_at + SAVE_SECONDS - time.monotonic(), 0.0) if self._unsaved else None
        entries = []
        try:
            entries.append(self._queue.get(timeout=timeout))
            while len(entries) < BATCH:
                entries.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        self._taken += sum(map(_size, entries))
        return entries

    def _encode(self, entry: Call | End) -> bytes:
        return self._encoder.end(entry) if isinstance(entry, End) else self._encoder.call(entry)

    def _write(self, file: JournalFile, lines: bytes) -> None:
        """Returns when the lines are written, or cannot be and no time is left."""
        while True:
            try:
                file.append(lines)
                break
            except OSError as error:
                self._errors.add("journal", error, "free some space, or set trainer.prometheus.journal to another file")
                lines = b""  # the file keeps them
                if self._closing.wait(RETRY_SECONDS):
                    return
        if file.is_full:
            file.begin_part()
            file.append(self._continuation())


def _size(entry: Call | End) -> int:
    return len(entry.numbers) + CALL if isinstance(entry, Call) else 0
