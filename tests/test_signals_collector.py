"""The signal families as a scrape sees them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from verl_prometheus.collectors.signals import SignalCollector
from verl_prometheus.signals import Lengths, Signals, SignalsView

Labels = tuple[tuple[str, str], ...]


@dataclass
class Snapshot:
    signals: SignalsView


def scrape(signals: Signals) -> dict[tuple[str, Labels], float]:
    collector = SignalCollector(thresholds={"VerlKLExplosion": 2.0})
    return {
        (sample.name, tuple(sample.labels.items())): sample.value
        for family in collector.collect(Snapshot(signals.view()))
        for sample in family.samples
    }


def test_families_of_a_run() -> None:
    signals = Signals(Lengths(window=2, baseline=2, warmup=0))
    for step, value in enumerate([4.0, 2.0, 6.0]):
        signals.observe(step, {"train/loss": value}, 1.5, {"update_actor": 0.5})
    loss = "signal", "loss"
    samples = scrape(signals)
    assert samples["verl_signal", (loss,)] == 6.0
    assert samples["verl_signal_steps", (loss,)] == 3
    assert samples["verl_signal_window_steps", ()] == 2
    assert [samples["verl_signal_window", (loss, ("stat", stat))] for stat in ("mean", "stddev", "min", "max")] == [
        4.0, 2.0, 2.0, 6.0,
    ]  # fmt: skip
    assert [samples["verl_signal_baseline", (loss, ("stat", stat))] for stat in ("mean", "stddev")] == [3.0, 1.0]
    assert (samples["verl_signal_peak", (loss,)], samples["verl_signal_trough", (loss,)]) == (4.0, 3.0)
    assert samples["verl_alert_threshold", (("alert", "VerlKLExplosion"),)] == 2.0
    assert samples["verl_phase_typical_seconds", (("phase", "update_actor"),)] == 0.5
    assert samples["verl_phase_typical_seconds", (("phase", "step"),)] == 1.5


def test_what_is_not_there_is_not_exported() -> None:
    signals = Signals()
    signals.observe(1, {"train/loss": math.nan}, None, {})
    samples = scrape(signals)
    names = {name for name, _ in samples}
    assert names == {"verl_signal", "verl_signal_steps", "verl_signal_window_steps", "verl_alert_threshold"}
    assert math.isnan(samples["verl_signal", (("signal", "loss"),)])
    assert samples["verl_signal_steps", (("signal", "loss"),)] == 0
