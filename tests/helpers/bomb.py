"""For VERL_USE_EXTERNAL_MODULES: a trainer that fails after it has logged step BOMB_STEP."""

from __future__ import annotations

import os
from typing import Any

from verl.utils.tracking import Tracking

_log = Tracking.log


def log(self: Any, data: Any, step: int, backend: Any = None) -> None:
    _log(self, data, step, backend)
    if step >= int(os.environ["BOMB_STEP"]):
        raise RuntimeError("the trainer fails, as the test wants")


Tracking.log = log
