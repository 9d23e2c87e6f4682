"""`verl-prometheus metrics`: where verl's keys go."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from verl_prometheus import catalog
from verl_prometheus.catalog import Catalog, Rule

HELP = "Show which metric each verl key becomes."


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        nargs="*",
        metavar="FILE.jsonl | KEY",
        help="logs of verl's `file` logger, or verl keys; without any, all of the catalogue",
    )
    parser.add_argument("--markdown", action="store_true", help="print docs/metrics.md")


def run(namespace: argparse.Namespace) -> int:
    shipped = catalog.load()
    if namespace.markdown:
        print(markdown(shipped), end="")
        return 0
    keys = list(_keys(namespace.source)) or [key for rule in shipped.rules for key in _examples(rule)]
    width = max(map(len, keys), default=0)
    for key in keys:
        series = shipped.series(key)
        notes = [f"×{series.scale:g}"] if series.scale != 1 else []
        notes += ["kept until the next validation"] if series.retained else []
        notes += ["no rule"] if not series.rule else []
        labels = ",".join(f"{name}={json.dumps(text, ensure_ascii=False)}" for name, text in series.labels)
        print(f"{key:<{width}}  {series.family}{{{labels}}}" + (f"  ({', '.join(notes)})" if notes else ""))
    return 0


def _keys(sources: Iterable[str]) -> Iterator[str]:
    """The keys named, and those in the files named, in order of appearance. Raises ValueError, OSError."""
    seen: dict[str, None] = {}
    for source in sources:
        if source.endswith((".jsonl", ".json")) or Path(source).is_file():
            seen.update(dict.fromkeys(_keys_of_file(Path(source))))
        else:
            seen[catalog.printable(source)] = None
    return iter(seen)


def _keys_of_file(path: Path) -> Iterator[str]:
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            yield from json.loads(line)["data"]
        except (ValueError, LookupError, TypeError) as error:
            message = f'{path}, line {number}: not a line of verl\'s `file` logger ({{"step": n, "data": {{...}}}})'
            raise ValueError(message) from error


def _examples(rule: Rule) -> tuple[str, ...]:
    return rule.example or (rule.source,)


def markdown(shipped: Catalog) -> str:
    """docs/metrics.md, from the catalogue."""
    lines = [
        "# Metrics",
        "",
        "Generated from `exporter/verl_prometheus/catalog.yaml` by `make docs`; do not edit.",
        "",
        "Every series carries `project` and `experiment`, and the labels of `trainer.prometheus.labels`.",
        "",
        "## The exporter's own families",
        "",
        "| family | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    for family in shipped.families.values():
        labels = ", ".join(f"`{name}`" for name in family.labels)
        lines.append(f"| `{family.name}` | {family.type} | {labels} | {_cell(family.help)} |")
    lines += [
        "",
        "## What verl logs",
        "",
        "One gauge per family, one series per verl key; each carries the label `key`, the verl key verbatim, so that",
        '`{key="critic/rewards/mean"}` finds it whatever its family is called.',
        "A key that no rule claims becomes `verl_` and the key with everything but letters, digits and `_` replaced by `_`",
        "(and `_value` after it where that name is taken).",
        "",
        "| verl key, for example | family | labels besides `key` | scale | meaning |",
        "|---|---|---|---|---|",
    ]
    for rule in shipped.rules:
        for key in _examples(rule):
            series = shipped.series(key)
            labels = ", ".join(f"`{name}={text}`" for name, text in series.labels if name != "key")
            scale = f"×{series.scale:g}" if series.scale != 1 else ""
            kept = " Kept until the next validation." if series.retained else ""
            lines.append(f"| `{key}` | `{series.family}` | {labels} | {scale} | {_cell(series.help)}{kept} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
