"""The one ranking that the statement makes of two lists, against the formula: reciprocal ranks, added up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Hashable, Sequence
from typing import Any, TypeVar

import numpy as np
import pytest

from services.retrieval.database import Session, connect
from services.retrieval.nearest import DEPTH, EXACT, RRF_K, choose_index
from services.retrieval.writing import Corpus

LIMIT_S = 30.0
MODEL = "a model"
NUMBER = 60
WORDS = [f"{head}{tail}" for head in ("wa", "ka", "lo", "mi") for tail in ("ter", "gate", "rise", "fall", "weir")]
Item = TypeVar("Item", bound=Hashable)


def fused(*rankings: Sequence[Item]) -> list[Item]:
    """Best first; equals in the order of the first ranking that they are in."""
    scores: dict[Item, float] = {}
    for ranking in rankings:
        for rank, item in enumerate(ranking, start=1):
            scores[item] = scores.get(item, 0.0) + 1 / (RRF_K + rank)
    return sorted(scores, key=lambda item: -scores[item])


def test_both_lists_agreeing_outweighs_the_first_place_in_one_and_equals_go_by_distance() -> None:
    assert fused(["one", "both"], ["other", "both"]) == ["both", "one", "other"]
    assert fused(list("abcd"), list("wxyz")) == list("awbxcydz")
    assert fused(list("abcd"), list("badc")) == list("abcd")


@pytest.mark.parametrize("exact_up_to", [10_000, 0])
def test_the_statement_ranks_as_the_formula_does(postgres_url: str, exact_up_to: int) -> None:
    chance = random.Random(5)
    texts = [" ".join(chance.sample(WORDS, 3)) for _ in range(NUMBER)]
    made = np.random.default_rng(5).standard_normal((NUMBER, 384), dtype=np.float32)
    asked = np.random.default_rng(6).standard_normal((8, 384), dtype=np.float32)

    async def ids(session: Session, sql: str, *arguments: object, settings: Any = None) -> list[int]:
        rows = await session.fetch(LIMIT_S, sql, *arguments, tenant="ada", settings=settings)
        return [row["ordinal"] for row in rows]

    async def main() -> None:
        connection = await connect(postgres_url, timeout_s=LIMIT_S, application="test")
        try:
            await Corpus(connection, "ada").put(
                "a.md", root="r", title="t", content_hash="h", texts=texts, vectors=made, model=MODEL
            )
            await connection.execute("ANALYZE")
            session = Session(connection)
            mixed = 0
            for number, vector in enumerate(asked):
                query, top_k = " ".join(chance.sample(WORDS, 2)), 3 + number
                near = await ids(session, EXACT, "ada", vector, DEPTH, MODEL)
                worded = await ids(session, "SELECT ordinal FROM weir_search_words($1, $2)", query, DEPTH)
                chosen = choose_index(NUMBER, DEPTH, exact_up_to=exact_up_to, words=True)
                given = ("ada", vector, DEPTH, MODEL, query, top_k)
                both = await ids(session, chosen.sql, *given, settings=chosen.settings)
                assert both == fused(near, worded)[:top_k]
                mixed += both not in (near[:top_k], worded[:top_k])
                rows = await session.fetch(LIMIT_S, chosen.sql, *given, tenant="ada", settings=chosen.settings)
                assert {row["near"] for row in rows} == {DEPTH}
            assert mixed  # or the two lists would say the same, and any ranking would do
        finally:
            await connection.close()

    asyncio.run(main())
