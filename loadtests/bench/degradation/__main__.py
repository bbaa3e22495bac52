"""`python -m loadtests.bench.degradation [--rows N] [--quick] [--out PAGE]`: write docs/results/degradation.md."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from loadtests.bench.degradation.measure import QUICK_LENGTH, USUAL_LENGTH, Measured, measure
from loadtests.bench.degradation.page import page
from loadtests.cluster.processes import run
from loadtests.paths import RESULTS
from loadtests.report.machine import describe
from services.retrieval.nearest import EXACT_UP_TO

PAGE = RESULTS / "degradation.md"
ROWS, SEED = 30_000, 1


def main(
    rows: Annotated[int, typer.Option(min=EXACT_UP_TO + 1, help="Chunks of the tenant; enough for the graph.")] = ROWS,
    quick: Annotated[bool, typer.Option(help="Short loads: to see that all of it works.")] = False,
    out: Annotated[Path, typer.Option(help="The page; its pictures go beside it.")] = PAGE,
) -> None:
    """Measure what degradation buys; about seven minutes on two quiet cores."""
    began = time.perf_counter()

    def say(line: str) -> None:
        typer.echo(f"{time.perf_counter() - began:6.1f} s  {line}", err=True)

    where, length = describe(), QUICK_LENGTH if quick else USUAL_LENGTH
    measured = run(measure(rows, SEED, length, say))
    command = "python -m loadtests.bench.degradation" + f" --rows {rows}" * (rows != ROWS) + " --quick" * quick
    text = page(measured, command=command, machine=where, pictures=_drawn(measured, out))
    out.write_text(text, encoding="utf-8")
    typer.echo(out)


def _drawn(measured: Measured, page: Path) -> Mapping[str, str]:
    """None without matplotlib."""
    try:
        from loadtests.bench.degradation.picture import draw
    except ModuleNotFoundError:
        return {}
    return dict(draw(measured, page))


if __name__ == "__main__":
    typer.run(main)
