"""Push: what a run logs goes to a remote write receiver, by way of the journal.

The journal is the queue, as the write-ahead log is Prometheus's own: an outage takes no memory, and what a killed attempt
could not deliver is delivered by the next one. How far the receiver has got is kept in `<journal>.pushed`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from verl_prometheus.attempt import Attempt
from verl_prometheus.delivery import COMPONENT, Delivery, Frame, frame
from verl_prometheus.errors import ErrorLog
from verl_prometheus.exposition import Exposition
from verl_prometheus.journal import JournalReader, Position
from verl_prometheus.replay import Replay
from verl_prometheus.series import Moment, Selection

BATCH_SAMPLES = 5000
POLL_SECONDS = 0.25
RESEND_SECONDS = 15.0  # as if scraped: `rate()` over a minute has enough samples, whatever a step takes
FILL_MS = 60_000  # where an outage is made up for


@dataclass(frozen=True)
class Cursor:
    """How far a receiver has got: `position` in the journal, the `attempt` line before it, Unix milliseconds."""

    url: str
    position: Position
    attempt: Position
    time: int

    @classmethod
    def load(cls, path: Path) -> Cursor:
        """Raises OSError, ValueError."""
        try:
            content = json.loads(path.read_text())
            position, attempt = Position(*map(int, content["position"])), Position(*map(int, content["attempt"]))
            return cls(str(content["url"]), position, attempt, int(content["time"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged: {error!r}") from error

    def save(self, path: Path) -> None:
        """Replace the file at once. Raises OSError."""
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(asdict(self)))
        os.replace(temporary, path)


def cursor_path(journal: Path) -> Path:
    return journal.with_name(f"{journal.name}.pushed")


class LiveFrames:
    """What belongs to a process, not to a step: as it is, every `RESEND_SECONDS`. `labels`: on every series, besides."""

    def __init__(self, exposition: Exposition, labels: Mapping[str, str]) -> None:
        self._exposition = exposition
        self._labels = labels
        self._selection = Selection(resend_ms=0)
        self._due = 0.0

    def due(self) -> list[Frame]:
        """One frame if it is time for one."""
        if time.monotonic() < self._due:
            return []
        self._due = time.monotonic() + RESEND_SECONDS
        moment = Moment(round(time.time() * 1000), self._labels, list(self._exposition.collect()))
        return [frame(self._selection, moment)]


class LivePush:
    """Pushes what an exposition shows until `close`. In an outage only the latest waits."""

    def __init__(self, frames: LiveFrames, delivery: Delivery, errors: ErrorLog) -> None:
        self._frames = frames
        self._delivery = delivery
        self._errors = errors
        self._thread = threading.Thread(target=self._work, name="verl-prometheus-push", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._delivery.stop(0)
        self._thread.join(POLL_SECONDS)

    def _work(self) -> None:
        while not self._delivery.stopping.wait(POLL_SECONDS):
            try:
                if frames := self._frames.due():
                    self._delivery.deliver(frames)
            except Exception as error:
                self._errors.add(COMPONENT, error)


class JournalPush:
    """Follows a journal that somebody else writes, until `close`.

    Args:
        journal: its path.
        begin: where the present attempt begins in it.
        url: of the receiver.
        live: what to send besides.
    """

    def __init__(
        self, journal: Path, begin: Position, url: str, delivery: Delivery, live: LiveFrames, errors: ErrorLog
    ) -> None:
        self._journal = journal
        self._url = url
        self._delivery = delivery
        self._live = live
        self._errors = errors
        self._selection = Selection(resend_ms=round(RESEND_SECONDS * 1000))
        self._reader = JournalReader(journal, begin)
        self._replay = Replay(FILL_MS)
        self._attempt = self._passed = begin
        self._begin = begin
        self._thread = threading.Thread(target=self._work, name="verl-prometheus-push", daemon=True)
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Send what the journal holds; what is not delivered after `seconds` is left to the next attempt."""
        self._delivery.stop(seconds)
        self._thread.join(seconds + POLL_SECONDS)
        self._reader.close()

    def _work(self) -> None:
        try:
            self._catch_up()
            while True:
                stopping = self._delivery.stopping.is_set()  # asked first: the journal has ended by then
                for batch in self._batches():
                    if not self._delivery.deliver(batch):
                        return
                    self._save()
                if stopping:
                    return
                if (frames := [*self._heartbeat(), *self._live.due()]) and self._delivery.deliver(frames):
                    self._save()
                self._delivery.stopping.wait(POLL_SECONDS)
        except Exception as error:
            self._errors.add(COMPONENT, error, "nothing more is pushed in this attempt; the journal goes on")

    def _catch_up(self) -> None:
        """Go to where the last attempt's push ended, knowing what it had sent."""
        path = cursor_path(self._journal)
        try:
            cursor = Cursor.load(path)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            self._errors.add(COMPONENT, error, "what earlier attempts could not deliver is left to backfill")
            return
        if cursor.url != self._url or cursor.position > self._begin:
            return
        self._replay = Replay(FILL_MS, cursor.time)
        self._reader = JournalReader(self._journal, cursor.attempt)
        self._attempt, self._passed = cursor.attempt, cursor.position
        for entry in self._reader.entries():
            self._replay.skip(entry)
            if self._reader.position >= cursor.position:
                break
        for moment in self._replay.present():
            self._selection.assume_chosen(moment)

    def _batches(self) -> Iterator[list[Frame]]:
        """What the journal holds by now. Once a batch is delivered, everything before `_passed` is."""
        frames: list[Frame] = []
        size = 0
        before = self._reader.position
        for entry in self._reader.entries():
            if isinstance(entry, Attempt):
                self._attempt = before
            for moment in self._replay.feed(entry):
                frames.append(frame(self._selection, moment))
                size += len(frames[-1])
                if size >= BATCH_SAMPLES:
                    yield frames
                    frames, size = [], 0
            before = self._passed = self._reader.position
        if frames:
            yield frames

    def _heartbeat(self) -> list[Frame]:
        """The last step again, while the next one takes long."""
        now = time.time()
        if now * 1000 - self._replay.time < RESEND_SECONDS * 1000:
            return []
        return [frame(self._selection, moment) for moment in self._replay.now(now)]

    def _save(self) -> None:
        try:
            Cursor(self._url, self._passed, self._attempt, self._replay.time).save(cursor_path(self._journal))
        except OSError as error:
            self._errors.add(COMPONENT, error, "the next attempt may send some steps again")
