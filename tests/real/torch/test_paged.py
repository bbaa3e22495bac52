"""What the torch engine needs of transformers' private parts. Another version that fails here needs a new `paged`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `torch`")
pytest.importorskip("transformers", reason="needs the extra `torch`")

import transformers
from transformers.generation.continuous_batching.continuous_api import (
    ContinuousBatchingManager,
    ContinuousBatchProcessor,
    OutputRouter,
)
from transformers.generation.continuous_batching.requests import RequestState, RequestStatus
from transformers.generation.continuous_batching.scheduler import FIFOScheduler

from services.worker.engines.torch.paged import GREEDY, PagedBatch, paged_request
from services.worker.engines.torch.sampling import TokenSampling
from tests.real.torch.rig import make_engine


@pytest.fixture(scope="module")
def batch(tiny_folder: Path) -> PagedBatch:
    return make_engine(tiny_folder, slots=4, kv_tokens=256)._batch


def test_this_is_the_version_it_is_written_for() -> None:
    assert transformers.__version__ == "5.23.0"


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (ContinuousBatchingManager, {"_create_batch_processor"}),
        (ContinuousBatchProcessor, {"prepare_next_batch", "_generation_step", "update_batch"}),
        (FIFOScheduler, {"_process_candidates", "finish_request", "schedule_batch"}),
        (OutputRouter, {"deliver", "deliver_batch"}),
    ],
)
def test_the_methods_it_calls_or_replaces_are_there(owner: type, names: set[str]) -> None:
    assert names <= set(dir(owner))


def test_a_request_has_the_fields_that_are_kept_for_undoing_a_step() -> None:
    fields = {field.name for field in dataclasses.fields(RequestState)}
    assert {"position_offset", "tokens_to_process", "remaining_prefill_tokens", "_status"} <= fields
    assert {"generated_tokens", "eos_token_id", "max_new_tokens"} <= fields
    assert RequestStatus.PENDING < RequestStatus.PREFILLING < RequestStatus.DECODING < RequestStatus.FINISHED


def test_the_processor_uses_our_scheduler_sampler_and_router(batch: PagedBatch) -> None:
    processor = batch._processor
    assert processor.scheduler is processor.offloading_manager.scheduler is batch._scheduler
    assert (
        type(processor.logit_processor).__module__ == type(processor.output_router).__module__ == PagedBatch.__module__
    )
    assert processor.model_runner.logit_processor is processor.logit_processor
    assert not processor.use_async_batching
    assert processor.inputs_and_outputs.compute_stream is None
    assert not any(processor.cb_config.cuda_graph_booleans)
    assert not processor.cache.use_prefix_sharing


def test_nothing_is_left_in_queues_that_nobody_reads(batch: PagedBatch) -> None:
    run_out(batch, "a")
    assert batch._processor.output_router.output_queue.empty()
    assert batch.running == 0


def test_a_step_can_be_undone_and_taken_again(batch: PagedBatch) -> None:
    tokens = run_out(batch, "plain", undo=False)
    assert run_out(batch, "undone", undo=True) == tokens


def test_a_sampled_step_that_is_undone_chooses_the_same_again(batch: PagedBatch) -> None:
    sampling = TokenSampling(temperature=1.0, top_p=0.9, seed=4)
    tokens = run_out(batch, "plain", undo=False, sampling=sampling)
    assert run_out(batch, "undone", undo=True, sampling=sampling) == tokens


def test_pages_are_as_many_as_tokens_need(batch: PagedBatch) -> None:
    request = paged_request("p", list(range(5, 38)), 3, (), 0.0, GREEDY)  # 33 tokens: 3 pages of 16
    batch.add(request)
    batch.step(64)
    assert batch.used_share == pytest.approx(3 / (256 / 16 + 4))
    batch.remove(request)
    assert batch.used_share == 0.0


def run_out(batch: PagedBatch, id: str, *, undo: bool = False, sampling: TokenSampling = GREEDY) -> list[int]:
    """Its tokens; with `undo`, every step is begun, undone before its results, and taken again."""
    request = paged_request(id, list(range(5, 45)), 6, (), 0.0, sampling)
    batch.add(request)
    while not request.finished:
        if undo:
            batch._save()
            assert batch._processor.prepare_next_batch()
            batch._processor._generation_step(batch._model)
            batch.rewind()
        batch.step(16)
    return list(request.generated_tokens)
