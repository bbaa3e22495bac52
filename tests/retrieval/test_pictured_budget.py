"""The timeline on the page about retrieval shows what a retrieval does, and the committed picture is the drawn one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from services.contracts.search import RetrieveRequest
from services.retrieval.search import Retrieval
from tests.retrieval.fakes import FakeCache, FakeEmbedder, FakeStore, metrics
from tests.virtual import run

pictures = pytest.importorskip("docs.pictures", reason="pictures are drawn with matplotlib")

HANGS_S = 3600.0


def test_the_times_in_the_picture_are_those_of_a_retrieval() -> None:
    budget = pictures.Budget.usual()
    embedder, store = FakeEmbedder(takes_s=0), FakeStore(takes_s=pictures.SEARCH_TAKES_MS / 1000)
    retrieval = Retrieval(
        embedder=embedder, store=store, cache=FakeCache(takes_s=0), metrics=metrics(),
        budget_s=budget.retrieval / 1000, ttl_s=0,
    )  # fmt: skip

    async def main() -> None:
        now = asyncio.get_running_loop().time
        for number in range(100):  # until it knows how long a search takes
            began = now()
            await retrieval.retrieve(RetrieveRequest(f"question {number}", "demo"))
        assert embedder.dues[-1] is not None
        assert 1000 * (embedder.dues[-1] - began) == pytest.approx(budget.embed_by, abs=0.5)
        store.takes_s, began = HANGS_S, now()
        await retrieval.retrieve(RetrieveRequest("the last question", "demo"))
        assert 1000 * (now() - began) == pytest.approx(budget.answer_by)

    run(main())


def test_the_committed_picture_is_the_one_that_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = pictures.FOLDER
    monkeypatch.setattr(pictures, "FOLDER", tmp_path / "pictures")
    pictures.main()
    for drawn in (tmp_path / "pictures").iterdir():
        assert drawn.read_text(encoding="utf-8") == (committed / drawn.name).read_text(encoding="utf-8"), drawn.name
