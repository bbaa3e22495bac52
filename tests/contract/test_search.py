"""The store over a PostgreSQL: what a search finds, in which order, by which model; and the same from fake and real."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from loadtests.cluster.embedder import vector_of
from services.contracts.search import Passage
from services.retrieval.database import Session
from services.retrieval.pool import ConnectionPool
from services.retrieval.store import Store
from services.retrieval.writing import Corpus
from tests.contract.stages import DatabaseStage, FakeDatabase, RealDatabase
from tests.retrieval.corpus import as_service
from tests.retrieval.fakes import Lines

LIMIT_S = 30.0
MODEL, OTHER = "a model", "another model"
EXACTLY, BY_GRAPH = 10_000, 0
RIVER = ["A weir holds a river at its level.", "Sluice gates open when the water rises."]
BREAD = ["Knead the dough, let it rest for an hour.", "Bake it in a hot oven; EXACT_SEARCH_CHUNKS is no spice."]


class Searched:
    """A store, and a writer beside it."""

    def __init__(self, store: Store, writer: Any) -> None:
        self.store = store
        self.writer = writer

    async def put(self, tenant: str, doc_id: str, texts: list[str], *, model: str = MODEL) -> None:
        made = np.stack([vector_of(text) for text in texts])
        await Corpus(self.writer, tenant).put(
            doc_id, root="r", title="t", content_hash="h", texts=texts, vectors=made, model=model
        )

    async def find(
        self, tenant: str, text: str, top_k: int = 5, *, query: str = "", model: str = MODEL, effort: float = 1.0
    ) -> list[Passage]:
        due = asyncio.get_running_loop().time() + LIMIT_S
        found = await self.store.search(tenant, vector_of(text), top_k, due, model=model, query=query, effort=effort)
        return found.passages


def play(stage: DatabaseStage, scenario: Callable[[Searched], Awaitable[None]], exact_up_to: int = EXACTLY) -> None:
    async def session() -> Session:
        return Session(await stage.connect(stage.url, timeout_s=LIMIT_S, application="test"), pooled=True)

    async def main() -> None:
        lines = Lines()
        pool = ConnectionPool(session, size=2, max_waiting=8, log=lines.log, chance=random.Random(1))
        store = Store(pool, log=lines.log, exact_up_to=exact_up_to)
        writer = (await session()).connection
        await store.start()
        try:
            async with asyncio.timeout(LIMIT_S):
                while not store.reached:
                    await asyncio.sleep(0.01)
            await scenario(Searched(store, writer))
        finally:
            await store.stop()
            writer.terminate()
            await asyncio.sleep(0)
            lines.log.close()

    stage.run(main)


def ids(passages: list[Passage]) -> list[str]:
    return [passage.chunk_id for passage in passages]


@pytest.mark.parametrize("exact_up_to", [EXACTLY, BY_GRAPH])
def test_the_nearest_come_first_as_many_as_there_are_with_their_distances(
    database: DatabaseStage, exact_up_to: int
) -> None:
    async def scenario(searched: Searched) -> None:
        await searched.put("ada", "river.md", RIVER)
        await searched.put("ada", "bread.md", BREAD)
        found = await searched.find("ada", RIVER[1], 3)
        assert ids(found)[0] == "river.md#1"
        assert found[0].distance == pytest.approx(0, abs=1e-3)
        assert [each.distance for each in found] == sorted(each.distance for each in found)
        assert len(found) == 3
        assert len(await searched.find("ada", RIVER[1], 50)) == 4
        assert found[0].text == RIVER[1]

    play(database, scenario, exact_up_to)


def test_what_the_words_find_comes_with_what_the_meaning_does(database: DatabaseStage) -> None:
    async def scenario(searched: Searched) -> None:
        await searched.put("ada", "river.md", RIVER * 12)
        await searched.put("ada", "bread.md", BREAD)
        far = "A weir holds a river at its level."
        assert "bread.md#1" not in ids(await searched.find("ada", far, 5))
        assert "bread.md#1" in ids(await searched.find("ada", far, 5, query="what is exact_search_chunks?"))
        assert "bread.md#1" in ids(await searched.find("ada", far, 5, query="A hot OVEN."))
        assert "bread.md#1" not in ids(await searched.find("ada", far, 5, query="and is it no a in"))
        assert "bread.md#1" not in ids(await searched.find("ada", far, 5, query="a hot oven", effort=0.5))

    play(database, scenario)


def test_a_search_meets_only_vectors_of_its_model_and_rows_of_its_tenant(database: DatabaseStage) -> None:
    async def scenario(searched: Searched) -> None:
        await searched.put("ada", "a.md", RIVER, model=OTHER)
        await searched.put("ben", "b.md", RIVER)
        for query in ("", "weir"):
            assert await searched.find("ada", RIVER[0], query=query) == []
            assert ids(await searched.find("ada", RIVER[0], query=query, model=OTHER))[0] == "a.md#0"
            assert ids(await searched.find("ben", RIVER[0], query=query))[0] == "b.md#0"
            assert await searched.find("nobody", RIVER[0], query=query) == []

    play(database, scenario)


def test_a_new_version_is_known_a_second_later_or_with_the_first_search(database: DatabaseStage) -> None:
    async def scenario(searched: Searched) -> None:
        await searched.put("ada", "a.md", RIVER)
        async with asyncio.timeout(LIMIT_S):
            while (first := searched.store.corpus_version("ada")) is None:
                await asyncio.sleep(0.05)
        await searched.put("ada", "b.md", BREAD)
        (found, *_) = await searched.find("ada", BREAD[0])
        second = searched.store.corpus_version("ada")
        assert second is not None
        assert first < second == found.version

    play(database, scenario)


WORDS = ["river", "weir", "bread", "oven", "the", "EXACT_SEARCH_CHUNKS", "gate", "x-weir-class", "naïve", "名前"]
CASES = 25
Case = tuple[list[tuple[str, list[str]]], list[tuple[str, int]]]


def drawn(chance: random.Random) -> Case:
    """Documents, and questions with how many passages each asks for."""

    def text() -> str:
        return " ".join(chance.choices(WORDS, k=chance.randint(1, 6)))

    documents = [(chance.choice("aBc"), [text() for _ in range(chance.randint(1, 5))]) for _ in range(5)]
    return documents, [(text(), chance.randint(1, 8)) for _ in range(3)]


def seen(stage: DatabaseStage, cases: list[Case]) -> list[list[Passage]]:
    """What is found of each question, by meaning and by both; each case is a tenant."""
    found: list[list[Passage]] = []

    async def scenario(searched: Searched) -> None:
        for number, (documents, questions) in enumerate(cases):
            for doc_id, texts in documents:
                await searched.put(f"tenant {number}", doc_id, texts)
            for text, top_k in questions:
                for query in ("", text):
                    found.append(await searched.find(f"tenant {number}", text, top_k, query=query))  # noqa: PERF401

    play(stage, scenario)
    return found


def test_the_fake_finds_what_postgresql_finds_in_the_same_order(postgres_url: str) -> None:
    """By any corpus and any question. Distances are equal as far as half precision goes, and so are places."""
    chance = random.Random(18)
    cases = [drawn(chance) for _ in range(CASES)]
    real, fake = seen(RealDatabase(as_service(postgres_url)), cases), seen(FakeDatabase(), cases)
    for ours, theirs in zip(fake, real, strict=True):
        assert [each.text for each in ours] == [each.text for each in theirs]
        assert ids(ours) == ids(theirs)
        assert [each.distance for each in ours] == pytest.approx([each.distance for each in theirs], abs=1e-5)
