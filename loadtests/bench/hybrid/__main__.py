"""`python -m loadtests.bench.hybrid [--rows N]`: ask, measure, and write docs/results/hybrid.md."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from loadtests.bench.hybrid.cost import Cost, costs
from loadtests.bench.hybrid.measure import LOOKED_AT, Places, Question, documents, place, read
from loadtests.bench.hybrid.page import page
from loadtests.bench.hybrid.subject import Subject
from loadtests.paths import RESULTS
from loadtests.report.machine import describe
from services.cli.ports import free_port
from services.cli.postgres import EmbeddedPostgres
from services.retrieval.minilm import MiniLM, find_model

PAGE = RESULTS / "hybrid.md"
ROWS = 20_000


async def _asked(subject: Subject, questions: list[Question]) -> list[Places]:
    found = []
    for kind in dict.fromkeys(each.kind for each in questions):
        ways = [Places(way, kind) for way in ("vectors", "words", "both")]
        for question in (each for each in questions if each.kind == kind):
            vectors, words, both = ways
            vectors.places.append(place(question, await subject.search(question.asked, LOOKED_AT, words=False)))
            words.places.append(place(question, await subject.by_words(question.asked, LOOKED_AT)))
            both.places.append(place(question, await subject.search(question.asked, LOOKED_AT, words=True)))
        found += ways
    return found


async def _measured(
    url: str, model: MiniLM, corpus: dict[str, list[str]], rows: int
) -> tuple[list[Places], list[Cost]]:
    subject = Subject(url, model)
    try:
        await subject.start(corpus)
        places = await _asked(subject, read())
    finally:
        await subject.stop()
    return places, await costs(url, [text for texts in corpus.values() for text in texts], rows)


def main(
    rows: Annotated[int, typer.Option(min=1000, help="Chunks of the tenant whose cost is measured.")] = ROWS,
) -> None:
    """Measure, and write the page."""
    model = MiniLM(find_model(""))
    corpus = documents(model)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        database = EmbeddedPostgres(Path(folder), free_port(), log=Path(folder) / "log", durable=False)
        database.start()
        try:
            places, cost = asyncio.run(_measured(database.url, model, corpus, rows))
        finally:
            database.stop()
    sizes = (len(corpus), sum(map(len, corpus.values())), rows)
    PAGE.write_text(page(places, read(), cost, sizes, f"{describe()}; model {model.name}"), encoding="utf-8")
    typer.echo(PAGE)


if __name__ == "__main__":
    typer.run(main)
