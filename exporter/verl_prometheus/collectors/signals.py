"""Health signals: what alert rules read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from prometheus_client.metrics_core import Metric

from verl_prometheus.collectors.families import gauge
from verl_prometheus.signals import SignalsView


class HasSignals(Protocol):
    """A snapshot of the run, as far as this collector looks at it."""

    @property
    def signals(self) -> SignalsView: ...


class SignalCollector:
    """Signals and their statistics in steps, typical phase durations, and the run's own alert thresholds."""

    def __init__(self, thresholds: Mapping[str, float]) -> None:
        self._thresholds = thresholds

    def collect(self, snapshot: HasSignals) -> Iterable[Metric]:
        view = snapshot.signals
        last, steps = gauge("verl_signal"), gauge("verl_signal_steps")
        window, baseline = gauge("verl_signal_window"), gauge("verl_signal_baseline")
        peak, trough = gauge("verl_signal_peak"), gauge("verl_signal_trough")
        for name, signal in view.signals.items():
            steps.add_metric((name,), signal.steps)
            for family, value in ((last, signal.last), (peak, signal.peak), (trough, signal.trough)):
                if value is not None:
                    family.add_metric((name,), value)
            if signal.window is not None:
                for stat in ("mean", "stddev", "min", "max"):
                    window.add_metric((name, stat), getattr(signal.window, stat))
            if signal.baseline is not None:
                for stat in ("mean", "stddev"):
                    baseline.add_metric((name, stat), getattr(signal.baseline, stat))
        yield from (last, steps, window, baseline, peak, trough)
        yield gauge("verl_signal_window_steps", view.window_steps)

        thresholds, typical = gauge("verl_alert_threshold"), gauge("verl_phase_typical_seconds")
        for alert, threshold in self._thresholds.items():
            thresholds.add_metric((alert,), threshold)
        for phase, seconds in view.phase_typical.items():
            typical.add_metric((phase,), seconds)
        yield from (thresholds, typical)
