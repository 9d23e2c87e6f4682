"""Progress for people: one line that updates itself on a terminal, one line a step elsewhere."""

from __future__ import annotations

import shutil
from typing import TextIO

from verl_prometheus.demo.progress import Progress

CLEAR_LINE = "\r\x1b[K"


class Display:
    """Writes to `stream`, which is a terminal or not."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._last_step: int | None = None

    def say(self, text: str) -> None:
        """Text that stays."""
        self._write(f"{CLEAR_LINE if self._terminal else ''}{text}\n")

    def passing(self, text: str) -> None:
        """Text that the next call replaces; nothing where that cannot be."""
        if self._terminal:
            columns = shutil.get_terminal_size().columns
            self._write(f"{CLEAR_LINE}{text[: columns - 1]}")

    def progress(self, now: Progress) -> None:
        """The state of the training on a terminal; elsewhere the results of a step, once."""
        self.passing(" | ".join(filter(None, (_step(now), _phase(now), *_results(now)))))
        if not self._terminal and now.step and now.step != self._last_step:
            self._last_step = now.step
            self.say("  ".join((_step(now), *_results(now))))

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _step(now: Progress) -> str:
    done = "-" if now.step is None else now.step
    return f"step {done}" if now.target is None else f"step {done}/{now.target}"


def _phase(now: Progress) -> str:
    if not now.phases:
        return ""
    phase, seconds = list(now.phases.items())[-1]
    return f"{phase} {seconds:.1f} s"


def _results(now: Progress) -> list[str]:
    values = {
        "reward": (now.reward, ".3f", ""),
        "KL": (now.kl, ".4f", ""),
        "entropy": (now.entropy, ".3f", ""),
        "": (now.step_seconds, ".1f", " s a step"),
    }
    return [f"{name} {value:{form}}{unit}".strip() for name, (value, form, unit) in values.items() if value is not None]
