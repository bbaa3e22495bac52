"""The embedder's line, in virtual time: bounded, fair to queries, and never at work for somebody who has gone."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
import pytest

from services.retrieval.embedder import (
    MAX_PASS,
    WARM_PASSES,
    WARM_UP,
    EmbedderBusy,
    EmbedderFailed,
    EmbedderFull,
    QueuedEmbedder,
)
from services.retrieval.embedding_batcher import BYTES_PER_TOKEN, MAX_TEXT_TOKENS, PASS_TOKENS, estimate_tokens
from services.retrieval.minilm import Floats
from services.retrieval.modelprocess import ModelHello
from tests.retrieval.fakes import metrics
from tests.virtual import run

TOKEN_S = 0.0005  # what a token takes, in virtual time
TEXT_TOKENS = 16
ALONE_S = (PASS_TOKENS + TEXT_TOKENS) * TOKEN_S
FULL_S = (PASS_TOKENS + TEXT_TOKENS * MAX_PASS) * TOKEN_S


class FakeModel:
    """Embeds a text as its length, in time proportional to its tokens; remembers its passes."""

    def __init__(self) -> None:
        self.passes: list[list[str]] = []
        self.stopped = False
        self.hangs = False

    async def load(self) -> ModelHello:
        return ModelHello("fake", "fake-1")

    async def embed(self, texts: Sequence[str]) -> list[tuple[Floats, int]]:
        self.passes.append([text.strip() for text in texts])
        await asyncio.sleep(3600 if self.hangs else TOKEN_S * (PASS_TOKENS + sum(map(estimate_tokens, texts))))
        if "poison" in texts:
            raise ValueError("cannot be tokenized")
        return [(np.array([len(text)], np.float32), 1) for text in texts]

    async def stop(self) -> None:
        self.stopped = True


Scenario = Callable[[QueuedEmbedder, FakeModel], Awaitable[None]]


def with_embedder(scenario: Scenario, *, queue_size: int = 100, model: FakeModel | None = None) -> FakeModel:
    model = model or FakeModel()

    async def main() -> None:
        embedder = QueuedEmbedder(model, queue_size=queue_size, metrics=metrics())
        await embedder.start()
        model.passes.clear()
        try:
            await scenario(embedder, model)
        finally:
            await embedder.stop()

    run(main())
    return model


def ask(embedder: QueuedEmbedder, text: str, within_s: float = math.inf) -> asyncio.Task[object]:
    due = asyncio.get_running_loop().time() + within_s
    return asyncio.create_task(embedder.embed([query(text)], due=due), name=text)


def query(text: str) -> str:
    return f"{text:<{TEXT_TOKENS * BYTES_PER_TOKEN}}"


async def behind_a_pass(embedder: QueuedEmbedder) -> asyncio.Task[object]:
    """Put the model to work, so that whatever comes next has to wait."""
    first = ask(embedder, "first")
    await asyncio.sleep(ALONE_S / 2)
    return first


def test_it_is_warm_only_after_passes_of_its_own() -> None:
    model = FakeModel()

    async def main() -> None:
        embedder = QueuedEmbedder(model, queue_size=1, metrics=metrics())
        assert not embedder.warm
        await embedder.start()
        assert embedder.warm
        assert (embedder.name, embedder.fingerprint) == ("fake", "fake-1")
        await embedder.stop()

    run(main())
    assert model.passes == [[WARM_UP]] * (1 + WARM_PASSES)
    assert model.stopped


def test_no_vector_is_ever_printed() -> None:
    """It takes a hundred times as long as to pass it on, and the event loop waits."""
    printed: list[int] = []

    class Vector(np.ndarray):  # type: ignore[type-arg]
        def __repr__(self) -> str:
            printed.append(self.size)
            return "a vector"

    class Model(FakeModel):
        async def embed(self, texts: Sequence[str]) -> list[tuple[Floats, int]]:
            return [(vector.view(Vector), tokens) for vector, tokens in await super().embed(texts)]

    async def scenario(embedder: QueuedEmbedder, model: FakeModel) -> None:
        await embedder.embed(["bulk"])
        await ask(embedder, "query", within_s=60.0)

    with_embedder(scenario, model=Model())
    assert printed == []


def test_vectors_come_back_in_order_with_the_tokens_that_were_read() -> None:
    async def scenario(embedder: QueuedEmbedder, model: FakeModel) -> None:
        embedded = await embedder.embed(["a", "bbb", "cc"])
        assert embedded.vectors.tolist() == [[1], [3], [2]]
        assert embedded.tokens == 3

    with_embedder(scenario)


def test_queries_that_wait_together_share_a_pass() -> None:
    async def scenario(embedder: QueuedEmbedder, model: FakeModel) -> None:
        await behind_a_pass(embedder)
        await asyncio.gather(*(ask(embedder, f"q{n}") for n in range(MAX_PASS + 1)))

    assert [len(texts) for texts in with_embedder(scenario).passes] == [1, MAX_PASS, 1]


def test_while_there_is_time_for_all_the_tightest_deadline_goes_first() -> None:
    async def scenario(embedder: QueuedEmbedder, model: FakeModel) -> None:
        await behind_a_pass(embedder)
        tight = [ask(embedder, f"tight{n}", within_s=0.08) for n in range(2)]
        lax = [ask(embedder, f"lax{n}", within_s=10) for n in range(MAX_PASS)]
        await asyncio.gather(*lax, *tight)

    assert with_embedder(scenario).passes[1][:2] == ["tight0", "tight1"]


def test_when_there_is_not_the_newest_go_first_and_the_others_are_told_before_they_are_late() -> None:
    told: list[tuple[str, float]] = []

    async def scenario(embedder: QueuedEmbedder, model: FakeModel) -> None:
        loop = asyncio.get_running_loop()
        await behind_a_pass(embedder)
        asked_at = loop.time()
        queries = [ask(embedder, f"q{n:02}", within_s=0.1) for n in range(20)]
        for each in queries:
            each.add_done_callback(lambda done: told.append((done.get_name(), loop.time() - asked_at)))
        results = await asyncio.gather(*queries, return_exceptions=True)
        assert {type(result) for result in results[:10]} == {EmbedderBusy}

    passes = with_embedder(scenario).passes
    assert sorted(passes[1]) == ["q16", "q17", "q18", "q19"]
    computed = {text for texts in passes for text in texts}
    late = [at for name, at in told if name not in computed]
    assert late, "some cannot be served"
    assert max(late) < 0.1, "and they hear of it while there is time for a fallback"
    assert all(at <= 0.1 for _, at in told)


def test_nothing_is_computed_for_whoever_cannot_be_served_in_time() -> None:
    async def scenario(embedder: QueuedEmbedder, model: FakeModel) -> None:
        await behind_a_pass(embedder)
        with pytest.raises(EmbedderBusy):
            await embedder.embed([query("hopeless")], due=asyncio.get_running_loop().time() + ALONE_S)

    assert with_embedder(scenario).passes == [["first"]]


def test_a_pass_ends_before_the_tightest_deadline_in_it() -> None:
    async def scenario(embedder: QueuedEmbedder, model: FakeModel) -> None:
        await behind_a_pass(embedder)
        tight = ask(embedder, "tight", within_s=ALONE_S / 2 + 2 * ALONE_S)
        others = [ask(embedder, f"other{n}", within_s=10) for n in range(3)]
        await asyncio.gather(tight, *others)

    first, second, *_ = with_embedder(scenario).passes[1:]
    assert second, "the others had to wait for a pass of their own"
    assert "tight" in first
    assert len(first) < MAX_PASS


def test_goodput_stays_near_capacity_however_many_ask() -> None:
    def served(clients: int) -> int:
        """How many answers come within their budget in five seconds, each client asking again at once."""
        count = 0

        async def scenario(embedder: QueuedEmbedder, model: FakeModel) -> None:
            loop = asyncio.get_running_loop()
            end = loop.time() + 5

            async def client() -> None:
                nonlocal count
                while (due := loop.time() + 0.1) < end:
                    try:
                        await embedder.embed([query("?")], due=due)
                        count += loop.time() <= due
                    except EmbedderBusy:
                        await asyncio.sleep(0.001)

            await asyncio.gather(*(client() for _ in range(clients)))

        model = with_embedder(scenario)
        assert count >= 0.98 * sum(map(len, model.passes)), "what was computed came in time"
        return count

    max_texts = 5 / FULL_S * MAX_PASS
    assert served(4) > 0.9 * max_texts
    assert served(16) > 0.9 * max_texts
    assert served(64) > 0.9 * max_texts


def test_an_idle_model_is_tried_even_if_it_seems_too_slow_and_two_passes_mend_its_pace() -> None:
    async def scenario(embedder: QueuedEmbedder, model: FakeModel) -> None:
        for _ in range(20):
            embedder._query_durations.record(10, 5.0)
        first, second = ask(embedder, "a", 0.1), ask(embedder, "b", 0.1)
        with pytest.raises(EmbedderBusy):
            await second
        await first
        await ask(embedder, "again", 0.1)
        await asyncio.gather(ask(embedder, "a", 0.1), ask(embedder, "b", 0.1))

    with_embedder(scenario)


def test_the_first_question_after_the_start_is_tried_however_slow_the_start_was() -> None:
    class SlowAtFirst(FakeModel):
        """Three times a question's patience for each warm-up pass, while everything else starts as well."""

        async def embed(self, texts: Sequence[str]) -> list[tuple[Floats, int]]:
            await asyncio.sleep(0.3 if texts == [WARM_UP] else 0)
            return await super().embed(texts)

    async def scenario(embedder: QueuedEmbedder, model: FakeModel) -> None:
        await ask(embedder, "first", 0.1)
        await ask(embedder, "second", 0.1)
        await asyncio.gather(ask(embedder, "third", 0.1), ask(embedder, "fourth", 0.1))

    with_embedder(scenario, model=SlowAtFirst())


