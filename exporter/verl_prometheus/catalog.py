"""Where a verl key goes: which family, labels, unit and help. The rules are data, in catalog.yaml."""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

PREFIX = "verl_"
RESERVED_SUFFIXES = ("_bucket", "_count", "_sum", "_created", "_total", "_info")
CACHED_KEYS = 50_000


@dataclass(frozen=True, slots=True)
class Family:
    """One of the exporter's own families, as promised to its users."""

    name: str
    type: str
    help: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """What one verl key becomes. The exported value is the logged one times `scale`."""

    family: str
    labels: tuple[tuple[str, str], ...]  # without project and experiment; `key` last
    help: str
    scale: float
    retained: bool
    rule: str  # the rule's key or pattern; "" if none claimed the key

    def label(self, name: str) -> str | None:
        return dict(self.labels).get(name)


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of `keys` in catalog.yaml, which describes the fields."""

    pattern: re.Pattern[str]
    source: str
    family: str
    help: str
    scale: float = 1.0
    retained: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    example: tuple[str, ...] = ()

    def series(self, key: str) -> Series | None:
        match = self.pattern.fullmatch(key)
        if match is None:
            return None
        groups = {name: text for name, text in match.groupdict().items() if text is not None}
        labels = {name: text for name, text in groups.items() if not name.startswith("_")}
        labels.update({name: template.format(**groups) for name, template in self.labels.items()})
        labels["key"] = key
        return Series(
            family=PREFIX + sanitise(self.family.format(**groups)),
            labels=tuple(labels.items()),
            help=self.help.format(**groups),
            scale=self.scale,
            retained=self.retained,
            rule=self.source,
        )


def sanitise(text: str) -> str:
    """`text` as the tail of a metric name: all but ASCII letters, digits and underscores become underscores."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", text)


def printable(key: str) -> str:
    """`key` as valid UTF-8: lone surrogates, which no exposition can carry, become U+FFFD and their code.

    U+FFFD itself is written the same way, so that two keys never become one.
    """
    return re.sub("[\ud800-\udfff\ufffd]", lambda match: f"\ufffd{ord(match.group()):x}", key)


class Catalog:
    """Maps verl keys to series; the mapping of a key never changes, so it is cached."""

    def __init__(self, families: Mapping[str, Family], rules: tuple[Rule, ...]) -> None:
        self.families = families
        self.rules = rules
        self._literal = {rule.source: rule for rule in rules if rule.pattern.pattern == re.escape(rule.source)}
        self._patterns = tuple(rule for rule in rules if rule.source not in self._literal)
        self.series = functools.lru_cache(CACHED_KEYS)(self._series)

    @property
    def labels(self) -> frozenset[str]:
        """Every label that a series may have, besides those of the run."""
        own = {label for family in self.families.values() for label in family.labels}
        groups = {group for rule in self.rules for group in rule.pattern.groupindex if not group.startswith("_")}
        return frozenset(own | groups | {"key"})

    def _series(self, key: str) -> Series:
        """The series of a verl key (`printable`); total: every one has a series, and no two share one."""
        candidates = (self._literal[key],) if key in self._literal else self._patterns
        series = next((series for rule in candidates if (series := rule.series(key)) is not None), None)
        if series is None:
            name = PREFIX + (sanitise(key) or "unnamed")
            series = Series(name, (("key", key),), f"verl key {key!r}, which no rule claims.", 1.0, False, "")
        if self._clashes(series.family):
            series = replace(series, family=f"{series.family}_value")
        return series

    def _clashes(self, name: str) -> bool:
        """Whether a gauge of that name would meet one of the exporter's own families or a sample of one."""
        return name in self.families or f"{name}_total" in self.families or name.endswith(RESERVED_SUFFIXES)


@functools.cache
def load() -> Catalog:
    """The catalogue that ships with the package."""
    text = importlib.resources.files(__package__).joinpath("catalog.yaml").read_text("utf-8")
    document: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    families = {
        name: Family(name, labels=tuple(entry.pop("labels", ())), **entry)
        for name, entry in document["families"].items()
    }
    return Catalog(families, tuple(_rule(entry) for entry in document["keys"]))


def _rule(entry: dict[str, Any]) -> Rule:
    entry = dict(entry)
    literal = entry.pop("key", None)
    source = literal if literal is not None else entry.pop("pattern")
    family = entry.pop("family", None) or sanitise(source)
    pattern = re.compile(re.escape(source) if literal is not None else source, re.DOTALL)
    example = tuple(entry.pop("example", ()))
    return Rule(pattern=pattern, source=source, family=family, example=example, **entry)
