"""`verl-prometheus settings`: every setting, and what it is now."""

from __future__ import annotations

import argparse
import operator
import os
from collections.abc import Iterator
from typing import NamedTuple

from verl_prometheus.settings import CONFIG_PREFIX, ENVIRONMENT_PREFIX, Settings, known_settings

HELP = "Show every setting, with the value that the environment gives it; complains about wrong ones as a run would."


class Row(NamedTuple):
    name: str
    variable: str
    default: str
    now: str
    what: str


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--markdown", action="store_true", help="print docs/settings.md")


def run(namespace: argparse.Namespace) -> int:
    if namespace.markdown:
        print(markdown(), end="")
        return 0
    for row in rows(Settings.load(None, os.environ)):
        print(f"{row.name:<34} {row.now or '–':<36} {row.what}")
    return 0


def rows(settings: Settings) -> Iterator[Row]:
    defaults = Settings()
    for name, field in known_settings(Settings).items():
        read = operator.attrgetter(name)
        variable = ENVIRONMENT_PREFIX + name.replace(".", "_").upper()
        yield Row(CONFIG_PREFIX + name, variable, _text(read(defaults)), _text(read(settings)), field.metadata["what"])


def markdown() -> str:
    """docs/settings.md, from the fields of `Settings`."""
    lines = [
        "# Settings",
        "",
        "Generated from `exporter/verl_prometheus/settings.py` by `make docs`; do not edit.",
        "",
        "On verl's command line (`+` because verl does not know them: `+trainer.prometheus.port=9500`) or in the environment",
        "of the process that logs. The command line wins. A wrong or unknown one stops the run before it trains, and says",
        "what to do. `verl-prometheus settings` prints what the environment gives.",
        "",
        "| setting | environment | default | |",
        "|---|---|---|---|",
    ]
    for row in rows(Settings()):
        default = f"`{row.default}`" if row.default else ""
        lines.append(f"| `{row.name}` | `{row.variable}` | {default} | {row.what} |")
    return "\n".join(lines) + "\n"


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}={text}" for name, text in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)
