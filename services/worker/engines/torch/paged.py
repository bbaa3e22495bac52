"""Transformers' continuous batching, driven step by step. The only module that uses its private API.

Its manager runs a loop on a thread, polls when idle and blocks the caller when its queue is full, so it is not used. A
step here is

    prepare_next_batch()      schedule, allocate pages, fill the input tensors
    _generation_step(model)   one forward pass over the tokens of all, packed into one row
    update_batch()            store each new token, free the finished requests

The version is pinned, and `tests/real/torch/test_paged.py` checks the private names. Pages of a common prefix are not
shared: the cache would evict whole requests when it runs short, and prefill time would leak what another tenant has
asked. By default the cache takes 60 % of the machine, so it is sized explicitly. CUDA graphs are off: transformers uses
them only with flash attention.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessorList
from transformers.generation.continuous_batching.continuous_api import OutputRouter
from transformers.generation.continuous_batching.requests import RequestState, RequestStatus
from transformers.generation.continuous_batching.scheduler import FIFOScheduler
from transformers.generation.logits_process import LogitsProcessorList

from services.worker.engines.torch.sampling import Row, TokenSampling, perturbed

GREEDY = TokenSampling(temperature=0.0, top_p=1.0, seed=0)


class CacheExhausted(Exception):
    """There is no page for a running sequence. Happens only if a model's layers share memory unevenly."""


@dataclass(eq=False)
class PagedRequest(RequestState):
    """A sequence as transformers keeps it. `request_id` names its pages and must be unique."""

    deadline: float = math.inf
    sampling: TokenSampling = GREEDY

    @property
    def unread_tokens(self) -> int:
        return len(self.remaining_prefill_tokens)

    @property
    def finished(self) -> bool:
        return bool(self._status == RequestStatus.FINISHED)


def paged_request(
    request_id: str, prompt: list[int], max_tokens: int, eos: tuple[int, ...], deadline: float, sampling: TokenSampling
) -> PagedRequest:
    """A request that is ready for prefill. `eos` are the tokens that end it."""
    request = PagedRequest(
        request_id=request_id,
        initial_tokens=prompt,
        max_new_tokens=max_tokens,
        eos_token_id=list(eos),
        deadline=deadline,
        sampling=sampling,
    )
    request.status = RequestStatus.PREFILLING
    return request


@dataclass(frozen=True, slots=True)
class Computed:
    """What a step computed. Finished requests are removed and their pages free."""

    batch_size: int
    prefill_tokens: int
    tokens: list[tuple[PagedRequest, int]] = field(default_factory=list)


class PagedBatch:
    """The running requests of one model and their memory: `pages` pages of `page_tokens` tokens."""

    def __init__(self, model: Any, *, slots: int, pages: int, page_tokens: int, step_tokens: int) -> None:
        if model.device.type == "cpu":
            _share_heads()
        manager = model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=page_tokens,
                num_blocks=pages,
                max_batch_tokens=step_tokens,
                max_requests_per_batch=slots,
                safety_margin=0.0,
                allow_block_sharing=False,
                auto_switch_to_flash=False,
                use_cuda_graph=False,
                use_async_batching=False,
                cpu_offload_space=0.0,
                seed=0,
            ),
        )
        manager.logit_processor = _Sampler()
        manager.output_router = _NoOutput()
        self._model = model
        self._processor = manager._create_batch_processor()
        self._cache = self._processor.cache
        self._scheduler = _EarliestDeadlineFirst(self._cache, 0.0, slots)
        self._processor.scheduler = self._scheduler
        self._processor.offloading_manager.scheduler = self._scheduler
        # a stream of its own would not wait for the inputs, which are written on the current stream
        self._processor.inputs_and_outputs.compute_stream = None
        self._saved: list[_Saved] = []

    @property
    def running(self) -> int:
        return len(self._scheduler.active_requests)

    @property
    def used_share(self) -> float:
        return 1.0 - float(self._cache.compute_free_capacity())

    def add(self, request: PagedRequest) -> None:
        """Include the request from the next step on."""
        self._scheduler.active_requests[request.request_id] = request

    def remove(self, request: PagedRequest) -> None:
        """Free the request's pages now, in any state."""
        self._scheduler.finish_request(request.request_id)

    def step(self, prefill_chunk_tokens: int) -> Computed:
        """One token for each decoding request, and at most a chunk of the others' prompts.

        After an exception call `rewind`, or `remove` each request.
        """
        self._scheduler.prefill_chunk_tokens = prefill_chunk_tokens
        self._save()
        if not self._processor.prepare_next_batch():
            raise RuntimeError(f"no step could be formed from {self.running} running sequences")
        with torch.inference_mode():
            self._processor._generation_step(self._model)
        self._processor.update_batch()
        return self._computed({saved.request.request_id for saved in self._saved if saved.reads})

    def rewind(self) -> None:
        """Undo a failed step, so that it can be repeated. Pages written twice hold the same values."""
        for saved in self._saved:
            saved.restore()

    def _save(self) -> None:
        self._saved = [_Saved.of(request) for request in self._scheduler.active_requests.values()]

    def _computed(self, reading: set[str]) -> Computed:
        batch = self._processor.inputs_and_outputs.requests_in_batch
        read = sum(part.query_length for part in batch if part.state.request_id in reading)
        tokens = [(part.state, part.state.generated_tokens[-1]) for part in batch if part.has_new_token]
        return Computed(len(batch), read, tokens)

    def __repr__(self) -> str:
        return f"<PagedBatch {self.running} running, {self.used_share:.0%} of its pages used>"


