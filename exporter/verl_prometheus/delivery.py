"""Delivers samples in order: waits while the receiver is unavailable, divides what it rejects."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence

from verl_prometheus.errors import ErrorLog
from verl_prometheus.remote_write import STALE, Rejected, RemoteWriteClient, Sample, Unavailable
from verl_prometheus.series import Moment, Selection

COMPONENT = "remote_write"
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
logger = logging.getLogger("verl_prometheus")
Frame = list[Sample]  # the samples of one moment


def frame(selection: Selection, moment: Moment) -> Frame:
    """The chosen samples of a moment; series that have ended are marked stale, as a scrape would do it."""
    chosen, ended = selection.choose(moment)
    samples = [(series, moment.time, value if value == value else math.nan) for series, value in chosen]
    return samples + [(series, moment.time, STALE) for series in ended]


class Delivery:
    """Sends frames through one client, one batch after the other.

    `samples` counts them by outcome; those of a try that failed for now are retried.
    """

    def __init__(self, client: RemoteWriteClient, errors: ErrorLog) -> None:
        self._client = client
        self._errors = errors
        self._give_up_at = math.inf
        self._available = True
        self.samples: Counter[str] = Counter(delivered=0, retried=0, rejected=0)
        self.stopping = threading.Event()

    def stop(self, seconds: float) -> None:
        """Whatever is not delivered `seconds` from now is given up."""
        self._give_up_at = time.monotonic() + seconds
        self.stopping.set()

    def deliver(self, frames: Sequence[Frame]) -> bool:
        """Returns when every frame is delivered or rejected for good; False if the time was up before.

        A receiver may reject a request because of one old sample in it (Prometheus does): the rest is sent again without.
        """
        pause = FIRST_PAUSE_SECONDS
        size = sum(map(len, frames))
        while True:
            try:
                self._client.send(sample for one in frames for sample in one)
                self.samples["delivered"] += size
                self._say_available(True)
                return True
            except Unavailable as error:
                self.samples["retried"] += size
                self._say_available(False, error)
                wait = pause * random.uniform(0.5, 1.5) if error.retry_after is None else error.retry_after
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                if not self._wait(wait):
                    return False
            except Rejected as error:
                if error.divisible and len(frames) > 1:
                    middle = len(frames) // 2
                    return self.deliver(frames[:middle]) and self.deliver(frames[middle:])
                self._errors.add(
                    COMPONENT, error, "these samples are only in the journal: see verl-prometheus backfill"
                )
                self.samples["rejected"] += size
                return True

    def _say_available(self, available: bool, reason: object = "") -> None:
        """Said once an outage, and at its end."""
        if available != self._available:
            self._available = available
            what = "works again" if available else f"is unavailable, samples are kept and sent later: {reason}"
            logger.warning("verl-prometheus: remote write %s", what)

    def _wait(self, seconds: float) -> bool:
        """Wait before the next try; False if there is no time for one."""
        until = time.monotonic() + seconds
        if self.stopping.wait(seconds):
            if until >= self._give_up_at:
                return False
            time.sleep(max(until - time.monotonic(), 0.0))
        return True
