"""`python -m loadtests.bench.storms [--seconds N] [--only SCENARIO]... [--out PAGE]`: about seven minutes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from loadtests.bench.storms.page import Played, page
from loadtests.bench.storms.stack import standing
from loadtests.paths import RESULTS
from loadtests.report.machine import describe
from loadtests.storm.report_words import percent, policy_words

PAGE = RESULTS / "storms.md"
ALL = ("admission", "fairness", "cancellation")
PLAYS: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    ("burst", (ALL, ("admission",), ())),
    ("noisy_neighbour", (ALL, ("fairness",), ())),
    ("retry_storm", (ALL, ("cancellation",), ())),
    ("slow_worker", (ALL, ())),
)


def main(
    only: Annotated[list[str] | None, typer.Option(help="Which scenarios; all of these by default.")] = None,
    seconds: Annotated[float, typer.Option(min=10, max=60, help="Length of each run.")] = 30.0,
    out: Annotated[Path | None, typer.Option(help="The page.")] = None,
) -> None:
    """Measure, and write the page."""
    played: list[Played] = []
    with standing() as stack:
        for scenario, offs in PLAYS:
            for off in offs if not only or scenario in only else ():
                stack.switch(off)
                run = stack.play(scenario, {"seconds": seconds})
                played.append(Played(run, off))
                typer.echo(f"{scenario:16} {policy_words(run.policy):40} on time {percent(run.on_time_share)}")
    target = out or (None if only else PAGE)
    if target is not None:
        command = shlex.join(["python", "-m", "loadtests.bench.storms", *sys.argv[1:]])
        target.write_text(page(played, command=command, where=describe()), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