def _share_heads() -> None:
    """Let attention read grouped heads in place, which only this environment variable switches on.

    By default transformers copies them to all heads. On a CPU, beside a long prompt, that doubles a step; a GPU is
    faster with it.
    """
    os.environ.setdefault("TRANSFORMERS_SDPA_FORCE_GQA", "1")  # noqa: TID251


class _EarliestDeadlineFirst(FIFOScheduler):
    """Schedules all decoding requests, then a chunk of prompts by earliest deadline."""

    prefill_chunk_tokens = 1

    def schedule_batch(self, token_budget: int, cache_budget: int) -> tuple[list[Any], bool, int, int]:
        writing = [each for each in self.active_requests.values() if each.status == RequestStatus.DECODING]
        reading = [each for each in self.active_requests.values() if each.status == RequestStatus.PREFILLING]
        reading.sort(key=_deadline)
        budget = min(token_budget, len(writing) + self.prefill_chunk_tokens)
        batch, starved, *rest = self._process_candidates(writing + reading, budget, cache_budget, set())
        if starved:  # transformers would now evict whole requests and prefill them again later
            raise CacheExhausted(f"no free page for one of {len(self.active_requests)} sequences")
        return (batch, *rest)


class _Sampler(ContinuousBatchingLogitsProcessorList):
    """Adds noise to the rows of sampled requests. Skipped in steps without any."""

    def __init__(self) -> None:
        super().__init__(LogitsProcessorList())
        self._rows: list[Row] = []

    def prepare_tensor_args(self, requests_in_batch: list[Any], arg_storage: Any) -> Any:
        writing = [part.state for part in requests_in_batch if part.has_new_token]
        self._rows = [
            Row(index, request.sampling, len(request.generated_tokens))
            for index, request in enumerate(writing)
            if request.sampling.temperature > 0
        ]
        self.do_processing = bool(self._rows)
        return arg_storage

    def __call__(self, input_ids: Any, scores: Any, logits_processor_args: Any) -> Any:
        return perturbed(scores, self._rows)


class _NoOutput(OutputRouter):
    """Discards results, which are read from the requests: the manager's queue is unbounded."""

    def deliver(self, output: Any) -> None: ...

    def deliver_batch(self, outputs: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class _Saved:
    """A request's state before a step. A step replaces these lists and never changes them."""

    request: PagedRequest
    position: int
    to_process: list[int]
    unread: list[int]
    status: Any

    @classmethod
    def of(cls, request: PagedRequest) -> _Saved:
        unread = request.remaining_prefill_tokens
        return cls(request, request.position_offset, request.tokens_to_process, unread, request._status)

    @property
    def reads(self) -> bool:
        return bool(self.status == RequestStatus.PREFILLING)

    def restore(self) -> None:
        self.request.position_offset = self.position
        self.request.tokens_to_process = self.to_process
        self.request.remaining_prefill_tokens = self.unread
        self.request._status = self.status


def _deadline(request: PagedRequest) -> float:
    return request.deadline
