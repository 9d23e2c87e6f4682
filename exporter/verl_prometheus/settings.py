"""Settings from `trainer.prometheus.*` and VERL_PROMETHEUS_*: the config wins over the environment, that over the default."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from verl_prometheus.alerts import ALERTS
from verl_prometheus.catalog import printable

ENVIRONMENT_PREFIX = "VERL_PROMETHEUS_"
DEFAULT_TARGETS_DIR = "/tmp/verl-prometheus/targets"
OWN_LABELS = frozenset(
    (
        "project",
        "experiment",
        "key",
        "stat",
        "phase",
        "state",
        "le",
        "quantile",
        "job",
        "instance",
        "run_id",
        "attempt",
        "trainer",
        "algorithm",
        "model",
        "node",
        "path",
        "value",
        "signal",
        "alert",
        "gpu",
        "uuid",
        "name",
        "driver",
        "role",
        "reason",
        "scope",
        "component",
        "tier",
        "data_source",
        "variable",
        "n",
        "layer",
        "activity",
        "reward",
    )
)


class SettingsError(ValueError):
    """A setting that cannot be used; the message names it and says what to do."""


def _integer(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, bool) or not re.fullmatch(r"[+-]?\d+", str(value).strip()):
            raise ValueError(f"must be a whole number from {low} to {high}")
        if not low <= int(value) <= high:
            raise ValueError(f"must be from {low} to {high}")
        return int(value)

    return parse


def _seconds(value: Any) -> float:
    try:
        seconds = -1.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds < 1e6:
        raise ValueError("must be a number of seconds, 0 or more")
    return seconds


def _text(value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError("must be text")
    return os.fspath(value)


def _labels(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        value = _pairs(value, "team=rl,cluster=a")
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of label names to values, such as {team: rl}")
    labels = {str(name): printable(str(text)) for name, text in value.items()}
    for name in labels:
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) or name.startswith("__"):
            raise ValueError(f"{name!r} is no label name: use letters, digits and underscores")
        if name in OWN_LABELS:
            raise ValueError(f"the label {name!r} is the exporter's own: choose another name")
    return labels


def _thresholds(value: Any) -> dict[str, float]:
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


def _how(parse: Callable[[Any], Any], what: str) -> dict[str, Any]:
    return {"parse": parse, "what": what}


@dataclass(frozen=True)
class Settings:
    """Each field is a setting: `+trainer.prometheus.<field>` or VERL_PROMETHEUS_<FIELD>."""

    port: int = field(
        default=9400, metadata=_how(_integer(0, 65535), "Port of the endpoint; if taken, the next free one. 0: any.")
    )
    address: str = field(
        default="",
        metadata=_how(_text, "Address to listen on and announce. Default: listen on all, announce the node's."),
    )
    targets_dir: str = field(
        default=DEFAULT_TARGETS_DIR, metadata=_how(_text, "Folder for the file_sd discovery file. Empty: none.")
    )
    labels: dict[str, str] = field(
        default_factory=dict, metadata=_how(_labels, "Labels for every series: {team: rl}, or team=rl,cluster=a.")
    )
    linger_seconds: float = field(
        default=30.0,
        metadata=_how(_seconds, "At the end, wait at most this long for a last scrape, if anybody has been scraping."),
    )
    window: int = field(
        default=20, metadata=_how(_integer(2, 10_000), "Steps in the rolling window of the health signals.")
    )
    baseline_steps: int = field(
        default=20, metadata=_how(_integer(2, 10_000), "Steps after warm-up that make the frozen baseline of a signal.")
    )
    warmup_steps: int = field(
        default=5, metadata=_how(_integer(0, 10_000), "Steps at the start that no baseline looks at.")
    )
    thresholds: dict[str, float] = field(
        default_factory=dict,
        metadata=_how(_thresholds, "The run's own alert thresholds: {VerlKLExplosion: 0.5}, or VerlKLExplosion=0.5."),
    )
    max_series: int = field(
        default=20_000, metadata=_how(_integer(1, 10_000_000), "Most series made from verl keys in one scrape.")
    )

    @classmethod
    def load(cls, config: Mapping[str, Any] | None, environment: Mapping[str, str] = os.environ) -> Settings:
        """Settings of a run with verl's `config` (nested mappings, or None). Raises `SettingsError`."""
        known = {one.name: one for one in fields(cls)}
        values: dict[str, Any] = {}
        for variable in sorted(environment):
            if variable.startswith(ENVIRONMENT_PREFIX):
                name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
                values[name] = _parse(known, name, variable, environment[variable], ENVIRONMENT_PREFIX, str.upper)
        for name, value in _section(config).items():
            name = str(name)
            values[name] = _parse(known, name, f"trainer.prometheus.{name}", value, "trainer.prometheus.", str)
        return cls(**values)


def _section(config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    trainer = config.get("trainer") if isinstance(config, Mapping) else None
    section = trainer.get("prometheus") if isinstance(trainer, Mapping) else None
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise SettingsError(
            f"trainer.prometheus is {section!r}: it must hold settings, such as trainer.prometheus.port=9400"
        )
    return section


def _parse(
    known: Mapping[str, Any], name: str, full_name: str, value: Any, prefix: str, spell: Callable[[str], str]
) -> Any:
    if name not in known:
        choices = ", ".join(spell(one) for one in known)
        raise SettingsError(
            f"{full_name} is no setting: did you mean {prefix}{spell(nearest(name, known))}? (There are: {choices}.)"
        )
    try:
        return known[name].metadata["parse"](value)
    except ValueError as error:
        raise SettingsError(f"{full_name} is {value!r}: it {error}.") from None
