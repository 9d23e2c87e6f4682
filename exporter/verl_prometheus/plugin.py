"""All that touches verl: teaches its Tracking the name `prometheus`, listens to its timers, sees its trainers end, and
its batches (`sample_hooks`).

verl imports this module in every one of its processes (entry point `verl.plugins`, or VERL_USE_EXTERNAL_MODULES), so
importing it must cost nothing: no socket, no thread, and none of the rest of the package until a run asks for it. Classes
are patched in place, since trainers hold them by name; patching twice changes nothing.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from verl_prometheus.after_import import after_import
from verl_prometheus.phases import TRACKER, PhaseTracker

BACKEND = "prometheus"
TIMERS_MODULE = "verl.utils.profiler.performance"
TRAINER_MODULE, TRAINER = "verl.trainer.ppo.ray_trainer", "RayPPOTrainer"
SAMPLES_IN = {  # module -> what patches it
    "verl.trainer.ppo.metric_utils": "patch_metrics",
    "verl.experimental.agent_loop.agent_loop": "patch_agent_loop",
    "verl.trainer.ppo.v1.trainer_base": "patch_trainer_v1",
}
MARK = "_verl_prometheus"  # on what is patched
_BACKENDS: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # by trainer
logger = logging.getLogger("verl_prometheus")


def install() -> None:
    """Patch verl. What cannot be patched is said once, and costs only what hangs on it."""
    try:
        from verl.utils.tracking import Tracking

        patch_tracking(Tracking)
    except Exception as error:
        logger.warning("verl-prometheus: this verl cannot be taught trainer.logger=[%s]: %r", BACKEND, error)
        return
    after_import(TIMERS_MODULE, patch_timers)
    after_import(TRAINER_MODULE, lambda module: patch_trainer(getattr(module, TRAINER, None)))
    for name in SAMPLES_IN:
        after_import(name, show_samples)


def _arguments(
    project_name: str, experiment_name: str, default_backend: Any = "console", config: Any = None, *_: Any, **__: Any
) -> tuple[str, str, list[str], Any]:
    """What Tracking is called with, in every version of verl so far, whoever else has wrapped it."""
    names = [default_backend] if isinstance(default_backend, str) else list(default_backend)
    return project_name, experiment_name, names, config


def patch_tracking(tracking: Any) -> None:
    """Make `tracking`, verl's Tracking class of any version since 0.6, accept, build and finish the backend."""
    if getattr(tracking, MARK, False):
        return
    original_init, original_del = tracking.__init__, tracking.__del__
    original_finish = getattr(tracking, "finish", None)  # since verl 0.9

    @functools.wraps(original_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        project, experiment, names, config = _arguments(*args, **kwargs)
        if BACKEND not in names:
            original_init(self, *args, **kwargs)
            return
        from verl_prometheus.backend import PrometheusBackend
        from verl_prometheus.settings import Settings

        settings = Settings.load(config)  # before the other backends make files and runs
        original_init(self, *args, **kwargs)
        trainer = sys._getframe(1).f_locals.get("self")
        target = getattr(trainer, "total_training_steps", None)
        backend = self.logger[BACKEND] = PrometheusBackend(
            project,
            experiment,
            settings,
            config,
            trainer="" if trainer is None else type(trainer).__name__,
            step_target=target if isinstance(target, int) else None,
        )
        with contextlib.suppress(TypeError):  # no trainer, or one of a kind that cannot be referred to
            _BACKENDS[trainer] = backend

    def finish(self: Any, exit_code: int = 0) -> None:
        """Finalize the backends; verl before 0.9, which has no finish, leaves all but ours to garbage collection."""
        try:
            if original_finish is not None:
                original_finish(self, exit_code=exit_code)
        finally:
            _finish(getattr(self, "logger", {}).get(BACKEND), exit_code)

    def delete(self: Any) -> None:
        try:
            original_del(self)
        finally:
            _finish(getattr(self, "logger", {}).get(BACKEND), 0)

    tracking.supported_backend.append(BACKEND)
    tracking.__init__, tracking.__del__, tracking.finish = init, delete, finish
    setattr(tracking, MARK, True)


def _finish(backend: Any, exit_code: int) -> None:
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


def patch_trainer(trainer: Any) -> None:
    """Finish the run when `fit` of this class, or of one that inherits from it, returns or raises.

    verl's trainers before V1 leave that to garbage collection, which comes late or never: Ray ends the process first.
    """
    if trainer is None:
        return
    original_hook = trainer.__init_subclass__

    def hook(cls: Any, /, **kwargs: Any) -> None:
        original_hook(**kwargs)
        _wrap_fit(cls)

    trainer.__init_subclass__ = classmethod(hook)
    _wrap_fit(trainer)


def show_samples(module: ModuleType) -> None:
    """Let the exporter see the batches that this module of verl makes means of."""
    try:
        from verl_prometheus import sample_hooks

        getattr(sample_hooks, SAMPLES_IN[module.__name__])(module)
    except Exception as error:
        logger.warning("verl-prometheus: no distributions over samples from %s: %r", module.__name__, error)


def _wrap_fit(trainer: Any) -> None:
    original = trainer.__dict__.get("fit")
    if original is None or getattr(original, MARK, False):
        return

    def finish(self: Any, exit_code: int) -> None:
        _finish(_BACKENDS.get(self), exit_code)

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = original(self, *args, **kwargs)
        except BaseException:
            finish(self, 1)
            raise
        finish(self, 0)
        return result

    @functools.wraps(original)
    async def async_fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = await original(self, *args, **kwargs)
        except BaseException:
            finish(self, 1)
            raise
        finish(self, 0)
        return result

    wrapped = async_fit if inspect.iscoroutinefunction(original) else fit
    setattr(wrapped, MARK, True)
    trainer.fit = wrapped


install()
