"""Ranking by vectors, by words, and by both: MRR@10, recall@5, and the cost of the words. See `METHOD`."""

from __future__ import annotations

import asyncio
import io
import itertools
import random
import statistics
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from loadtests.bench.search.embedder import Embedder
from loadtests.bench.tenant import Tenant, connected, database, indexes_made_at_once
from loadtests.bench.vectors import unit
from loadtests.paths import ROOT
from loadtests.report.figure import Figure
from loadtests.report.page import table
from loadtests.report.progress import Say
from loadtests.report.result import Block, Result
from services.retrieval.chunks import chunk
from services.retrieval.database import Session, connect
from services.retrieval.documents import parse
from services.retrieval.minilm import DIMENSIONS, Floats, MiniLM
from services.retrieval.nearest import DEPTH, choose_index
from services.retrieval.pool import ConnectionPool
from services.retrieval.store import Store
from services.retrieval.writing import Corpus
from services.runtime.log import Log

QUESTIONS = Path(__file__).with_name("hybrid.yaml")
DOCUMENTS = ROOT / "docs"
LOOKED_AT, FIRST = 10, 5
CHUNK_TOKENS, OVERLAP_TOKENS = 200, 30  # the defaults of the settings
TENANT, BIG, MADE_UP = "bench", "big", "made up"
LIMIT_S = 60.0
BY_WORDS = """
SELECT found.doc_id, chunks.text FROM weir_search_words($1, $2) AS found
JOIN chunks ON chunks.doc_id = found.doc_id AND chunks.ordinal = found.ordinal ORDER BY found.score DESC, 1, 2
"""
TOP_K, REPEATS, FIRST_LEFT_OUT = 5, 40, 10
ASKED = {
    "a name": "RETRIEVAL_BUDGET_MS",
    "a question": "How does the budget bound the time that a search may take when the database is slow?",
    "only common words": "the router may answer a request of a tenant within its time",
}
METHOD = """\
Hand-written questions about Weir's own documents (`loadtests/bench/search/hybrid.yaml`): natural ones, which mostly
avoid the words of their answer, and ones that ask for a name or a number. MRR is the mean of 1 / rank of the first
passage that answers, over the first {looked_at} passages; recall is the share of questions with such a passage among
the first {first}. There are {documents} documents of {chunks} chunks, and {questions} questions: one question is
{step:.1%} of its kind.
"""
COST = """\
Milliseconds of the server's processor time, the median of a search for {top_k} passages among {rows:,} chunks of one
tenant, with and without words, in turn over one connection. The texts are those of the documents, repeated.
"""


class Options(msgspec.Struct, frozen=True):
    rows: Annotated[int, msgspec.Meta(ge=1000, description="chunks of the tenant in the cost part")] = 20_000


QUICK = {"rows": 1000}


class Question(msgspec.Struct, frozen=True, rename={"documents": "in"}):
    """A question, and the text by which an answering passage is recognised."""

    asked: str
    documents: frozenset[str]
    has: str

    def answered(self, doc_id: str, text: str) -> bool:
        return doc_id in self.documents and self.has in text

    def place(self, passages: Sequence[tuple[str, str]]) -> int:
        """The rank, from 1, of the first (document, text) that answers it; 0 if none does."""
        answers = (number for number, passage in enumerate(passages, start=1) if self.answered(*passage))
        return next(answers, 0)


@dataclass
class Places:
    """The ranks of the answers to questions of one kind, under one way of ranking."""

    ranked_by: str
    kind: str
    places: list[int] = field(default_factory=list)

    @property
    def mrr(self) -> float:
        return sum(1 / place for place in self.places if place) / len(self.places)

    @property
    def recall(self) -> float:
        return sum(0 < place <= FIRST for place in self.places) / len(self.places)


@dataclass(frozen=True)
class Cost:
    """Milliseconds of the server's processor time: by vectors alone, and with words as well."""

    searched: str
    asked: str
    alone_ms: float
    both_ms: float

    @property
    def ratio(self) -> float:
        return self.both_ms / self.alone_ms


