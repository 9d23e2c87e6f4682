"""Reward of the arithmetic task; verl loads it as `reward.custom_reward_function`."""

from __future__ import annotations

import re
from typing import Any

FAR = 10  # an answer this far off earns nothing


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> dict[str, float]:
    """From 1 for the right answer down to 0 for one that is far off or no whole number."""
    answer = solution_str.strip()
    if not re.fullmatch(r"-?\d+", answer):
        return {"score": 0.0, "acc": 0.0}
    distance = abs(int(answer) - int(ground_truth))
    return {"score": max(0.0, 1 - distance / FAR), "acc": float(distance == 0)}
