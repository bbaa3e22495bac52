"""The embedder's line: bounded, fair to queries, deaf to those who have left, and beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
import pytest

from services.retrieval.embedder import MAX_PASS, WARM_UP, EmbedderFull, ThreadedEmbedder
from services.retrieval.minilm import Floats
from tests.retrieval.fakes import metrics


class FakeModel:
    """Embeds a text as its length; stops before each pass until `go` is set."""

    name, fingerprint = "fake", "fake-1"

    def __init__(self) -> None:
        self.passes: list[list[int]] = []
        self.go = threading.Event()
        self.running = threading.Event()
        self.threads: set[int] = set()
        self.go.set()

    def tokenize(self, text: str) -> list[int]:
        if text == "poison":
            raise ValueError("cannot be tokenized")
        return [len(text)]

    def embed(self, texts: Sequence[Sequence[int]]) -> Floats:
        self.running.set()
        assert self.go.wait(20)
        self.passes.append([ids[0] for ids in texts])
        self.threads.add(threading.get_ident())
        return np.array([[ids[0]] for ids in texts], np.float32)


def with_embedder(
    scenario: Callable[[ThreadedEmbedder, FakeModel], Awaitable[None]], *, queue_size: int = 100
) -> FakeModel:
    model = FakeModel()

    async def main() -> None:
        embedder = ThreadedEmbedder(lambda: model, threads=1, queue_size=queue_size, metrics=metrics())
        await embedder.start()
        model.passes.clear()
        try:
            await scenario(embedder, model)
        finally:
            model.go.set()
            await embedder.stop()

    asyncio.run(main())
    return model


async def behind_a_pass(embedder: ThreadedEmbedder, model: FakeModel) -> asyncio.Task[object]:
    """Hold the model in a pass, so that whatever comes next has to wait."""
    model.go.clear()
    model.running.clear()
    first: asyncio.Task[object] = asyncio.create_task(embedder.embed(["x"], urgent=True))
    while not model.running.is_set():
        await asyncio.sleep(0.001)
    return first


def test_it_is_warm_only_after_a_pass_of_its_own() -> None:
    model = FakeModel()

    async def main() -> None:
        embedder = ThreadedEmbedder(lambda: model, threads=1, queue_size=1, metrics=metrics())
        assert not embedder.warm
        await embedder.start()
        assert embedder.warm
        assert (embedder.name, embedder.fingerprint) == ("fake", "fake-1")
        await embedder.stop()

    asyncio.run(main())
    assert model.passes == [[len(WARM_UP)]]


def test_vectors_come_back_in_order_with_the_tokens_that_were_read() -> None:
    async def scenario(embedder: ThreadedEmbedder, model: FakeModel) -> None:
        embedded = await embedder.embed(["a", "bbb", "cc"], urgent=False)
        assert embedded.vectors.tolist() == [[1], [3], [2]]
        assert embedded.tokens == 3

    model = with_embedder(scenario)
    assert len(model.threads) == 1
    assert threading.get_ident() not in model.threads


def test_queries_that_wait_together_share_a_pass() -> None:
    async def scenario(embedder: ThreadedEmbedder, model: FakeModel) -> None:
        await behind_a_pass(embedder, model)
        waiting = [asyncio.create_task(embedder.embed(["q" * (2 + n)], urgent=True)) for n in range(MAX_PASS + 1)]
        await asyncio.sleep(0)
        model.go.set()
        assert [(await task).vectors[0, 0] for task in waiting] == [2 + n for n in range(MAX_PASS + 1)]

    assert [len(texts) for texts in with_embedder(scenario).passes] == [1, MAX_PASS, 1]


def test_of_queries_that_cannot_all_go_at_once_the_newest_go_first() -> None:
    async def scenario(embedder: ThreadedEmbedder, model: FakeModel) -> None:
        await behind_a_pass(embedder, model)
        waiting = [asyncio.create_task(embedder.embed(["q" * (2 + n)], urgent=True)) for n in range(MAX_PASS + 2)]
        await asyncio.sleep(0)
        model.go.set()
        await asyncio.gather(*waiting)

    passes = with_embedder(scenario).passes
    assert sorted(passes[2]) == [2, 3], "the oldest two"


def test_a_query_goes_before_bulk_work_that_came_first_and_waits_for_one_text_of_it() -> None:
    async def scenario(embedder: ThreadedEmbedder, model: FakeModel) -> None:
        await behind_a_pass(embedder, model)
        bulk = asyncio.create_task(embedder.embed(["bulk"] * 5, urgent=False))
        await asyncio.sleep(0)
        query = asyncio.create_task(embedder.embed(["q?"], urgent=True))
        await asyncio.sleep(0)
        model.go.set()
        await asyncio.gather(query, bulk)

    assert with_embedder(scenario).passes == [[1], [2], [4], [4], [4], [4], [4]]


def test_whoever_leaves_before_their_turn_is_not_embedded() -> None:
    async def scenario(embedder: ThreadedEmbedder, model: FakeModel) -> None:
        await behind_a_pass(embedder, model)
        leaving = asyncio.create_task(embedder.embed(["leaving"], urgent=True))
        staying = asyncio.create_task(embedder.embed(["stay"], urgent=True))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait({leaving})
        model.go.set()
        await staying

    assert with_embedder(scenario).passes == [[1], [4]]


def test_a_full_line_refuses_at_once_and_whole() -> None:
    async def scenario(embedder: ThreadedEmbedder, model: FakeModel) -> None:
        await behind_a_pass(embedder, model)
        waiting = asyncio.create_task(embedder.embed(["a", "b"], urgent=False))
        await asyncio.sleep(0)
        with pytest.raises(EmbedderFull, match="2 texts are waiting to be embedded, 3 may"):
            await embedder.embed(["c", "d"], urgent=False)
        assert embedder.waiting == 2
        model.go.set()
        await waiting

    with_embedder(scenario, queue_size=3)


def test_the_loop_turns_while_the_model_computes() -> None:
    async def scenario(embedder: ThreadedEmbedder, model: FakeModel) -> None:
        first = await behind_a_pass(embedder, model)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not first.done()
        model.go.set()
        await first

    with_embedder(scenario)


def test_a_text_that_breaks_the_model_fails_alone_and_the_line_goes_on() -> None:
    async def scenario(embedder: ThreadedEmbedder, model: FakeModel) -> None:
        with pytest.raises(ValueError, match="cannot be tokenized"):
            await embedder.embed(["poison"], urgent=True)
        assert (await embedder.embed(["fine"], urgent=True)).tokens == 1

    with_embedder(scenario)


def test_those_who_wait_when_it_stops_are_let_go() -> None:
    async def scenario(embedder: ThreadedEmbedder, model: FakeModel) -> None:
        await behind_a_pass(embedder, model)
        waiting = asyncio.create_task(embedder.embed(["late"], urgent=False))
        await asyncio.sleep(0)
        model.go.set()
        await embedder.stop()
        await asyncio.wait({waiting})
        assert waiting.cancelled()

    with_embedder(scenario)
