"""`python -m loadtests.bench.retrieval [--rows N] [--seconds N] [--out FILE]`: write docs/results/retrieval.md."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from loadtests.bench.retrieval import budget, embedding, throughput
from loadtests.bench.retrieval.budget import Line
from loadtests.bench.retrieval.page import page
from loadtests.bench.retrieval.stand import standing
from loadtests.paths import RESULTS
from loadtests.report.figure import Figure
from loadtests.report.machine import describe

PAGE = RESULTS / "retrieval.md"
ROWS, SECONDS = 100_000, 20.0


async def _measured(rows: int, seconds: float) -> tuple[list[Figure], list[Line]]:
    began = time.perf_counter()

    def say(line: str) -> None:
        typer.echo(f"{time.perf_counter() - began:6.1f} s  {line}", err=True)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with standing(Path(folder)) as stand:
            say(f"{rows:,} rows stored in {await stand.fill(rows):.0f} s")
            figures = await throughput.measure(stand, seconds)
            say("throughput measured")
            lines = await budget.measure(stand, seconds, say=say)
            figures += await embedding.measure(stand, seconds)
    return figures, lines


def main(
    rows: Annotated[int, typer.Option(min=1_000, help="Chunks of the tenant.")] = ROWS,
    seconds: Annotated[float, typer.Option(min=2, max=300, help="How long each load lasts.")] = SECONDS,
    out: Annotated[Path, typer.Option(help="The page; the pictures go beside it.")] = PAGE,
) -> None:
    """Measure, and write the page and its pictures: about ten minutes with the defaults."""
    figures, lines = uvloop.run(_measured(rows, seconds))
    options = f" --rows {rows}" * (rows != ROWS) + f" --seconds {seconds:g}" * (seconds != SECONDS)
    pictures = _drawn(lines, out)
    text = page(
        lines, figures, command=f"python -m loadtests.bench.retrieval{options}", machine=describe(), rows=rows,
        seconds=seconds, picture=out.stem if pictures else "",
    )  # fmt: skip
    out.write_text(text, encoding="utf-8")
    for path in (out, *pictures):
        typer.echo(path)


def _drawn(lines: Sequence[Line], out: Path) -> list[Path]:
    """None without matplotlib."""
    try:
        from loadtests.bench.retrieval.picture import draw
    except ModuleNotFoundError:
        return []
    return list(draw(lines, out))


if __name__ == "__main__":
    typer.run(main)
