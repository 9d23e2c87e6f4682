"""Signals: which key feeds which, and their statistics against the plain definition of each."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_prometheus.moments import LARGEST
from verl_prometheus.signals import Lengths, Signals, SignalsView, definitions

LENGTHS = Lengths(window=4, baseline=3, warmup=2)

finite = st.floats(-1e6, 1e6, allow_subnormal=False)
broken = st.sampled_from([math.nan, math.inf, -math.inf, 1e300, None])
logged = st.one_of(finite, finite, finite, broken)


def feed(signals: Signals, losses: Sequence[float | None], first_step: int = 1) -> SignalsView:
    for step, loss in enumerate(losses, first_step):
        signals.observe(step, {} if loss is None else {"train/loss": loss}, None, {})
    return signals.view()


def usable(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None and abs(value) < LARGEST]


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-9, abs=1e-6)


@given(st.lists(logged, min_size=1, max_size=40))
def test_statistics_are_those_of_their_definition(losses: list[float | None]) -> None:
    signals = Signals(LENGTHS)
    means: list[float] = []
    for step, loss in enumerate(losses, 1):
        signals.observe(step, {} if loss is None else {"train/loss": loss}, None, {})
        window = usable(losses[max(0, step - LENGTHS.window) : step])
        if usable([loss]) and len(usable(losses[:step])) >= LENGTHS.window:
            means.append(statistics.fmean(window))
        signal = signals.view().signals.get("loss")
        if signal is None:
            assert not any(value is not None for value in losses[:step])
            continue
        assert signal.last is loss or signal.last == loss
        assert signal.steps == len(usable(losses[:step]))
        if window:
            assert signal.window is not None
            assert signal.window.mean == close(statistics.fmean(window))
            assert signal.window.stddev == pytest.approx(statistics.pstdev(window), rel=1e-6, abs=1e-3)
            assert (signal.window.min, signal.window.max) == (min(window), max(window))
        else:
            assert signal.window is None
        assert signal.peak == (close(max(means)) if means else None)
        assert signal.trough == (close(min(means)) if means else None)


@given(st.lists(logged, min_size=1, max_size=40))
def test_baseline_is_frozen_over_the_first_values_after_warm_up(losses: list[float | None]) -> None:
    signal = feed(Signals(LENGTHS), [*losses, None]).signals.get("loss")
    first = usable(losses)[LENGTHS.warmup : LENGTHS.warmup + LENGTHS.baseline]
    if len(first) < LENGTHS.baseline:
        assert signal is None or signal.baseline is None
    else:
        assert signal is not None
        assert signal.baseline is not None
        assert signal.baseline.mean == close(statistics.fmean(first))
        assert signal.baseline.stddev == pytest.approx(statistics.pstdev(first), rel=1e-6, abs=1e-3)


@given(st.lists(logged, max_size=30), st.lists(logged, min_size=1, max_size=10), st.integers(-5, 5))
def test_a_resumed_run_continues_its_history(
    before: list[float | None], after: list[float | None], rolled_back: int
) -> None:
    whole = Signals(LENGTHS)
    feed(whole, before)
    expected = feed(whole, after, first_step=1000).signals.get("loss")
    earlier = Signals(LENGTHS)
    feed(earlier, before)
    resumed = Signals(LENGTHS)
    resumed.restore(json.loads(json.dumps(earlier.state(), allow_nan=False)))
    signal = feed(resumed, after, first_step=len(before) + rolled_back).signals.get("loss")
    if expected is None or signal is None:
        assert signal is expected
        return
    assert signal.steps == expected.steps
    for extreme, same in ((signal.peak, expected.peak), (signal.trough, expected.trough)):
        assert extreme == (None if same is None else close(same))
    assert (signal.window is None) == (expected.window is None)
    if signal.window and expected.window:
        assert signal.window.mean == close(expected.window.mean)
    assert (signal.baseline is None) == (expected.baseline is None)
    if signal.baseline and expected.baseline:
        assert signal.baseline[:3] == expected.baseline[:3]


def test_an_outlier_leaves_no_trace_once_it_has_left_the_window() -> None:
    signal = feed(Signals(LENGTHS), [1.0, 1e90, -1e90, 0.1, 0.1, 0.1, 0.1]).signals["loss"]
    assert signal.window is not None
    assert signal.window.mean == 0.1
    assert signal.window.stddev == 0.0


def test_nan_is_exported_as_last_and_kept_out_of_the_window() -> None:
    signal = feed(Signals(LENGTHS), [1.0, 3.0, math.nan]).signals["loss"]
    assert signal.last is not None
    assert math.isnan(signal.last)
    assert signal.window is not None
    assert (signal.window.mean, signal.steps) == (2.0, 2)


def test_a_signal_that_is_no_longer_logged_loses_its_window_after_as_many_steps() -> None:
    signals = Signals(LENGTHS)
    assert feed(signals, [1.0, 2.0, None, None, None]).signals["loss"].window is not None
    gone = feed(signals, [None], first_step=6).signals["loss"]
    assert (gone.last, gone.window, gone.steps) == (None, None, 2)


def test_calls_of_one_step_amend_it() -> None:
    signals = Signals(LENGTHS)
    signals.observe(1, {"train/loss": 1.0}, None, {"gen": 1.0})
    signals.observe(2, {"train/grad_norm": 5.0}, None, {"gen": 2.0})
    signals.observe(2, {"train/grad_norm": 5.0, "train/loss": 3.0}, None, {"gen": 4.0, "testing": 9.0})
    signals.observe(2, {"val/loss": 7.0}, None, {})
    view = signals.view()
    assert view.step == 2
    assert {name: signal.steps for name, signal in view.signals.items()} == {"loss": 2, "grad_norm": 1}
    loss = view.signals["loss"].window
    assert loss is not None
    assert loss.mean == 2.0
    assert view.phase_typical == {"gen": 2.5, "testing": 9.0}


def test_steps_that_repeat_or_go_back_take_new_places() -> None:
    signals = Signals(LENGTHS)
    feed(signals, [1.0, 1.0, 1.0])
    signal = feed(signals, [5.0, 5.0], first_step=2).signals["loss"]
    assert signal.steps == 5
    assert signal.window is not None
    assert signal.window.mean == 3.0


def test_the_first_key_that_exists_feeds_a_signal_and_is_kept() -> None:
    signals = Signals(LENGTHS)
    signals.observe(1, {"actor/kl_loss": 0.1, "actor/reward_kl_penalty": 9.0}, None, {})
    signals.observe(2, {"actor/reward_kl_penalty": 9.0}, None, {})
    kl = signals.view().signals["reference_kl"]
    assert (kl.last, kl.steps) == (None, 1)


def test_a_preferred_key_that_comes_later_starts_the_signal_anew() -> None:
    signals = Signals(LENGTHS)
    signals.observe(1, {"actor/entropy_loss": 9.0}, None, {})
    signals.observe(2, {"actor/entropy": 1.0, "actor/entropy_loss": 9.0}, None, {})
    entropy = signals.view().signals["entropy"]
    assert (entropy.last, entropy.steps) == (1.0, 1)


def test_a_resumed_run_with_another_estimator_starts_the_signal_anew() -> None:
    earlier = Signals(LENGTHS)
    earlier.observe(1, {"actor/kl_loss": 0.1}, None, {})
    resumed = Signals(LENGTHS)
    resumed.restore(earlier.state())
    resumed.observe(2, {"actor/reward_kl_penalty": 0.5}, None, {})
    kl = resumed.view().signals["reference_kl"]
    assert (kl.last, kl.steps) == (0.5, 1)


def test_derived_signals() -> None:
    signals = Signals(LENGTHS, response_limit=200)
    logged = {"critic/advantages/max": 1.5, "critic/advantages/min": -0.5, "response_length/mean": 50.0}
    signals.observe(1, logged, 2.5, {})
    view = signals.view()
    last = {name: signal.last for name, signal in view.signals.items()}
    assert last == {"advantage_spread": 2.0, "response_length_fraction": 0.25, "step_duration": 2.5}
    assert view.phase_typical == {"step": 2.5}


def test_the_trainers_own_step_time_wins_over_the_wall_clock() -> None:
    signals = Signals(LENGTHS)
    signals.observe(1, {}, 9.0, {})
    signals.observe(2, {"perf/time_per_step": 2.0}, 9.0, {"step": 2.0})
    view = signals.view()
    assert (view.signals["step_duration"].last, view.signals["step_duration"].steps) == (2.0, 1)
    assert view.phase_typical == {"step": 5.5}


def test_without_a_configured_maximum_there_is_no_length_fraction() -> None:
    signals = Signals(LENGTHS)
    signals.observe(1, {"response_length/mean": 50.0}, None, {})
    assert signals.view().signals == {}


def test_typical_is_the_median_of_the_last_window_of_the_phase() -> None:
    signals = Signals(LENGTHS)
    for step, seconds in enumerate([100.0, 1.0, 2.0, 3.0, math.nan, 4.0]):
        signals.observe(step, {}, None, {"gen": seconds})
    assert signals.view().phase_typical == {"gen": 2.5}


def test_a_view_is_made_once_and_never_changes() -> None:
    signals = Signals(LENGTHS)
    first = feed(signals, [1.0])
    assert signals.view() is first
    feed(signals, [2.0], first_step=2)
    assert first.signals["loss"].steps == 1
    assert first.step == 1


def test_nobody_reading_costs_bounded_memory_and_loses_nothing() -> None:
    signals = Signals(LENGTHS)
    for step in range(5000):
        signals.observe(step, {"train/loss": float(step)}, None, {})
    assert len(signals._waiting) < 5000
    assert signals.view().signals["loss"].steps == 5000


def test_state_is_no_momentary_value_and_does_not_disturb_the_run() -> None:
    signals = Signals(LENGTHS)
    feed(signals, [1.0, 2.0])
    before = signals.view()
    state = signals.state()
    assert signals.view() == before
    resumed = Signals(LENGTHS)
    resumed.restore(state)
    assert resumed.view().step is None
    assert resumed.view().signals["loss"].last is None
    assert resumed.view().signals["loss"].steps == 2


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"version": 2},
        {"version": 1, "signals": 3, "phases": {}},
        {"version": 1, "signals": {"loss": {}}, "phases": {}},
    ],
)
def test_a_state_that_is_none_is_refused_and_changes_nothing(state: dict[str, object]) -> None:
    signals = Signals(LENGTHS)
    before = feed(signals, [1.0])
    with pytest.raises(ValueError, match="no history of signals"):
        signals.restore(state)
    assert signals.view() == before


def test_a_window_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="window"):
        Lengths(window=1)


def test_every_signal_of_the_contract_is_defined() -> None:
    assert set(definitions()) == {
        "reference_kl", "update_kl", "entropy", "reward", "score", "advantage_spread", "grad_norm", "policy_loss",
        "value_loss", "clip_fraction", "explained_variance", "response_length_fraction", "aborted_fraction",
        "rollout_mismatch", "importance_ess", "staleness", "trainer_idle", "throughput", "step_duration", "loss",
    }  # fmt: skip
