"""The rollout backend "cpu": one Ray actor per replica that samples with plain torch.

verl loads it through VERL_USE_EXTERNAL_MODULES and takes it with `actor_rollout_ref.rollout.name=cpu`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import ray
import torch
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

from verl_prometheus.demo.sampling import Request, Response, sample

NAME = "cpu"
GATHER_SECONDS = 0.02  # the requests of one step arrive one by one


def _actor_name(replica_rank: int) -> str:
    return f"cpu_rollout_{replica_rank}"


class Server:
    """Holds the rollout's copy of the policy; batches the requests that arrive together."""

    def __init__(self, model_path: str, response_length: int, max_batch: int) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)
        self._model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(model_path), attn_implementation="eager", dtype=torch.float32
        ).eval()
        tokenizer = AutoTokenizer.from_pretrained(model_path)
        self._pad, self._end = tokenizer.pad_token_id, tokenizer.eos_token_id
        self._response_length = response_length
        self._max_batch = max_batch
        self._global_steps: int | None = None
        self._waiting: list[tuple[Request, asyncio.Future[Response]]] = []
        self._serving: asyncio.Task[None] | None = None

    async def load_weights(self, tensors: dict[str, torch.Tensor], global_steps: int | None) -> None:
        self._model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
        self._global_steps = global_steps

    async def generate(self, prompt_ids: list[int], sampling_params: dict[str, Any], **unused: Any) -> TokenOutput:
        request = Request(
            prompt=list(prompt_ids),
            temperature=float(sampling_params.get("temperature", 1.0)),
            limit=sampling_params.get("max_tokens") or self._response_length,
        )
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())
        response = await answer
        return TokenOutput(
            token_ids=response.tokens,
            log_probs=response.log_probs,
            stop_reason="completed" if response.stopped else "length",
            num_preempted=0,
            extra_fields={"global_steps": self._global_steps},
        )

    async def _serve(self) -> None:
        while self._waiting:
            await asyncio.sleep(GATHER_SECONDS)
            batch, self._waiting = self._waiting[: self._max_batch], self._waiting[self._max_batch :]
            requests = [request for request, _ in batch]
            try:
                responses = await asyncio.to_thread(sample, self._model, requests, self._pad, self._end)
            except Exception as error:
                for _, answer in batch:
                    answer.set_exception(error)
            else:
                for (_, answer), response in zip(batch, responses, strict=True):
                    answer.set_result(response)

    async def idle(self, **unused: Any) -> None:
        """Every step of the replica's life cycle: the CPU has no memory to hand over, and a batch ends by itself."""

    sleep = wake_up = clear_kv_cache = release_kv_cache = resume_kv_cache = idle
    abort_all_requests = resume_generation = start_profile = stop_profile = idle


class Replica(RolloutReplica):  # type: ignore[misc]
    """What the trainer launches and routes requests to."""

    async def launch_servers(self) -> None:
        server = (
            ray.remote(Server)
            .options(name=_actor_name(self.replica_rank), num_cpus=0, max_concurrency=self.max_concurrency)
            .remote(self.model_config.path, self.config.response_length, self.config.max_num_seqs)
        )
        await server.__ray_ready__.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = _actor_name(self.replica_rank)


class ServerAdapter(BaseRollout):  # type: ignore[misc]
    """Lives in the training worker: pushes the policy's weights to its replica through Ray."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        self._replica_rank = device_mesh["dp"].get_local_rank()

    async def resume(self, tags: list[str]) -> None:
        pass

    async def release(self) -> None:
        pass

    async def update_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None, **unused: Any
    ) -> None:
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in weights}
        server = ray.get_actor(_actor_name(self._replica_rank))
        await server.load_weights.remote(tensors, global_steps)


_ROLLOUT_REGISTRY[NAME, "async"] = f"{__name__}.{ServerAdapter.__name__}"  # verl has no function to add one
RolloutReplicaRegistry.register(NAME, lambda: Replica)
