"""The memory contract of the torch engine, and what it does when a device has less memory than it seemed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `torch`")
pytest.importorskip("transformers", reason="needs the extra `torch`")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.engine_executor import EngineDied
from services.worker.engines.torch.engine import Prompted, TorchEngine
from services.worker.engines.torch.paged import CacheExhausted
from services.worker.engines.torch.sizing import PAGE_TOKENS
from tests.real.torch.rig import Plain, ask, join, make_engine, prompt_of, run

SLOTS, KV_TOKENS = 4, 160

OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried to..."),
    MemoryError(),
]


@pytest.fixture(scope="module")
def small(tiny_folder: Path) -> TorchEngine:
    """Little memory, pages that do not fit it evenly."""
    return make_engine(tiny_folder, slots=SLOTS, kv_tokens=KV_TOKENS, prefill_chunk_tokens=24)


@pytest.fixture(scope="module")
def plain(tiny_folder: Path) -> Plain:
    return Plain(tiny_folder)


def sequence_of(number: int, prompt_tokens: int, max_tokens: int) -> Prompted:
    ids = tuple(100 + (number * 31 + place) % 500 for place in range(prompt_tokens))
    request = ask(f"s{number}", max_tokens=max_tokens, ignore_eos=True)
    return Prompted(request, prompt_tokens, unread_tokens=prompt_tokens, prompt_ids=ids)


@settings(max_examples=15)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 30)), min_size=1, max_size=9),
    drops=st.lists(st.tuples(st.integers(0, 20), st.integers(0, SLOTS - 1)), max_size=6),
)
def test_whatever_fits_the_books_runs_to_its_end(
    small: TorchEngine, shapes: list[tuple[int, int]], drops: list[tuple[int, int]]
) -> None:
    line = [sequence_of(number, *shape) for number, shape in enumerate(shapes)]
    running: list[Prompted] = []
    dropped = dict(drops)
    for number in range(10_000):
        while line and len(running) < SLOTS and reserved([*running, line[0]]) <= small.kv_tokens:
            running.append(line.pop(0))
            small.admit(running[-1])
        if not running:
            break
        step = small.step()
        assert not step.lost
        assert (small.kv_usage > 0) == (small.running > 0)
        assert small.kv_usage <= 1
        for sequence, reason in step.finished:
            assert (reason, sequence.completion_tokens) == ("length", sequence.request.max_tokens)
            running.remove(sequence)
        if number in dropped and dropped[number] < len(running):
            small.drop(running.pop(dropped[number]))
    assert not line
    assert small.kv_usage == 0.0


def reserved(sequences: list[Prompted]) -> int:
    return sum(sequence.reserved_tokens for sequence in sequences)


def test_the_bytes_that_it_reports_are_those_of_its_cache(small: TorchEngine) -> None:
    """transformers keeps one page more, for what belongs to no sequence."""
    held = vars(small._batch._cache).values()
    tensors = [each for value in held for each in (value if isinstance(value, list) else [value])]
    allocated = sum(each.nbytes for each in tensors if isinstance(each, torch.Tensor))
    page = small.memory.kv_bytes // (math.ceil(KV_TOKENS / PAGE_TOKENS) + SLOTS)
    assert allocated - 2 * page <= small.memory.kv_bytes <= allocated
    assert small.memory.gpu_bytes == 0


def test_the_books_filled_to_the_last_token_by_sequences_that_waste_half_a_page_each(small: TorchEngine) -> None:
    each = KV_TOKENS // SLOTS
    assert each % PAGE_TOKENS == PAGE_TOKENS // 2
    for number in range(SLOTS):
        small.admit(sequence_of(number, each // 2, each // 2))
    assert small._reserved_tokens == KV_TOKENS
    peak = 0.0
    while small.running:
        step = small.step()
        assert not step.lost
        peak = max(peak, small.kv_usage)
    assert peak * (KV_TOKENS / PAGE_TOKENS + SLOTS) > KV_TOKENS / PAGE_TOKENS, "more pages than the tokens alone need"


class Fails:
    """The model's forward, raising what it is told at the calls it is told."""

    def __init__(self, engine: TorchEngine, error: Exception, at: set[int]) -> None:
        self.calls = 0
        self._error, self._at = error, at
        self._forward = engine._batch._model.forward
        engine._batch._model.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls in self._at:
            raise self._error
        return self._forward(*args, **kwargs)


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["gpu", "cpu", "python"])
@pytest.mark.parametrize("call", [1, 2, 4])
def test_out_of_memory_loses_the_newest_half_and_the_others_go_on_where_they_were(
    tiny_folder: Path, plain: Plain, error: Exception, call: int
) -> None:
    engine = make_engine(tiny_folder, slots=8)
    prompts = {f"r{number}": prompt_of(10 + 7 * number, number) for number in range(4)}
    for id, prompt in prompts.items():
        join(engine, id, prompt=prompt, max_tokens=10)
    Fails(engine, error, at={call})
    record = run(engine)
    assert list(record.lost) == ["r2", "r3"]
    assert all("memory" in why for why in record.lost.values())
    assert engine.slots == 2
    assert engine.prefill_chunk_tokens == 16
    for id in ("r0", "r1"):
        assert record.pieces[id] == plain.pieces(prompts[id], 10)
    assert engine.kv_usage == 0.0
    assert engine._reserved_tokens == 0