def test_one_slow_pass_at_the_start_is_not_taken_for_the_pace() -> None:
    class OneSlow(FakeModel):
        async def embed(self, texts: Sequence[str]) -> list[tuple[Floats, int]]:
            await asyncio.sleep(0.3 if len(self.passes) == 1 else 0)
            return await super().embed(texts)

    async def scenario(embedder: QueuedEmbedder, model: FakeModel) -> None:
        await asyncio.gather(ask(embedder, "first", 0.1), ask(embedder, "second", 0.1))

    with_embedder(scenario, model=OneSlow())


def test_a_question_behind_the_first_long_text_is_told_at_once_that_there_is_no_time() -> None:
    async def scenario(embedder: QueuedEmbedder, model: FakeModel) -> None:
        bulk = asyncio.create_task(embedder.embed(["long" * MAX_TEXT_TOKENS]))
        await asyncio.sleep(0.01)
        asked_at = asyncio.get_running_loop().time()
        with pytest.raises(EmbedderBusy):
            await embedder.embed([query("?")], due=asked_at + 0.1)
        assert asyncio.get_running_loop().time() == asked_at
        await bulk

    with_embedder(scenario)


def test_bulk_work_however_slow_does_not_keep_questions_out() -> None:
    class SlowWithLongTexts(FakeModel):
        """Ten times as long for each token of a long text: what an ingest beside it, or a long text, can do."""

        async def embed(self, texts: Sequence[str]) -> list[tuple[Floats, int]]:
            await asyncio.sleep(10 * MAX_TEXT_TOKENS * TOKEN_S if len(texts[0]) > 500 else 0)
            return await super().embed(texts)

    async def scenario(embedder: QueuedEmbedder, model: FakeModel) -> None:
        await embedder.embed(["long" * MAX_TEXT_TOKENS] * 256)
        await asyncio.gather(*(ask(embedder, f"q{n}", 0.1) for n in range(MAX_PASS)))
        bulk = asyncio.create_task(embedder.embed(["long" * MAX_TEXT_TOKENS]))
        await asyncio.sleep(0.01)
        with pytest.raises(EmbedderBusy):  # it is known by now how long such a pass lasts
            await embedder.embed([query("behind it")], due=asyncio.get_running_loop().time() + 0.1)
        await bulk

    with_embedder(scenario, model=SlowWithLongTexts(), queue_size=300)