def read() -> dict[str, list[Question]]:
    return msgspec.yaml.decode(QUESTIONS.read_bytes(), type=dict[str, list[Question]])


def documents(model: MiniLM) -> dict[str, list[str]]:
    """The chunks of each document, as the ingester makes them."""
    found = {}
    for path in sorted(DOCUMENTS.rglob("*.md")):
        doc_id = path.relative_to(DOCUMENTS).as_posix()
        if not doc_id.startswith("results"):
            found[doc_id] = chunk(
                parse(path.name, path.read_bytes()).sections,
                model.count_tokens,
                max_tokens=CHUNK_TOKENS,
                overlap_tokens=OVERLAP_TOKENS,
            )
    return found


async def measure(options: Options, say: Say) -> Result:
    embedder, questions = Embedder(), read()
    corpus = documents(embedder.model)
    async with database() as (url, connection):
        await _ingest(connection, corpus, embedder)
        async with _searching(url, embedder, connection) as rank:
            places = await _ranked(questions, rank)
        say("all questions are ranked; next the cost of the words")
        spent = await costs(url, [text for texts in corpus.values() for text in texts], options.rows)
    sizes = (len(corpus), sum(map(len, corpus.values())), options.rows)
    return result(places, questions, spent, sizes, on=embedder.described)


async def _ingest(connection: Any, corpus: Mapping[str, Sequence[str]], embedder: Embedder) -> None:
    for doc_id, texts in corpus.items():
        await Corpus(connection, TENANT).put(
            doc_id, root="docs", title=doc_id, content_hash="", texts=texts, vectors=embedder(texts),
            model=embedder.model.fingerprint,
        )  # fmt: skip
    await connection.execute("ANALYZE")


class Ranking:
    """The passages for a question, as (document, text), in each way of ranking."""

    def __init__(self, store: Store, connection: Any, embedder: Embedder) -> None:
        self._store = store
        self._connection = connection
        self._embedder = embedder

    async def vectors(self, asked: str) -> list[tuple[str, str]]:
        return await self._search(asked, words="")

    async def both(self, asked: str) -> list[tuple[str, str]]:
        return await self._search(asked, words=asked)

    async def words(self, asked: str) -> list[tuple[str, str]]:
        rows = await Session(self._connection).fetch(LIMIT_S, BY_WORDS, asked, LOOKED_AT, tenant=TENANT)
        return [(row["doc_id"], row["text"]) for row in rows]

    async def _search(self, asked: str, *, words: str) -> list[tuple[str, str]]:
        deadline = asyncio.get_running_loop().time() + LIMIT_S
        (vector,) = self._embedder([asked])
        model = self._embedder.model.fingerprint
        found = await self._store.search(TENANT, vector, LOOKED_AT, deadline, model=model, query=words)
        return [(each.doc_id, each.text) for each in found.passages]


@asynccontextmanager
async def _searching(url: str, embedder: Embedder, connection: Any) -> AsyncIterator[Ranking]:
    """Retrieval's own store, once it has the tenant's corpus version."""

    async def session() -> Session:
        return Session(await connect(url, timeout_s=LIMIT_S, application="bench"))

    log = Log("bench", stream=io.BytesIO())
    store = Store(ConnectionPool(session, size=1, max_waiting=8, log=log, chance=random.Random(1)), log=log)
    await store.start()
    try:
        async with asyncio.timeout(LIMIT_S):
            while store.corpus_version(TENANT) is None:
                await asyncio.sleep(0.01)
        yield Ranking(store, connection, embedder)
    finally:
        await store.stop()
        log.close()


async def _ranked(questions: Mapping[str, Sequence[Question]], rank: Ranking) -> list[Places]:
    return [
        Places(ranked.__name__, kind, [each.place(await ranked(each.asked)) for each in some])
        for kind, some in questions.items()
        for ranked in (rank.vectors, rank.words, rank.both)
    ]


# The cost of the words


