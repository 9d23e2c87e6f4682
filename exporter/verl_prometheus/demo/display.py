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
        """Where the training is, on a terminal; elsewhere the results of a step, once."""
        self.passing("  ".join([_step(now), *_results(now), *_phase(now)]))
        if not self._terminal and now.step and now.step != self._last_step:
            self._last_step = now.step
            self.say("  ".join([_step(now), *_results(now)]))

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _step(now: Progress) -> str:
    return f"step {now.step or 0}" + ("" if now.target is None else f"/{now.target}")


def _results(now: Progress) -> list[str]:
    values = {
        "reward {:.2f}": now.reward,
        "KL {:.3f}": now.kl,
        "entropy {:.2f}": now.entropy,
        "{:.1f} s/step": now.step_seconds,
    }
    return [text.format(value) for text, value in values.items() if value is not None]


def _phase(now: Progress) -> list[str]:
    """The innermost one: it says most."""
    return [f"{phase} {seconds:.1f} s" for phase, seconds in now.phases.items()][-1:]
