"""Errors that must not reach training: counted, and logged once per kind."""

from __future__ import annotations

import logging
from collections import Counter

logger = logging.getLogger("verl_prometheus")


class ErrorLog:
    """Counts of swallowed errors by component of the exporter."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._logged: set[tuple[str, type[BaseException]]] = set()

    def add(self, component: str, error: BaseException, remedy: str = "") -> None:
        """Count `error` and, the first time `component` meets its type, log it as a warning."""
        self._counts[component] += 1
        kind = component, type(error)
        if kind not in self._logged:
            self._logged.add(kind)
            logger.warning(
                "verl-prometheus: %s failed, training goes on: %s: %s%s",
                component, type(error).__name__, error, f" ({remedy})" if remedy else "",
                exc_info=logger.isEnabledFor(logging.DEBUG),
            )  # fmt: skip

    def counts(self) -> dict[str, int]:
        return dict(self._counts)
