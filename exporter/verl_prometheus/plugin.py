"""All that touches verl: teaches its Tracking the name `prometheus`, and listens to its timers.

verl imports this module in every one of its processes (entry point `verl.plugins`, or VERL_USE_EXTERNAL_MODULES), so importing
it must cost nothing: no socket, no thread, and none of the rest of the package until a run asks for it. Classes are patched
in place, since trainers hold them by name; patching twice changes nothing.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

from verl_prometheus.phases import TRACKER, PhaseTracker

BACKEND = "prometheus"
TIMERS_MODULE = "verl.utils.profiler.performance"
MARK = "_verl_prometheus"
logger = logging.getLogger("verl_prometheus")


def install() -> None:
    """Patch verl. What cannot be patched is said once, and costs only what hangs on it."""
    try:
        from verl.utils.tracking import Tracking

        patch_tracking(Tracking)
    except Exception as error:
        logger.warning("verl-prometheus: this verl cannot be taught trainer.logger=[%s]: %r", BACKEND, error)
        return
    if TIMERS_MODULE in sys.modules:
        patch_timers(sys.modules[TIMERS_MODULE])
    elif not any(isinstance(finder, _TimersFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TimersFinder())


def patch_tracking(tracking: Any) -> None:
    """Make `tracking`, verl's Tracking class of any version since 0.6, accept, build and finish the backend."""
    if getattr(tracking, MARK, False):
        return
    original_init, original_del = tracking.__init__, tracking.__del__
    original_finish = getattr(tracking, "finish", None)  # since verl 0.9
    signature = inspect.signature(original_init)

    @functools.wraps(original_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        run = bound.arguments
        names = run["default_backend"]
        if BACKEND not in ([names] if isinstance(names, str) else names):
            original_init(self, *args, **kwargs)
            return
        from verl_prometheus.backend import PrometheusBackend
        from verl_prometheus.settings import Settings

        settings = Settings.load(run["config"])  # before the other backends make files and runs
        original_init(self, *args, **kwargs)
        trainer = sys._getframe(1).f_locals.get("self")
        target = getattr(trainer, "total_training_steps", None)
        self.logger[BACKEND] = PrometheusBackend(
            run["project_name"],
            run["experiment_name"],
            settings,
            run["config"],
            trainer="" if trainer is None else type(trainer).__name__,
            step_target=target if isinstance(target, int) else None,
        )

    def finish(self: Any, exit_code: int = 0) -> None:
        """Finalize the backends; verl before 0.9, which has no finish, leaves all but ours to garbage collection."""
        try:
            if original_finish is not None:
                original_finish(self, exit_code=exit_code)
        finally:
            _finish_backend(self, exit_code)

    def delete(self: Any) -> None:
        try:
            original_del(self)
        finally:
            _finish_backend(self, 0)

    tracking.supported_backend.append(BACKEND)
    tracking.__init__, tracking.__del__, tracking.finish = init, delete, finish
    setattr(tracking, MARK, True)


def _finish_backend(tracking: Any, exit_code: int) -> None:
    backend = getattr(tracking, "logger", {}).get(BACKEND)
    if backend is not None:
        backend.finish(exit_code=exit_code)


def patch_timers(module: ModuleType, tracker: PhaseTracker = TRACKER) -> None:
    """Make verl's timers tell `tracker` when a phase begins and ends; all of them go through `_timer`."""
    original: Callable[..., Iterator[None]] | None = getattr(module, "_timer", None)
    if original is None or not inspect.isgeneratorfunction(original):
        tracker.missing = f"{module.__name__} has no timer to listen to"
        return
    if getattr(original, MARK, False):
        return

    @functools.wraps(original)
    def timer(name: str, *args: Any, **kwargs: Any) -> Iterator[None]:
        phase = str(name).removeprefix("timing_s/")
        tracker.enter(phase)
        try:
            yield from original(name, *args, **kwargs)
        finally:
            tracker.leave(phase)

    setattr(timer, MARK, True)
    module._timer = timer  # type: ignore[attr-defined]


class _TimersFinder(MetaPathFinder):
    """Patches the timers' module when verl imports it; importing it here would load torch and more."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != TIMERS_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            patch_timers(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


install()
