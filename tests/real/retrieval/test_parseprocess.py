"""A document of somebody's, read in a process that ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from services.retrieval import parseprocess
from services.retrieval.confine import ENVIRONMENT
from services.retrieval.documents import UnreadableDocument
from services.retrieval.minilm import MiniLM
from services.retrieval.parseprocess import LIMITS, ParseRequest, prepare
from services.retrieval.preparing import DocumentPreparer, PreparedDocument
from tests.processes import is_alive
from tests.retrieval.corpus import BREAD, RIVER
from tests.retrieval.test_documents import pdf


def ask(name: str, data: bytes) -> ParseRequest:
    return ParseRequest(name, data, "fingerprint", 40, 10)


def prepared(model: Path, question: ParseRequest) -> PreparedDocument:
    return asyncio.run(prepare(model, question))


async def newborn(others: list[psutil.Process]) -> psutil.Process:
    """The child that was not there before; the servers of other tests may be."""
    while True:
        for child in psutil.Process().children():
            if child not in others:
                return child
        await asyncio.sleep(0.005)


def test_it_gives_what_the_same_work_gives_here(model: Path) -> None:
    data = (RIVER + BREAD * 20).encode()
    here = DocumentPreparer(MiniLM(model).count_tokens, "fingerprint", 40, 10).prepare("a.md", data)
    assert prepared(model, ask("a.md", data)) == here
    assert len(here.texts) > 5


def test_what_cannot_be_read_says_why(model: Path) -> None:
    with pytest.raises(UnreadableDocument, match="contains NUL bytes: it is not text"):
        prepared(model, ask("a.txt", b"a\0b"))


def test_what_takes_too_long_is_ended_by_force_and_said_so(model: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            others = psutil.Process().children()
            task = asyncio.create_task(prepare(model, ask("a.md", BREAD.encode()), within_s=1.0))
            child = await newborn(others)
            child.suspend()  # as one that is lost in a parser: only force ends it
            with pytest.raises(UnreadableDocument, match="cannot be parsed within 1 s"):
                await task
            assert not is_alive(child)

    asyncio.run(main())


def test_a_caller_that_leaves_takes_its_process_along(model: Path) -> None:
    async def main() -> None:
        others = psutil.Process().children()
        task = asyncio.create_task(prepare(model, ask("a.md", BREAD.encode())))
        child = await newborn(others)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        assert not is_alive(child)

    asyncio.run(main())


def test_its_process_is_given_no_secret_no_descriptor_and_no_folder(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTGRES_URL", "postgresql://weir:secret@127.0.0.1/weir")

    async def main() -> None:
        async with asyncio.timeout(20):
            others = psutil.Process().children()
            task = asyncio.create_task(prepare(model, ask("a.md", BREAD.encode())))
            child = await newborn(others)
            while not any(word.endswith("confine.py") for word in child.cmdline()):
                await asyncio.sleep(0.001)
            child.suspend()
            assert child.environ() == ENVIRONMENT
            assert child.cwd() == "/"
            child.resume()
            await task

    asyncio.run(main())


def test_one_that_computes_for_too_long_is_killed_and_the_next_document_is_read(model: Path) -> None:
    endless = ask("a.md", BREAD.encode() * 20_000)
    with pytest.raises(UnreadableDocument, match="its parser failed"):
        asyncio.run(prepare(model, endless, within_s=120.0, limits={**LIMITS, "CPU": 1}))
    assert prepared(model, ask("a.md", BREAD.encode())).texts


def test_an_answer_without_an_end_is_not_kept(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parseprocess, "MAX_ANSWER_BYTES", 10)
    with pytest.raises(UnreadableDocument, match="its parser failed"):
        prepared(model, ask("a.md", BREAD.encode()))


@pytest.mark.parametrize("name", ["a.md", "a.txt", "a.rst", "a.html", "a.pdf"])
def test_every_kind_of_document_is_read_by_a_confined_process(model: Path, name: str) -> None:
    data = pdf("Weir holds a river") if name == "a.pdf" else b"Weir holds a river"
    assert "Weir holds a river" in prepared(model, ask(name, data)).texts[0]


def test_a_fault_of_a_parser_is_told_by_its_name(model: Path) -> None:
    with pytest.raises(UnreadableDocument, match=r"its parser failed \(Exception\)"):
        asyncio.run(prepare(model.parent, ask("a.md", b"text")))  # it has no tokenizer there
