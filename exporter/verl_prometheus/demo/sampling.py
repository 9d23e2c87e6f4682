"""Autoregressive sampling in plain torch: the engine of the CPU rollout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Request:
    """One prompt (token ids), its temperature (0 is greedy) and the most tokens to answer with."""

    prompt: list[int]
    temperature: float
    limit: int


@dataclass(frozen=True)
class Response:
    """The sampled token ids, end of sequence included, and the log-probability of each."""

    tokens: list[int]
    log_probs: list[float]
    stopped: bool  # at the end of the sequence; else at the limit


@torch.no_grad()  # type: ignore[untyped-decorator]
def sample(model: Any, requests: list[Request], pad: int, end: int) -> list[Response]:
    """Answer a batch of requests with a transformers causal language model; one response for each, in order."""
    width = max(len(request.prompt) for request in requests)
    step_ids = torch.tensor([[pad] * (width - len(request.prompt)) + request.prompt for request in requests])
    mask = torch.tensor([[0] * (width - len(request.prompt)) + [1] * len(request.prompt) for request in requests])
    temperature = torch.tensor([[request.temperature or 1.0] for request in requests])
    greedy = torch.tensor([request.temperature == 0 for request in requests])
    limit = torch.tensor([request.limit for request in requests])
    alive = torch.ones(len(requests), dtype=torch.bool)
    cache, tokens, log_probs = None, [], []
    while alive.any():
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -step_ids.shape[1] :]
        output = model(
            input_ids=step_ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        cache = output.past_key_values
        distribution = torch.log_softmax(output.logits[:, -1].float() / temperature, dim=-1)
        token = torch.where(greedy, distribution.argmax(-1), torch.multinomial(distribution.exp(), 1).squeeze(-1))
        tokens.append(token)
        log_probs.append(distribution.gather(-1, token[:, None]).squeeze(-1))
        alive &= (token != end) & (len(tokens) < limit)
        step_ids = token[:, None]
        mask = torch.cat([mask, torch.ones_like(step_ids)], dim=-1)
    return [
        _cut(row_tokens, row_log_probs, request.limit, end)
        for row_tokens, row_log_probs, request in zip(
            torch.stack(tokens, 1).tolist(), torch.stack(log_probs, 1).tolist(), requests, strict=True
        )
    ]


def _cut(tokens: list[int], log_probs: list[float], limit: int, end: int) -> Response:
    stopped = end in tokens[:limit]
    length = tokens.index(end) + 1 if stopped else limit
    return Response(tokens[:length], log_probs[:length], stopped)
