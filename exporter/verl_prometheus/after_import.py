"""Runs a function on a module when it is imported: patches that do not import what they patch."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

Patch = Callable[[ModuleType], object]


class _Finder(MetaPathFinder):
    """Lets the others find a module, and adds the patch to its loader."""

    def __init__(self) -> None:
        self.patches: dict[str, Patch] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patch = self.patches.pop(fullname, None)
        if patch is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_FINDER = _Finder()


def after_import(name: str, patch: Patch) -> None:
    """Call `patch` with the module `name` once it is imported; at once if it is."""
    if name in sys.modules:
        patch(sys.modules[name])
        return
    _FINDER.patches[name] = patch
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
