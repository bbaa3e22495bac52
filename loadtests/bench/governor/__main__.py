"""`python -m loadtests.bench.governor [--short] [--only PART]... [--out PAGE]`: measure, and write the page.

A missed target is a result: the exit status is 0 and the page says so. A reply that nobody could read is a fault.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from loadtests.bench.governor import burst, fuzz, held, speed
from loadtests.bench.governor.burst import Burst
from loadtests.bench.governor.page import write
from loadtests.paths import RESULTS
from loadtests.report.figure import Figure
from loadtests.report.machine import describe
from loadtests.report.page import cells, row

PAGE = RESULTS / "governor.md"
CONNECTIONS = 10_000
COMING_BACK_STUB_S = 1.0  # with jobs of ten seconds twenty would take minutes, and show nothing else


class Part(StrEnum):
    HELD = "held"
    BURST = "burst"
    FUZZ = "fuzz"
    SPEED = "speed"


class Bench:
    """What was chosen, and what has been measured."""

    def __init__(self, *, short: bool, seconds: float, rounds: int, stub_s: float, frames: int) -> None:
        self.short = short
        self.seconds, self.rounds, self.stub_s, self.frames = seconds, rounds, stub_s, frames
        self.notes: list[str] = []
        self.bursts: list[Burst] = []

    async def measure(self, part: Part) -> list[Figure]:
        if part is Part.SPEED:
            return await speed.measure(self.seconds, self.rounds)
        if part is Part.HELD:
            figures, notes = await held.measure(CONNECTIONS)
            self.notes += notes
            return figures
        if part is Part.FUZZ:
            return await asyncio.to_thread(fuzz.measure, self.frames)
        self.bursts = [
            await burst.at_once(20, self.stub_s),
            await burst.coming_back(20, 0.2 if self.short else COMING_BACK_STUB_S),
            *([] if self.short else [await burst.coming_back(200, 0.2)]),
        ]
        return list(burst.figures(*self.bursts))


def main(
    only: Annotated[list[Part] | None, typer.Option(help="Which parts; all of them by default.")] = None,
    short: Annotated[bool, typer.Option("--short", help="Under half a minute: jobs of 2 s, fewer clients.")] = False,
    seconds: Annotated[float, typer.Option(min=0.2, max=60, help="How long each load lasts.")] = 2.0,
    rounds: Annotated[int, typer.Option(min=1, max=15, help="How often speed is measured.")] = 3,
    stub_s: Annotated[float, typer.Option(min=0.05, max=60, help="How long a job of the burst of 20 takes.")] = 10.0,
    frames: Annotated[int, typer.Option(min=1000, help="How many broken lines.")] = 2_000_000,
    out: Annotated[Path | None, typer.Option(help="The page; its pictures go beside it.")] = None,
) -> None:
    """The governor's proofs: its speed, what it can be made to hold, its burst, and a fuzzer."""
    bench = Bench(
        short=short, seconds=min(seconds, 1.0) if short else seconds, rounds=1 if short else rounds,
        stub_s=min(stub_s, 2.0) if short else stub_s, frames=min(frames, 20_000) if short else frames,
    )  # fmt: skip
    parts: dict[str, list[Figure]] = {}
    for part in only or list(Part):
        parts[part.value] = uvloop.run(bench.measure(part))
        for figure in parts[part.value]:
            typer.echo(row((part.value, *cells(figure))))
    target = out or (None if only or short else PAGE)
    if target is None:
        return
    command = shlex.join(["python", "-m", "loadtests.bench.governor", *sys.argv[1:]])
    for path in write(target, parts, bench.notes, bench.bursts, command=command, where=describe()):
        typer.echo(f"Written: {path}")


if __name__ == "__main__":
    typer.run(main)
