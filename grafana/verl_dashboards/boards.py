"""The boards, in order of reading."""

from __future__ import annotations

from verl_dashboards import compare, engines, gpus, overview, timing, training
from verl_dashboards.board import Board

BOARDS: tuple[Board, ...] = (
    overview.BOARD,
    training.BOARD,
    timing.BOARD,
    gpus.BOARD,
    compare.BOARD,
    engines.BOARD,
)
