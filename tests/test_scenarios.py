"""The shipped rules on real runs of the tiny model: sound ones alert nobody, each fault raises its own alert in time.

`scenarios/README.md` says what the runs are; `make scenarios` makes them anew.
"""

from __future__ import annotations

import statistics
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from verl_prometheus.replay_command import SCRAPE_SECONDS, SHIPPED_RULES, Alert, evaluate, rule_files
from verl_prometheus.run_log import LoggedRun, read
from verl_prometheus.signals import Lengths

FOLDER = Path(__file__).parent / "scenarios"
WINDOW = Lengths().window
OTHERS = 2  # alerts that a fault may bring along


class Fault(NamedTuple):
    """`begins`: the first step that is different. `visible`: the first at which anybody could tell, if that is later.

    `after`: steps until rules may be sure.
    """

    alert: str
    severity: str
    begins: int = 1
    visible: int = 1
    after: int = WINDOW


SOUND = ("healthy_grpo", "healthy_ppo", "healthy_sft")
FAULTS = {
    "entropy_collapse": Fault("VerlEntropyCollapse", "warn", visible=44),  # under a tenth of the first step's
    "first_step_breaks": Fault("VerlKLExplosion", "page"),
    "killed": Fault("VerlRunVanished", "page", begins=45, visible=45, after=0),
    "kl_too_strong": Fault("VerlKLCollapse", "warn", visible=100),  # a KL that never grows: not sooner
    "learning_rate_too_high": Fault("VerlKLExplosion", "page"),
    "reward_always_0": Fault("VerlNoLearningSignal", "warn"),
    "reward_always_1": Fault("VerlNoLearningSignal", "warn"),
    "reward_hangs": Fault("VerlRunStalled", "page", begins=40, visible=40, after=0),
    "reward_nan": Fault("VerlNonFiniteValue", "page", begins=41, visible=41, after=0),
    "reward_raises": Fault("VerlRunFailed", "page", begins=40, visible=40, after=0),
    "slow_rollout": Fault("VerlRolloutLatencyHigh", "warn", begins=41, visible=41),
    "truncation": Fault("VerlResponseLengthSaturated", "warn", visible=13),  # over 0.8 of the limit
}


def run(name: str) -> LoggedRun:
    return read(FOLDER / f"{name}.jsonl.gz", {}, None, 0.0)


@cache
def urgent(name: str, promtool: Path) -> list[Alert]:
    """What somebody must look at."""
    return [one for one in evaluate(run(name), rule_files(SHIPPED_RULES), promtool) if one.severity != "info"]


def test_every_log_is_judged() -> None:
    logs = {path.name.removesuffix(".jsonl.gz") for path in FOLDER.glob("*.jsonl.gz")}
    assert logs == {*SOUND, *FAULTS}
    text = (FOLDER / "README.md").read_text()
    assert all(f"| {name} |" in text for name in logs)


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_run_alerts_nobody(name: str, newest_prometheus_bin: Path) -> None:
    assert run(name).step_at(float("inf")) in range(200, 1000)
    assert urgent(name, newest_prometheus_bin / "promtool") == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_raises_its_own_alert_in_time(name: str, newest_prometheus_bin: Path) -> None:
    fault, found = FAULTS[name], urgent(name, newest_prometheus_bin / "promtool")
    seconds = statistics.median(run(name).step_durations)
    deadline = fault.visible + fault.after + 2 * SCRAPE_SECONDS / seconds  # the next scrape, the next evaluation
    (own,) = (one for one in found if (one.alert, one.severity) == (fault.alert, fault.severity))
    assert own.first_step is not None
    assert fault.visible <= own.first_step <= deadline, found
    assert len(found) <= 1 + OTHERS, found


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_raised_before_the_fault(name: str, newest_prometheus_bin: Path) -> None:
    for one in urgent(name, newest_prometheus_bin / "promtool"):
        assert (one.first_step or 0) >= FAULTS[name].begins, one


def test_a_hang_names_its_phase() -> None:
    assert run("reward_hangs").ending.phase == "gen"
