"""Ranking by meaning, by words, and by both: what is found, and what the words cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import msgspec

from loadtests.bench.hybrid.cost import TOP_K, Cost, costs
from loadtests.bench.hybrid.measure import FIRST, LOOKED_AT, Places, Question, documents, place, read
from loadtests.bench.hybrid.subject import Subject
from loadtests.bench.stores import postgres
from loadtests.report.figure import Figure
from loadtests.report.page import table
from loadtests.report.progress import Say
from loadtests.report.result import Block, Result
from services.retrieval.minilm import MiniLM, find_model

WAYS = ("vectors", "words", "both")
METHOD = """\
Questions to Weir's own documents, written by hand (`loadtests/bench/hybrid/questions.yaml`): natural ones, which mostly
avoid the words of their answer, and ones that ask for a name or a number. MRR is the mean of 1 / place of the first
passage that answers, over the first {looked_at} passages; recall is the share of questions that have it among the first
{first}. There are {documents} documents of {chunks} chunks, and {questions} questions: one more or one less is
{step:.1%} of its kind.
"""
COST = """\
Milliseconds of the server's processor, the median of a search for {top_k} passages among {rows:,} chunks of one tenant,
with the words and without, in turn over one connection. The texts are those of the documents, over and over.
"""


class Options(msgspec.Struct, frozen=True):
    """Of this bench."""

    rows: Annotated[int, msgspec.Meta(ge=1000, description="chunks of the tenant of the costs")] = 20_000


QUICK = {"rows": 1000}


def measure(options: Options, say: Say) -> Result:
    """Ask all questions in each way, then time searches."""
    model = MiniLM(find_model(""))
    corpus = documents(model)
    with postgres() as database:
        places, spent = asyncio.run(_measured(database.url, model, corpus, options.rows, say))
    sizes = (len(corpus), sum(map(len, corpus.values())), options.rows)
    return result(places, read(), spent, sizes, on=f"model {model.name}")


async def _measured(
    url: str, model: MiniLM, corpus: Mapping[str, list[str]], rows: int, say: Say
) -> tuple[list[Places], list[Cost]]:
    subject = Subject(url, model)
    try:
        await subject.start(corpus)
        places = await _asked(subject, read())
    finally:
        await subject.stop()
    say("all questions are asked; now what the words cost")
    return places, await costs(url, [text for texts in corpus.values() for text in texts], rows)


async def _asked(subject: Subject, questions: Sequence[Question]) -> list[Places]:
    found = []
    for kind in dict.fromkeys(each.kind for each in questions):
        vectors, words, both = ways = [Places(way, kind) for way in WAYS]
        for question in (each for each in questions if each.kind == kind):
            vectors.places.append(place(question, await subject.search(question.asked, LOOKED_AT, words=False)))
            words.places.append(place(question, await subject.by_words(question.asked, LOOKED_AT)))
            both.places.append(place(question, await subject.search(question.asked, LOOKED_AT, words=True)))
        found += ways
    return found


def result(
    places: Sequence[Places],
    questions: Sequence[Question],
    costs: Sequence[Cost],
    sizes: tuple[int, int, int],
    *,
    on: str = "",
) -> Result:
    """As a page, its rows as figures for the record; `sizes`: documents, chunks, rows of the measurement of costs."""
    kinds = list(dict.fromkeys(each.kind for each in places))
    documents, chunks, rows = sizes
    method = METHOD.format(
        looked_at=LOOKED_AT, first=FIRST, documents=documents, chunks=chunks, questions=len(questions),
        step=len(kinds) / len(questions),
    )  # fmt: skip
    ranked = ((each.kind, each.way, f"{each.mrr:.3f}", f"{each.recall:.0%}") for each in places)
    blocks: list[Block] = [
        method, table(("questions", "ranked by", "MRR@10:", "recall@5:"), ranked),
        "## Where the words harm\n\nQuestions whose answer stands lower for the words, or is lost:",
        table(("asked", "place by vectors:", "by both:"), _harmed(places, questions, kinds)),
        "## What they cost\n\n" + COST.format(top_k=TOP_K, rows=rows),
        table(("searched", "asked for", "by vectors:", "by both:", "ratio:"), map(_cost, costs)),
    ]  # fmt: skip
    figures = {
        "ranking": [Figure(f"recall@5 of {each.kind} by {each.way}", each.recall, "%") for each in places],
        "cost": [
            Figure(f"{each.way}, {each.asked}: by both over by vectors", each.with_words_ms / each.alone_ms, "times")
            for each in costs
        ],
    }
    return Result("Ranking by meaning and by words", figures, blocks, on)


def _harmed(places: Sequence[Places], questions: Sequence[Question], kinds: Sequence[str]) -> Iterator[tuple[str, ...]]:
    found = {(each.way, each.kind): each.places for each in places}
    for kind in kinds:
        asked = [each.asked for each in questions if each.kind == kind]
        for question, alone, both in zip(asked, found["vectors", kind], found["both", kind], strict=True):
            if alone and (not both or both > alone):
                yield question, str(alone), str(both or f"over {LOOKED_AT}")


def _cost(cost: Cost) -> tuple[str, ...]:
    ratio = cost.with_words_ms / cost.alone_ms
    return cost.way, cost.asked, f"{cost.alone_ms:.1f}", f"{cost.with_words_ms:.1f}", f"{ratio:.2f}"
