"""What real runs of verl logged."""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "fixtures"
RUNS = sorted(path.stem for path in FOLDER.glob("*.jsonl"))


def calls(run: str | Path) -> list[tuple[int, dict[str, float]]]:
    """(step, data) of each call of a run, by the name of a fixture or the path of a log of verl's `file` logger.

    That logger writes NaN as null.
    """
    path = run if isinstance(run, Path) else FOLDER / f"{run}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        (line["step"], {key: float("nan") if value is None else value for key, value in line["data"].items()})
        for line in lines
    ]
