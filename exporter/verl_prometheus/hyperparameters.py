"""What verl's config tells of a run: identity and the hyperparameters that people compare. An allow-list, so no secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from verl_prometheus.catalog import printable

LONGEST_VALUE = 200

COMPARED = (
    "algorithm.adv_estimator",
    "algorithm.gamma",
    "algorithm.lam",
    "algorithm.norm_adv_by_std_in_grpo",
    "algorithm.use_kl_in_reward",
    "algorithm.kl_penalty",
    "algorithm.kl_ctrl.type",
    "algorithm.kl_ctrl.kl_coef",
    "algorithm.kl_ctrl.target_kl",
    "algorithm.rollout_correction.rollout_is",
    "algorithm.rollout_correction.rollout_is_threshold",
    "algorithm.rollout_correction.rollout_rs",
    "algorithm.rollout_correction.bypass_mode",
    "data.train_batch_size",
    "data.max_prompt_length",
    "data.max_response_length",
    "data.max_length",
    "data.seed",
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.lora_rank",
    "actor_rollout_ref.actor.strategy",
    "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.actor.optim.lr_warmup_steps",
    "actor_rollout_ref.actor.optim.weight_decay",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.actor.ppo_epochs",
    "actor_rollout_ref.actor.clip_ratio",
    "actor_rollout_ref.actor.clip_ratio_low",
    "actor_rollout_ref.actor.clip_ratio_high",
    "actor_rollout_ref.actor.clip_ratio_c",
    "actor_rollout_ref.actor.grad_clip",
    "actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.actor.kl_loss_coef",
    "actor_rollout_ref.actor.kl_loss_type",
    "actor_rollout_ref.actor.entropy_coeff",
    "actor_rollout_ref.actor.loss_agg_mode",
    "actor_rollout_ref.actor.policy_loss.loss_mode",
    "actor_rollout_ref.rollout.name",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.temperature",
    "actor_rollout_ref.rollout.top_p",
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "actor_rollout_ref.rollout.gpu_memory_utilization",
    "critic.optim.lr",
    "critic.ppo_mini_batch_size",
    "critic.cliprange_value",
    "model.path",
    "model.lora_rank",
    "engine.strategy",
    "optim.lr",
    "optim.weight_decay",
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
    "trainer.total_epochs",
    "trainer.total_training_steps",
    "trainer.save_freq",
    "trainer.test_freq",
    "trainer.use_v1",
    "trainer.v1.trainer_mode",
)


def look_up(config: object, path: str) -> Any:
    """The value at a dotted path of nested mappings, or None."""
    for name in path.split("."):
        if not isinstance(config, Mapping):
            return None
        config = config.get(name)
    return config


def compared(config: object) -> dict[str, str]:
    """The allowed hyperparameters that the config sets, as text."""
    values = {path: look_up(config, path) for path in COMPARED}
    return {path: _text(value) for path, value in values.items() if isinstance(value, (str, int, float, bool))}


def algorithm(config: object) -> str:
    """verl's advantage estimator; sft for a config of verl's SFT trainers."""
    if look_up(config, "optim") is not None and look_up(config, "actor_rollout_ref") is None:
        return "sft"
    return _text(look_up(config, "algorithm.adv_estimator") or "")


def model(config: object) -> str:
    """The model's path, or hub name."""
    return _text(look_up(config, "actor_rollout_ref.model.path") or look_up(config, "model.path") or "")


def step_target(config: object) -> int | None:
    """The step at which training ends, where the config says so (verl writes it there for PPO)."""
    for path in ("trainer.total_training_steps", "actor_rollout_ref.actor.optim.total_training_steps"):
        value = look_up(config, path)
        if isinstance(value, int) and value > 0:
            return value
    return None


def response_limit(config: object) -> float | None:
    """The longest response that the config allows, in tokens."""
    for path in ("actor_rollout_ref.rollout.response_length", "data.max_response_length"):
        value = look_up(config, path)
        if isinstance(value, int) and value > 0:
            return float(value)
    return None


def _text(value: object) -> str:
    """A label value: short, and without the credentials that a URL may hold."""
    return printable(re.sub(r"(?<=://)[^/@\s]*@", "", str(value))[:LONGEST_VALUE])
