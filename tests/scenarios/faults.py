"""What goes wrong in the scenarios: rewards for verl's `reward.custom_reward_function`, and a slow sampler.

Faults that begin in the middle of a run wait for a file, which the generator writes once enough steps are logged.
As a module in VERL_USE_EXTERNAL_MODULES, with SCENARIO_SLOW_SECONDS set, it slows the rollout down.
"""

from __future__ import annotations

import math
import os
import time
from typing import Any

from verl_prometheus.demo import sampling
from verl_prometheus.demo.reward import compute_score

FAULT_FILE = "SCENARIO_FAULT_FILE"
SLOW_SECONDS = "SCENARIO_SLOW_SECONDS"
LONGEST = 8  # characters


def begun() -> bool:
    return os.path.exists(os.environ[FAULT_FILE])


def zero(**sample: Any) -> dict[str, float]:
    return {**compute_score(**sample), "score": 0.0}


def one(**sample: Any) -> dict[str, float]:
    return {**compute_score(**sample), "score": 1.0}


def length(solution_str: str, **sample: Any) -> dict[str, float]:
    """Pays for every character, whatever it says."""
    return {**compute_score(solution_str=solution_str, **sample), "score": len(solution_str) / LONGEST}


def not_a_number(**sample: Any) -> dict[str, float]:
    right = compute_score(**sample)
    return {**right, "score": math.nan} if begun() else right


def hang(**sample: Any) -> dict[str, float]:
    while begun():
        time.sleep(1)
    return compute_score(**sample)


def fail(**sample: Any) -> dict[str, float]:
    if begun():
        raise RuntimeError("the reward service has gone")
    return compute_score(**sample)


def scripted(**sample: Any) -> dict[str, float]:
    """The fault whose name the file holds, as long as it does."""
    try:
        with open(os.environ[FAULT_FILE]) as file:
            fault = file.read()
    except FileNotFoundError:
        return compute_score(**sample)
    return {"nan": not_a_number, "hang": hang, "fail": fail}[fault](**sample)


def slow_down(seconds: float) -> None:
    quick = sampling.sample

    def slow(*arguments: Any, **settings: Any) -> Any:
        if begun():
            time.sleep(seconds)
        return quick(*arguments, **settings)

    sampling.sample = slow


if SLOW_SECONDS in os.environ:
    slow_down(float(os.environ[SLOW_SECONDS]))
