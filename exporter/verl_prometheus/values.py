"""What verl may log as a value, as a float."""

from __future__ import annotations


class NotANumber(ValueError):
    """A logged value that has no place in a time series; `reason` is one of a few words, fit for a label."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def number(value: object) -> float:
    """`value` as a float: Python, NumPy and torch scalars, one-element arrays, bools, anything with __float__.

    Raises `NotANumber` with reason none, text, not_scalar, overflow or not_a_number.
    """
    try:
        if not isinstance(value, (float, int)) and hasattr(value, "item"):
            value = value.item()
    except Exception as error:  # NumPy and torch refuse item() of several elements
        raise NotANumber("not_scalar") from error
    if value is None:
        raise NotANumber("none")
    if isinstance(value, (str, bytes, bytearray)):
        raise NotANumber("text")
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        raise NotANumber("not_scalar")
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError as error:
        raise NotANumber("overflow") from error
    except Exception as error:
        raise NotANumber("not_a_number") from error
