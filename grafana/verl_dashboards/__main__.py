"""Write every board's JSON and its drawing: `python -m verl_dashboards JSON_DIR DRAWINGS_DIR`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from verl_dashboards.board import render
from verl_dashboards.boards import BOARDS
from verl_dashboards.layout import draw


def main() -> None:
    boards, drawings = map(Path, sys.argv[1:])
    for board in BOARDS:
        text = render(board)
        boards.joinpath(f"{board.uid}.json").write_text(text, "utf-8")
        drawings.joinpath(f"{board.uid}.svg").write_text(draw(json.loads(text)), "utf-8")


if __name__ == "__main__":
    main()
