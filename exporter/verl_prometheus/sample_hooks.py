"""Shows `SAMPLES` the batches that verl makes its means of. Loaded with verl's modules that it patches, not before."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from verl_prometheus.phases import TRACKER
from verl_prometheus.plugin import MARK
from verl_prometheus.samples import LATENCY, RESPONSE_LENGTH, REWARD, SAMPLES


def patch_metrics(module: ModuleType) -> None:
    """In every RL trainer, see rewards and response lengths: the batch that `compute_data_metrics` gets."""
    response_info = module._compute_response_info

    def look(batch: Any, *_: Any, **__: Any) -> None:
        lengths = response_info(batch)["response_length"]
        rewards = batch.batch["token_level_rewards"].sum(-1)
        SAMPLES.add(RESPONSE_LENGTH, lengths.tolist())
        SAMPLES.add(REWARD, rewards[lengths > 0].tolist())  # as verl: aborted ones have no reward

    _look_before(module, "compute_data_metrics", look)


def patch_agent_loop(module: ModuleType) -> None:
    """In trainers before V1, see how long each trajectory took: what `_performance_metrics` summarises."""

    def look(_: Any, metrics: list[list[dict[str, float]]], *__: Any, **___: Any) -> None:
        phases = TRACKER.read().active
        if phases and "testing" not in phases:  # validation generates, too; before training it is in no phase
            SAMPLES.add(LATENCY, [one["generate_sequences"] for chunk in metrics for one in chunk])

    _look_before(module.AgentLoopManager, "_performance_metrics", look)


def patch_trainer_v1(module: ModuleType) -> None:
    """See how long each trajectory took: trainer V1 has it in its TransferQueue, and asks for other fields only."""

    def look(_: Any, batch: Any, *__: Any, **___: Any) -> None:
        keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding")]
        fields = module.tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["metrics"])
        SAMPLES.add(LATENCY, [one.get("generate_sequences", 0.0) for one in fields.pop("metrics").tolist()])

    _look_before(module.PPOTrainer, "_compute_metrics", look)


def _look_before(owner: Any, name: str, look: Callable[..., None]) -> None:
    """Call `look` with what the function is called with. Where that fails, it is not tried again in this process."""
    original = getattr(owner, name)
    if getattr(original, MARK, False):
        return
    sees = True

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        nonlocal sees
        if sees and SAMPLES.wanted:
            try:
                look(*args, **kwargs)
            except Exception as error:
                sees, SAMPLES.error = False, error
        return original(*args, **kwargs)

    setattr(function, MARK, True)
    setattr(owner, name, function)
