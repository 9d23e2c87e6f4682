from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from verl_prometheus.values import NotANumber, number


class Reading:
    def __float__(self) -> float:
        return 2.5


class Broken:
    def __float__(self) -> float:
        raise RuntimeError("no value")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.5, 1.5),
        (3, 3.0),
        (True, 1.0),
        (np.float64(1.5), 1.5),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7.0),
        (np.bool_(True), 1.0),
        (np.array(1.5), 1.5),
        (np.array([1.5]), 1.5),
        (torch.tensor(1.5), 1.5),
        (torch.tensor([[2.0]]), 2.0),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        (torch.tensor(1.5, requires_grad=True), 1.5),
        (Decimal("0.1"), 0.1),
        (Fraction(1, 4), 0.25),
        (Reading(), 2.5),
    ],
    ids=repr,
)
def test_numbers(value: Any, expected: float) -> None:
    assert number(value) == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "none"),
        ("1.5", "text"),
        (b"1.5", "text"),
        (np.str_("x"), "text"),
        ([1.0], "not_scalar"),
        ({"a": 1}, "not_scalar"),
        (np.array([1.0, 2.0]), "not_scalar"),
        (np.array([]), "not_scalar"),
        (torch.tensor([1.0, 2.0]), "not_scalar"),
        (10**400, "overflow"),
        (1j, "not_a_number"),
        (Broken(), "not_a_number"),
        (object(), "not_a_number"),
    ],
    ids=repr,
)
def test_what_is_no_number_says_why(value: Any, reason: str) -> None:
    with pytest.raises(NotANumber) as caught:
        number(value)
    assert caught.value.reason == reason
