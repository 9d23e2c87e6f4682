"""Waiting for something to become true, without a sleep that is too long or too short."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str, seconds: float = 30.0, pause: float = 0.05) -> T:
    """The first true value of `condition`; AssertionError naming `what` after `seconds`. Errors on the way do not count."""
    end = time.monotonic() + seconds
    last: object = None
    while time.monotonic() < end:
        try:
            value = condition()
        except (OSError, LookupError, ValueError) as error:
            last = error
        else:
            if value:
                return value
            last = value
        time.sleep(pause)
    raise AssertionError(f"waited {seconds:g} s for {what}; last seen: {last!r}")
