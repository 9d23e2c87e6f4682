import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.fixtures import RUNS, calls
from verl_prometheus import catalog
from verl_prometheus import run as run_module
from verl_prometheus.catalog import printable
from verl_prometheus.distribution import Distribution
from verl_prometheus.run import PENDING, RECORD, RunState

CATALOG = catalog.load()


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def run(clock: Clock) -> RunState:
    return RunState(CATALOG, clock=clock)


def count(distribution: Distribution) -> int:
    return sum(distribution.counts)


@pytest.mark.parametrize("name", RUNS)
def test_a_real_run_call_by_call(name: str) -> None:
    run = RunState(CATALOG)
    train: dict[str, float] = {}
    step_of_train: int | None = None
    for step, data in calls(name):
        run.log(data, step)
        snapshot = run.snapshot
        scalars = {key: value for key, value in data.items() if not CATALOG.series(key).retained}
        if scalars:
            train = {**train, **scalars} if step == step_of_train else scalars
            step_of_train = step
        validation = {key: value for key, value in data.items() if CATALOG.series(key).retained}
        assert dict(snapshot.values) == train
        if validation:
            assert snapshot.validation == pytest.approx(validation, nan_ok=True)
            assert snapshot.validation_step == step
        assert snapshot.step == (step if step_of_train is None else step_of_train)
    steps = {step for step, _ in calls(name) if step > 0}
    assert snapshot.steps_total == len(steps)


def test_the_calls_of_a_step_are_merged_and_gone_with_the_next_step(run: RunState) -> None:
    run.log({"train/loss": 1.0, "train/lr": 0.1}, 1)
    run.log({"train/loss": 2.0, "extra": 3.0}, 1)
    assert run.snapshot.values == {"train/loss": 2.0, "train/lr": 0.1, "extra": 3.0}
    run.log({"train/loss": 4.0}, 2)
    assert run.snapshot.values == {"train/loss": 4.0}
    assert run.snapshot.steps_total == 2


def test_validation_keeps_its_last_values_and_their_step(run: RunState) -> None:
    run.log({"val-core/a/acc/mean@1": 0.1, "val-core/b/acc/mean@1": 0.2}, 0)
    assert (run.snapshot.step, run.snapshot.steps_total) == (0, 0)
    run.log({"actor/entropy": 1.0}, 1)
    assert run.snapshot.validation_step == 0
    run.log({"actor/entropy": 1.0, "val-core/a/acc/mean@1": 0.3}, 2)
    assert run.snapshot.validation == {"val-core/a/acc/mean@1": 0.3}  # b was not measured at step 2
    assert run.snapshot.values == {"actor/entropy": 1.0}
    run.log({"val/loss": 0.5}, 1)  # validation alone moves no training step
    assert (run.snapshot.step, run.snapshot.validation_step) == (2, 1)
    assert run.snapshot.values == {"actor/entropy": 1.0}


def test_a_published_snapshot_never_changes(run: RunState) -> None:
    run.log({"timing_s/gen": 1.0, "timing_s/step": 2.0, "actor/entropy": math.nan}, 1)
    first = run.snapshot
    copy = (dict(first.values), count(first.step_duration), dict(first.nonfinite), count(first.phase_duration["gen"]))
    for step in range(2, 20):
        run.log({"timing_s/gen": 1.0, "timing_s/step": 2.0, "actor/entropy": math.nan, "val/loss": 1.0}, step)
        assert run.snapshot.step == step
    assert math.isnan(copy[0].pop("actor/entropy"))
    assert (
        {key: value for key, value in first.values.items() if key != "actor/entropy"},
        count(first.step_duration),
        dict(first.nonfinite),
        count(first.phase_duration["gen"]),
    ) == copy
    assert first.validation == {}


def test_the_trainers_own_step_time_wins(run: RunState, clock: Clock) -> None:
    for step in (1, 2, 3):
        clock.now += 60
        run.log({"perf/time_per_step": 7.0, "timing_s/step": 7.0}, step)
    assert (count(run.snapshot.step_duration), run.snapshot.step_duration.total) == (3, 21.0)
    assert run.snapshot.step_seconds == 7.0


def test_wall_time_between_steps_where_the_trainer_logs_none(run: RunState, clock: Clock) -> None:
    run.log({"train/loss": 1.0}, 1)
    assert run.snapshot.step_seconds is None
    clock.now += 5
    run.log({"train/loss": 1.0}, 2)
    clock.now += 20
    run.log({"val/loss": 1.0}, 2)
    clock.now += 3
    run.log({"train/loss": 1.0}, 3)
    assert (count(run.snapshot.step_duration), run.snapshot.step_duration.total) == (2, 28.0)
    assert run.snapshot.step_seconds == 23.0


def test_phases_tokens_and_checkpoints_add_up(run: RunState, clock: Clock) -> None:
    run.log({"timing_s/gen": 3.0, "timing_s/save_checkpoint": 50.0, "perf/total_num_tokens": 100}, 7)
    clock.now += 10
    run.log({"timing_s/gen": 5.0, "perf/total_num_tokens": 50}, 8)
    snapshot = run.snapshot
    assert {phase: one.total for phase, one in snapshot.phase_duration.items()} == {"gen": 8.0, "save_checkpoint": 50.0}
    assert (count(snapshot.rollout_latency), snapshot.rollout_latency.total) == (2, 8.0)
    assert snapshot.tokens_total == 150
    assert (snapshot.checkpoint_step, snapshot.checkpoint_time) == (7, 1000.0)


