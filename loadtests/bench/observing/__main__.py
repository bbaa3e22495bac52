"""`python -m loadtests.bench.observing [--short] [--out PAGE]`: measure, and write the page.

A missed target is a result: the exit status is 0 and the page says so.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from loadtests.bench.observing.measure import observed, page_written, scraped
from loadtests.bench.observing.page import markdown
from loadtests.paths import RESULTS
from loadtests.report.figure import Figure
from loadtests.report.machine import describe

PAGE = RESULTS / "observing.md"


def main(
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="How often each router is loaded.")] = 40,
    requests: Annotated[int, typer.Option(min=100, help="Requests of a round.")] = 1600,
    seconds: Annotated[float, typer.Option(min=0.5, max=60, help="How long latency is measured.")] = 4.0,
    short: Annotated[bool, typer.Option("--short", help="Under a minute, and no page.")] = False,
    out: Annotated[Path | None, typer.Option(help="The page.")] = None,
) -> None:
    """What it costs a router to be observed, in about five minutes."""
    if short:
        rounds, requests, seconds = 6, 1600, 1.0
    figures: list[Figure] = page_written()
    figures += uvloop.run(observed(rounds, requests, _say))
    figures += uvloop.run(scraped(max(2, rounds // 8), requests, seconds, _say))
    for figure in figures:
        verdict = f"{figure.wanted:26} {figure.verdict:10}"
        typer.echo(f"{figure.name:45} {figure.shown:>36} {verdict} {figure.note}")
    target = out or (None if short else PAGE)
    if target is not None:
        command = shlex.join(["python", "-m", "loadtests.bench.observing", *sys.argv[1:]])
        text = markdown(figures, command=command, where=describe(), requests=requests, rounds=rounds, seconds=seconds)
        target.write_text(text, encoding="utf-8")
        typer.echo(f"Written: {target}")


def _say(line: str) -> None:
    typer.echo(line, err=True)


if __name__ == "__main__":
    typer.run(main)
