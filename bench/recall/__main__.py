"""`python -m bench.recall [--rows N] [--questions N]`: measure, and write docs/results/recall.md."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from bench.recall.measure import PARTS, TOP_K, Graph, Line, Measured, measure
from bench.recall.subject import Subject
from services.lab.machine import describe
from services.lab.ports import free_port
from services.lab.postgres import EmbeddedPostgres
from services.retrieval.database import connect
from services.retrieval.nearest import EF_SEARCH, EXACT_UP_TO

PAGE = Path(__file__).parents[2] / "docs" / "results" / "recall.md"
ROWS, QUESTIONS, SEED = 100_000, 100, 1
HEAD = """\
# Recall and latency of a search

Written by `{command}`, on {machine}.

Recall is the share of the {top_k} right rows that was found, rows the share of the asked for rows that came at all.
Chunks are those of the tenant; share is theirs in the table. Latency is that of one client, over three round trips,
with the database on the same machine. "Unasked" is the graph as pgvector searches it by default. Retrieval itself
searches tenants of up to {exact:,} chunks exactly, and bigger ones through the graph of vectors with ef {ef}: see
[the decision](../decisions/031-exact-or-a-graph-by-size.md). The vectors are generated, and lie in clusters.
"""


async def _measured(rows: int, questions: int) -> Measured:
    began = time.perf_counter()

    def say(line: str) -> None:
        typer.echo(f"{time.perf_counter() - began:6.1f} s  {line}", err=True)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        database = EmbeddedPostgres(Path(folder), free_port(), log=Path(folder) / "log", durable=False)
        await asyncio.to_thread(database.prepare)
        database.spawn()
        try:
            while not await asyncio.to_thread(database.wait_ready):
                database.spawn()
            connection = await connect(database.url, timeout_s=10.0, application="bench")
            measured = await measure(Subject(connection), rows, questions, SEED, say)
            await connection.close()
        finally:
            database.stop()
    return measured


def page(measured: Measured, command: str) -> str:
    """The whole of it."""
    head = HEAD.format(command=command, machine=describe(), top_k=TOP_K, exact=EXACT_UP_TO, ef=EF_SEARCH)
    table = (
        "| Chunks | Share | Graph of | Way | Recall | Rows | p50 ms | p99 ms |",
        "|---:|---:|---|---|---:|---:|---:|---:|",
    )
    costs = ("| Graph of | Rows | Made in s | MB | ms to insert a row |", "|---|---:|---:|---:|---:|")
    return "\n".join(
        [
            head,
            *table,
            *map(_line, measured.lines),
            "",
            "## What a graph costs",
            "",
            *costs,
            *_costs(measured.graphs, measured.plain_insert_ms),
            "",
        ]
    )


def _line(line: Line) -> str:
    cells = (
        f"{line.chunks:,}", f"{line.share:.1%}", line.storage, line.way,
        f"{line.recall:.3f}", f"{line.returned:.2f}", f"{line.p50_ms:.1f}", f"{line.p99_ms:.1f}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _costs(graphs: list[Graph], plain_insert_ms: float) -> Iterator[str]:
    yield f"| none | {graphs[0].rows:,} | | | {plain_insert_ms:.2f} |"
    for graph in graphs:
        insert = "" if graph.insert_ms is None else f"{graph.insert_ms:.2f}"
        yield f"| {graph.storage} | {graph.rows:,} | {graph.build_s:.0f} | {graph.mb:.0f} | {insert} |"


def main(
    rows: Annotated[int, typer.Option(min=PARTS[0] * 2, help="Chunks of the biggest tenant.")] = ROWS,
    questions: Annotated[int, typer.Option(min=10, help="Questions for each line of the table.")] = QUESTIONS,
) -> None:
    """Measure, and write the page."""
    options = f" --rows {rows}" * (rows != ROWS) + f" --questions {questions}" * (questions != QUESTIONS)
    measured = asyncio.run(_measured(rows, questions))
    PAGE.write_text(page(measured, f"python -m bench.recall{options}"), encoding="utf-8")
    typer.echo(PAGE)


if __name__ == "__main__":
    typer.run(main)