def test_a_query_goes_before_bulk_work_that_came_first_and_waits_for_one_text_of_it() -> None:
    async def scenario(embedder: QueuedEmbedder, model: FakeModel) -> None:
        bulk = asyncio.create_task(embedder.embed(["bulk"] * 3))
        await asyncio.sleep(TOKEN_S)
        await asyncio.gather(ask(embedder, "query"), bulk)

    assert with_embedder(scenario).passes == [["bulk"], ["query"], ["bulk"], ["bulk"]]


@pytest.mark.parametrize("due", [None, math.inf])
def test_whoever_leaves_before_their_turn_is_not_embedded(due: float | None) -> None:
    async def scenario(embedder: QueuedEmbedder, model: FakeModel) -> None:
        await behind_a_pass(embedder)
        leaving = asyncio.create_task(embedder.embed(["leaving", "with luggage"], due=due))
        staying = asyncio.create_task(embedder.embed(["stays"], due=due))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait({leaving})
        assert embedder.waiting == 1
        await staying

    assert with_embedder(scenario).passes == [["first"], ["stays"]]


def test_a_full_line_refuses_at_once_and_whole() -> None:
    async def scenario(embedder: QueuedEmbedder, model: FakeModel) -> None:
        await behind_a_pass(embedder)
        waiting = asyncio.create_task(embedder.embed(["a", "b"]))
        await asyncio.sleep(0)
        with pytest.raises(EmbedderFull, match="2 texts are waiting to be embedded, 3 may"):
            await embedder.embed(["c", "d"])
        assert embedder.waiting == 2
        await waiting

    with_embedder(scenario, queue_size=3)


def test_a_text_that_breaks_the_model_fails_alone_and_the_line_goes_on() -> None:
    async def scenario(embedder: QueuedEmbedder, model: FakeModel) -> None:
        with pytest.raises(EmbedderFailed, match="cannot be tokenized"):
            await embedder.embed(["poison"], due=math.inf)
        assert (await embedder.embed(["fine"], due=math.inf)).tokens == 1

    with_embedder(scenario)


def test_those_who_wait_when_it_stops_are_let_go() -> None:
    async def scenario(embedder: QueuedEmbedder, model: FakeModel) -> None:
        model.hangs = True
        passing = await behind_a_pass(embedder)
        waiting = asyncio.create_task(embedder.embed(["late"]))
        await asyncio.sleep(0)
        await embedder.stop()
        await asyncio.wait({waiting, passing})
        assert waiting.cancelled()
        assert passing.cancelled()

    with_embedder(scenario)
