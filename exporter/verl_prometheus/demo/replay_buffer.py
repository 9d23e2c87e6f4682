"""verl's replay buffers, polled more often: the default of 2 s is longer than a whole step of the tiny model.

Loaded as `trainer.v1.sampler.custom_sampler`: verl has no setting for the interval.
"""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

POLL_SECONDS = 0.05


def replay_buffer(trainer_mode: str, **settings: Any) -> ReplayBuffer:
    """The buffer verl itself would take for this trainer mode."""
    buffer = ReplayBuffer if trainer_mode == "sync" else ReplayBufferAsync
    return buffer(trainer_mode=trainer_mode, poll_interval=POLL_SECONDS, **settings)
