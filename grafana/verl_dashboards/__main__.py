"""Write every board's JSON into a folder: `python -m verl_dashboards DIR`."""

from __future__ import annotations

import sys
from pathlib import Path

from verl_dashboards.board import render
from verl_dashboards.boards import BOARDS


def main() -> None:
    folder = Path(sys.argv[1])
    for board in BOARDS:
        folder.joinpath(f"{board.uid}.json").write_text(render(board), "utf-8")


if __name__ == "__main__":
    main()
