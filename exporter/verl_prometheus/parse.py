"""Values of settings, as verl's config (typed) or the environment (text) gives them.

What cannot be a value raises ValueError with a message that continues "the setting ...": "must be ...".
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from verl_prometheus import catalog
from verl_prometheus.alerts import ALERTS
from verl_prometheus.catalog import printable

AUTO = "auto"
RESERVED_LABELS = ("project", "experiment", "job", "instance", "le", "quantile")


def integer(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, bool) or not re.fullmatch(r"[+-]?\d+", str(value).strip()):
            raise ValueError(f"must be a whole number from {low} to {high}")
        if not low <= int(value) <= high:
            raise ValueError(f"must be from {low} to {high}")
        return int(value)

    return parse


def seconds(value: Any) -> float:
    try:
        number = -1.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < 1e6:
        raise ValueError("must be a number of seconds, 0 or more")
    return number


def timeout(value: Any) -> float:
    number = seconds(value)
    if number == 0:
        raise ValueError("must be more than 0 seconds")
    return number


def at_least(low: float) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        number = seconds(value)
        if number < low:
            raise ValueError(f"must be at least {low:g} seconds")
        return number

    return parse


def one_of(*choices: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        chosen = str(value).strip().lower()
        if chosen not in choices:
            raise ValueError(f"must be {' or '.join(choices)}")
        return chosen

    return parse


def text(value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError("must be text")
    return os.fspath(value)


def yes_or_no(value: Any) -> bool:
    return one_of("true", "false")(value) == "true"


def readable_file(value: Any) -> str:
    path = text(value)
    if path:
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise ValueError(f"must be a file that can be read ({error.strerror})") from None
    return path


def url(value: Any) -> str:
    url = text(value)
    if url:
        try:
            parts = urlsplit(url)
            port_is_wrong = parts.port == 0
        except ValueError:
            port_is_wrong = True
        if port_is_wrong or parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an http or https URL, such as http://prometheus:9090/api/v1/write")
        if parts.username is not None:
            raise ValueError("must not hold credentials: they belong into username and password_file")
    return url


def headers(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        value = _pairs(value, "X-Scope-OrgID=rl")
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of header names to values, such as {X-Scope-OrgID: rl}")
    headers = {str(name): str(text) for name, text in value.items()}
    for name, text in headers.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not re.fullmatch(r"[^\r\n\0]*", text):
            raise ValueError(f"cannot hold the header {name!r}")
    return headers


def journal(value: Any) -> str:
    """A path, `AUTO`, or "" for none."""
    given = str(value).lower() if isinstance(value, bool) else text(value)
    return {"true": AUTO, "false": ""}.get(given.lower(), given)


def labels(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        value = _pairs(value, "team=rl,cluster=a")
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of label names to values, such as {team: rl}")
    labels = {str(name): printable(str(text)) for name, text in value.items()}
    for name in labels:
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) or name.startswith("__"):
            raise ValueError(f"{name!r} is no label name: use letters, digits and underscores")
        if name in catalog.load().labels or name in RESERVED_LABELS:
            raise ValueError(f"the label {name!r} is the exporter's own: choose another name")
    return labels


def thresholds(value: Any) -> dict[str, float]:
    if isinstance(value, str):
        value = _pairs(value, "VerlKLExplosion=0.5,VerlEntropyCollapse=0.1")
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of alerts to numbers, such as {VerlKLExplosion: 0.5}")
    thresholds = {}
    for alert, limit in value.items():
        if alert not in ALERTS:
            raise ValueError(f"{alert!r} is no alert: did you mean {nearest(str(alert), ALERTS)}?")
        try:
            thresholds[str(alert)] = math.nan if isinstance(limit, bool) else float(limit)
        except (TypeError, ValueError):
            thresholds[str(alert)] = math.nan
        if not math.isfinite(thresholds[str(alert)]):
            raise ValueError(f"{alert} must be a number, not {limit!r}")
    return thresholds


def _pairs(text: str, example: str) -> dict[str, str]:
    pairs = [item.partition("=") for item in text.split(",") if item.strip()]
    if any(not equals for _, equals, _ in pairs):
        raise ValueError(f"must be name=value pairs separated by commas, such as {example}")
    return {name.strip(): value.strip() for name, _, value in pairs}


def nearest(name: str, names: Iterable[str]) -> str:
    """Which of `names` somebody who wrote `name` may have meant."""
    return difflib.get_close_matches(name, list(names), n=1, cutoff=0.0)[0]