def test_an_engine_that_runs_out_of_memory_again_and_again_ends_with_one_slot_and_lives(tiny_folder: Path) -> None:
    engine = make_engine(tiny_folder)
    fails = Fails(engine, torch.OutOfMemoryError("CUDA out of memory"), at=set(range(1, 5)))
    for number in range(8):
        join(engine, f"r{number}", max_tokens=3)
    record = run(engine)
    assert len(record.lost) == 8
    assert fails.calls == 4
    assert engine.slots == 1
    join(engine, "after", max_tokens=3)
    assert run(engine).reasons == {"after": "length"}


def test_any_other_fault_is_raised_and_leaves_an_empty_engine_that_works(tiny_folder: Path, plain: Plain) -> None:
    engine = make_engine(tiny_folder)
    Fails(engine, RuntimeError("mat1 and mat2 shapes cannot be multiplied"), at={2})
    join(engine, "a", prompt=prompt_of(50), max_tokens=5)
    join(engine, "b", max_tokens=5)
    engine.step()
    with pytest.raises(RuntimeError, match="mat1"):
        engine.step()
    assert (engine.running, engine.kv_usage, engine.slots) == (0, 0.0, 8)
    join(engine, "c", max_tokens=5)
    assert run(engine).pieces["c"] == plain.pieces("a queue", 5)


def test_a_gpu_that_failed_is_the_end_of_the_engine(tiny_folder: Path) -> None:
    engine = make_engine(tiny_folder)
    join(engine, "a")
    Fails(engine, torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), at={1})
    with pytest.raises(EngineDied, match="illegal memory access"):
        engine.step()


def test_a_fragmented_cache_loses_one_sequence_and_no_slot(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(tiny_folder)
    join(engine, "old", max_tokens=5)
    join(engine, "new", max_tokens=5)
    step = engine._batch.step
    monkeypatch.setattr(engine._batch, "step", raising(CacheExhausted("no page")))
    lost = engine.step().lost
    monkeypatch.setattr(engine._batch, "step", step)
    assert [sequence.id for sequence, _ in lost] == ["new"]
    assert engine.slots == 8
    assert run(engine).reasons == {"old": "length"}


def test_pages_that_run_out_are_noticed_before_transformers_gives_requests_up(small: TorchEngine) -> None:
    """The books would not allow it; this goes behind them, as a model with uneven layers might."""
    small._reserved_tokens = -10 * KV_TOKENS
    for number in range(SLOTS):
        small.admit(sequence_of(number, 60, 100))
    record = run(small)
    assert record.lost
    assert record.reasons
    assert set(record.lost) | set(record.reasons) == {f"s{number}" for number in range(SLOTS)}
    assert math.isclose(small.kv_usage, 0.0)
    small._reserved_tokens = 0


def raising(error: Exception) -> Any:
    def step(chunk: int) -> Any:
        raise error

    return step
