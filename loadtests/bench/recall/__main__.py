"""`python -m loadtests.bench.recall [--rows N] [--questions N]`: measure, and write docs/results/recall.md.

Real text is embedded first, in a quarter of an hour for 100,000 rows, once: `--embed` does only that.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from loadtests.bench.recall.data import Generated, Kept, Source
from loadtests.bench.recall.embedded import TooFewSentences, embedded
from loadtests.bench.recall.measure import PARTS, Measured, Say, measure, needed
from loadtests.bench.recall.page import page
from loadtests.bench.recall.subject import Subject
from loadtests.paths import RESULTS
from loadtests.report.machine import describe
from services.cli.ports import free_port
from services.cli.postgres import EmbeddedPostgres
from services.retrieval.database import connect
from services.retrieval.minilm import MiniLM, find_model

PAGE = RESULTS / "recall.md"
ROWS, QUESTIONS, SEED = 100_000, 100, 1


async def measured(sources: Mapping[str, Source], rows: int, questions: int, say: Say) -> Measured:
    """In a database of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        database = EmbeddedPostgres(Path(folder), free_port(), log=Path(folder) / "log", durable=False)
        await asyncio.to_thread(database.prepare)
        database.spawn()
        try:
            while not await asyncio.to_thread(database.wait_ready):
                database.spawn()
            connection = await connect(database.url, timeout_s=10.0, application="bench")
            subject = Subject(connection)
            await subject.prepare()
            found = await measure(subject, sources, rows, questions, say)
            await connection.close()
        finally:
            database.stop()
    return found


def main(
    rows: Annotated[int, typer.Option(min=PARTS[0] * 2, help="Chunks of the biggest tenant.")] = ROWS,
    questions: Annotated[int, typer.Option(min=10, help="Questions for each line of the table.")] = QUESTIONS,
    embed: Annotated[bool, typer.Option("--embed", help="Only embed the text, and keep it.")] = False,
) -> None:
    """Measure, and write the page."""
    began = time.perf_counter()

    def say(line: str) -> None:
        typer.echo(f"{time.perf_counter() - began:6.1f} s  {line}", err=True)

    try:
        text = embedded(needed(rows, questions), say, MiniLM(find_model()))
    except TooFewSentences as error:
        typer.echo(f"{error}: choose fewer --rows", err=True)
        raise typer.Exit(1) from None
    if embed:
        return
    sources: dict[str, Source] = {"generated": Generated(SEED), "text": Kept(text)}
    found = asyncio.run(measured(sources, rows, questions, say))
    options = f" --rows {rows}" * (rows != ROWS) + f" --questions {questions}" * (questions != QUESTIONS)
    pictures = _drawn(found)
    PAGE.write_text(
        page(found, f"python -m loadtests.bench.recall{options}", describe(), picture=bool(pictures)), encoding="utf-8"
    )
    sys.stdout.write("".join(f"{path}\n" for path in (PAGE, *pictures)))


def _drawn(found: Measured) -> list[Path]:
    """None without matplotlib."""
    try:
        from loadtests.bench.recall.picture import draw
    except ModuleNotFoundError:
        return []
    return list(draw(found.shares, PAGE))


if __name__ == "__main__":
    typer.run(main)
