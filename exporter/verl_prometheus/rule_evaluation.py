"""Evaluates alert rules on recorded scrapes with promtool, Prometheus' own engine."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from verl_prometheus.virtual_scrapes import Scrape, Series, selector

CHUNK = 100  # evaluations that a query looks at: promtool limits the samples of a query to 10,000
_QUERY = (
    "{operator} by (alertname, severity) "
    '({operator}_over_time(timestamp(ALERTS{{alertstate="firing"}})[{range}s:{step}s]))'
)
# promtool prints what it got when it is told to expect nothing
_GOT = re.compile(r'{alertname="(\w+)", severity="(\w+)"} ([-+.\dE]+)')


class Firing(NamedTuple):
    """An alert and when it fired for the first and the last time, in seconds of the scrapes' clock."""

    alert: str
    severity: str
    first: float
    last: float


class Recording:
    """Scrapes at even intervals, from time 0 on, as promtool takes them."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self._number = 0
        self._series: dict[Series, list[str]] = {}
        self._seen: dict[Series, tuple[int, str]] = {}  # number of the last scrape that had it, and its value then
        self._runs: dict[Series, int] = {}

    @property
    def now(self) -> int:
        """When the next scrape is due."""
        return self._number * self.interval

    def add(self, scrape: Scrape) -> None:
        for series, value in scrape.items():
            text = _text(value)
            last = self._seen.get(series)
            if last is None:
                self._series[series] = [f"_x{self._number}"] if self._number else []
            elif last[0] == self._number - 1 and last[1] == text:
                self._runs[series] += 1
                self._seen[series] = self._number, text
                continue
            else:
                self._close(series, self._number)
            self._runs[series] = 0
            self._seen[series] = self._number, text
        self._number += 1

    def _close(self, series: Series, until: int) -> None:
        """Write the run of equal values that has ended, and the gap after it."""
        number, text = self._seen[series]
        words = self._series[series]
        words.append(_repeated(text, self._runs[series]))
        if gap := until - number - 1:
            words.append("stale" if gap == 1 else f"stale _x{gap - 1}")

    def input_series(self) -> list[dict[str, str]]:
        for series in self._series:
            self._close(series, self._number + 1)
        return [{"series": selector(one), "values": " ".join(words)} for one, words in self._series.items()]


def firing(promtool: Path, rules: Sequence[Path], recording: Recording) -> list[Firing]:
    """The alerts of the rule files that fire on a recording. Raises ValueError with promtool's words if it cannot tell."""
    chunk = CHUNK * recording.interval
    queries = [
        {
            "expr": _QUERY.format(operator=operator, range=chunk, step=recording.interval),
            "eval_time": f"{end}s",
            "exp_samples": [],
        }
        for end in range(chunk, recording.now + chunk, chunk)
        for operator in ("min", "max")
    ]
    interval = f"{recording.interval}s"
    test = {"interval": interval, "input_series": recording.input_series(), "promql_expr_test": queries}
    document = {
        "rule_files": [str(path.resolve()) for path in rules],
        "evaluation_interval": interval,
        "group_eval_order": evaluation_order(rules),
        "tests": [test],
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "replay.yml")
        file.write_text(json.dumps(document, ensure_ascii=False))  # JSON is YAML
        result = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)
    output = result.stdout + result.stderr
    found = _GOT.findall(output)
    if result.returncode and (not found or "err:" in output):
        raise ValueError(f"{promtool} cannot evaluate the rules: {output.strip()}")
    times: dict[tuple[str, str], list[float]] = {}
    for alert, severity, time in found:
        times.setdefault((alert, severity), []).append(float(time))
    return sorted((Firing(*alert, min(seen), max(seen)) for alert, seen in times.items()), key=lambda one: one[2:])


def evaluation_order(rules: Sequence[Path]) -> list[str]:
    """The groups of rule files, those that record before those that read what is recorded, as far as that goes."""
    groups = {group["name"]: group["rules"] for path in rules for group in yaml.safe_load(path.read_text())["groups"]}
    records = {name: {rule["record"] for rule in group if "record" in rule} for name, group in groups.items()}
    needs = {}
    for name, group in groups.items():
        text = "\n".join(rule["expr"] for rule in group)
        needs[name] = {other for other in groups if other != name and any(record in text for record in records[other])}
    order: list[str] = []
    while len(order) < len(groups):
        waiting = (name for name in groups if name not in order)
        order.append(min(waiting, key=lambda name: len(needs[name].difference(order))))
    return order


def _text(value: float) -> str:
    return repr(float(value)).replace("nan", "NaN").replace("inf", "Inf")


def _repeated(text: str, again: int) -> str:
    """A value and `again` more of it."""
    return f"{text}+0x{again}" if again and text[-1].isdigit() else " ".join([text] * (again + 1))