def test_amounts_that_cannot_be_leave_histograms_and_counters_alone(run: RunState) -> None:
    for value in (math.nan, math.inf, -1.0):
        run.log({"timing_s/gen": value, "timing_s/step": value, "perf/total_num_tokens": value}, 1)
    assert run.snapshot.phase_duration == {}
    assert (run.snapshot.tokens_total, run.snapshot.step_seconds) == (0.0, None)


def test_nonfinite_values_are_exported_and_counted(run: RunState) -> None:
    run.log({"a": math.nan, "b": math.inf, "c": 1.0}, 1)
    run.log({"a": math.nan, "b": -math.inf}, 2)
    assert run.snapshot.nonfinite == {"a": 2, "b": 2}
    assert math.isnan(run.snapshot.values["a"])
    assert run.snapshot.values["b"] == -math.inf


def test_what_is_no_number_is_counted_by_reason_and_the_rest_kept(run: RunState) -> None:
    run.log({"text": "x", "none": None, "list": [1], "fine": 1.0, "numpy": np.float32(0.5), "huge": 10**400}, 1)
    assert run.snapshot.values == {"fine": 1.0, "numpy": 0.5}
    assert run.snapshot.dropped == {"text": 1, "none": 1, "not_scalar": 1, "overflow": 1}


@pytest.mark.parametrize("step", [None, "x", math.nan, [1]])
def test_a_step_that_is_no_number_keeps_the_values(run: RunState, step: Any) -> None:
    run.log({"a": 1.0}, 3)
    run.log({"b": 2.0}, step)
    assert run.snapshot.values == {"a": 1.0, "b": 2.0}
    assert (run.snapshot.step, run.snapshot.dropped) == (3, {"step": 1})


def test_steps_may_repeat_and_go_backwards(run: RunState) -> None:
    for step in (10, 11, 10, 11, np.int64(12)):
        run.log({"a": float(step)}, step)
        assert (run.snapshot.step, run.snapshot.values) == (step, {"a": float(step)})
    assert run.snapshot.steps_total == 5


def test_keys_beyond_max_series_are_dropped_and_counted() -> None:
    run = RunState(CATALOG, max_series=3)
    run.log({f"key{index}": 1.0 for index in range(5)}, 1)
    assert (len(run.snapshot.values), run.snapshot.dropped) == (3, {"max_series": 2})


def test_states(run: RunState) -> None:
    assert run.snapshot.state == "starting"
    run.log({"a": 1.0}, 1)
    assert run.snapshot.state == "running"
    run.finish(0)
    assert run.snapshot.state == "finished"
    run.finish(1)
    assert run.snapshot.state == "failed"


def test_nobody_reads_for_long_and_nothing_is_lost(run: RunState) -> None:
    steps = PENDING // RECORD + 1000
    for step in range(1, steps + 1):
        run.log({"timing_s/gen": 1.0, "a": float(step)}, step)
    assert run.snapshot.steps_total == steps
    assert count(run.snapshot.rollout_latency) == steps
    assert run.snapshot.values["a"] == steps


def test_readers_and_the_trainer_at_once(run: RunState) -> None:
    """Every snapshot that anybody sees is of one step, and none is lost."""
    mixed: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            snapshot = run.snapshot
            if snapshot.step is not None and set(snapshot.values.values()) != {float(snapshot.step)}:
                mixed.append(snapshot)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for step in range(1, 3001):
        run.log({"a": step, "b": float(step), "perf/total_num_tokens": step}, step)
    done.set()
    for reader in readers:
        reader.join()
    assert mixed == []
    assert run.snapshot.tokens_total == sum(range(1, 3001))


def test_a_trainer_that_logs_faster_than_anybody_reads_takes_no_more_memory(
    run: RunState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "PENDING", 4200)
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            run.history()

    reader = threading.Thread(target=read)
    reader.start()
    data = {f"key{index}": 1.0 for index in range(10)}
    longest = 0
    for step in range(1, 5001):
        run.log(data, step)
        longest = max(longest, len(run._pending))
    done.set()
    reader.join()
    assert longest <= 2 * 4200 // (len(data) + RECORD) + 1
    assert run.snapshot.steps_total == 5000


class Odd:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Odd({self.name})"


def test_keys_that_are_no_strings(run: RunState) -> None:
    run.log({1: 1.0, "1": 2.0, None: 3.0, (1, 2): 4.0, Odd("x"): 5.0, np.str_("y"): 6.0}, 1)
    assert sorted(run.snapshot.values.values()) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


VALUES: st.SearchStrategy[Any] = st.one_of(
    st.floats(), st.integers(), st.booleans(), st.none(), st.text(), st.lists(st.floats()), st.just(np.zeros(3))
)


@given(st.lists(st.tuples(st.dictionaries(st.text(), VALUES, max_size=20), st.integers(-3, 6)), max_size=20))
def test_any_calls_in_any_order(history: list[tuple[dict[str, Any], int]]) -> None:
    run = RunState(CATALOG)
    for data, step in history:
        run.log(data, step)
        finite = dict(_finite(data))
        snapshot = run.snapshot
        seen = {**snapshot.values, **snapshot.validation}
        for key, value in finite.items():
            assert seen[printable(key)] == value


def _finite(data: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in data.items():
        if isinstance(value, (bool, float, int)):
            try:
                if math.isfinite(float(value)):
                    yield key, float(value)
            except OverflowError:
                continue