async def costs(url: str, texts: Sequence[str], rows: int) -> list[Cost]:
    """A tenant with `rows` chunks of these texts, repeated, searched exactly and through the graph."""
    vectors = unit(np.random.default_rng(1).standard_normal((rows, DIMENSIONS), dtype=np.float32))
    async with connected(url) as connection:
        async with indexes_made_at_once(connection, "vectors_by_distance"):
            big = Tenant(connection, BIG, chunks_each=rows)
            await big.put_chunks(list(itertools.islice(itertools.cycle(texts), rows)))
            await big.put_vectors(vectors, MADE_UP)
        return [
            await _cost(connection, name, exact_up_to, asked, vectors)
            for name, exact_up_to in (("exactly", rows), ("through the graph", 0))
            for asked in ASKED
        ]


async def _cost(connection: Any, name: str, exact_up_to: int, asked: str, vectors: Floats) -> Cost:
    session = Session(connection)
    spent: dict[bool, list[float]] = {False: [], True: []}
    for vector, words in itertools.product(vectors[:REPEATS], (False, True)):
        depth = DEPTH if words else TOP_K
        chosen = choose_index(len(vectors), depth, top_k=TOP_K, exact_up_to=exact_up_to, words=words)
        arguments = [BIG, vector, depth, MADE_UP, *([ASKED[asked], TOP_K] if words else [])]
        before = _processor_ms(connection)
        await session.fetch(LIMIT_S, chosen.sql, *arguments, tenant=BIG, settings=chosen.settings)
        spent[words].append(_processor_ms(connection) - before)
    return Cost(name, asked, *(statistics.median(spent[words][FIRST_LEFT_OUT:]) for words in (False, True)))


def _processor_ms(connection: Any) -> float:
    """Processor time of the connection's server process, from Linux on this machine, to the microsecond."""
    return int(Path(f"/proc/{connection.get_server_pid()}/schedstat").read_text(encoding="ascii").split()[0]) / 1e6


# The page


def result(
    places: Sequence[Places],
    questions: Mapping[str, Sequence[Question]],
    costs: Sequence[Cost],
    sizes: tuple[int, int, int],
    *,
    on: str = "",
) -> Result:
    """The results as a page; none has a target. `sizes`: documents, chunks, and rows of the cost part."""
    documents, chunks, rows = sizes
    number = sum(map(len, questions.values()))
    method = METHOD.format(
        looked_at=LOOKED_AT, first=FIRST, documents=documents, chunks=chunks, questions=number,
        step=len(questions) / number,
    )  # fmt: skip
    ranked = ((each.kind, each.ranked_by, f"{each.mrr:.3f}", f"{each.recall:.0%}") for each in places)
    blocks: list[Block] = [
        method, table(("questions", "ranked by", "MRR@10:", "recall@5:"), ranked),
        "## Questions that the words make worse\n\nQuestions whose answer ranks lower with words, or is lost:",
        table(("asked", "place by vectors:", "by both:"), _harmed(places, questions)),
        "## The cost of the words\n\n" + COST.format(top_k=TOP_K, rows=rows),
        table(("searched", "asked for", "by vectors:", "by both:", "ratio:"), map(_cost_row, costs)),
    ]  # fmt: skip
    figures = {
        "ranking": [Figure(f"recall@5 of {each.kind} by {each.ranked_by}", each.recall, "%") for each in places],
        "cost": [
            Figure(f"{each.searched}, {each.asked}: by both over by vectors", each.ratio, "times") for each in costs
        ],
    }
    return Result("Ranking by vectors and by words", figures, blocks, on)


def _cost_row(cost: Cost) -> tuple[str, ...]:
    return cost.searched, cost.asked, f"{cost.alone_ms:.1f}", f"{cost.both_ms:.1f}", f"{cost.ratio:.2f}"


def _harmed(places: Sequence[Places], questions: Mapping[str, Sequence[Question]]) -> Iterator[tuple[str, ...]]:
    found = {(each.ranked_by, each.kind): each.places for each in places}
    for kind, some in questions.items():
        for question, alone, both in zip(some, found["vectors", kind], found["both", kind], strict=True):
            if alone and (not both or both > alone):
                yield question.asked, str(alone), str(both or f"over {LOOKED_AT}")
