"""What the boards take from the shipped Prometheus rules: the names of the alerts."""

from __future__ import annotations

from pathlib import Path

import yaml

FOLDER = Path(__file__).parents[2] / "prometheus" / "rules"


def alert_names() -> list[str]:
    """Every alert, in alphabetical order."""
    groups = [group for path in sorted(FOLDER.glob("*.yml")) for group in yaml.safe_load(path.read_text())["groups"]]
    return sorted({rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule})
