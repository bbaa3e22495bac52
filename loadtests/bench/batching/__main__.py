"""`python -m loadtests.bench.batching [--device auto|cpu|cuda] [--size SIZE]... [--only PART]...`:
measure, and write the page.

On a processor 5 and 30 million parameters, the cancels with a million; on a GPU a billion, in bfloat16. A missed target
is a result: the exit status is 0 and the page says so. An answer that batching changed is a fault.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from loadtests.bench.batching import border, cancel, stall, steps, throughput
from loadtests.bench.batching.page import write
from loadtests.bench.batching.section import Section
from loadtests.bench.batching.subject import Subject, chosen_device, subject, versions
from loadtests.paths import RESULTS
from loadtests.report.machine import describe
from loadtests.report.page import cells, row

PAGE = RESULTS / "batching.md"


class Part(StrEnum):
    THROUGHPUT = "throughput"
    STALL = "stall"
    CANCEL = "cancel"
    STEPS = "steps"
    BORDER = "border"


class Size(StrEnum):
    TINY = "tiny"
    M5 = "5m"
    M30 = "30m"
    B1 = "1b"


class Bench:
    """What was chosen, and what has been measured."""

    def __init__(self, device: str, sizes: list[Size], parts: list[Part], requests: int, rounds: int, cancels: int):
        self.device = chosen_device(device)
        on_gpu = self.device.type != "cpu"
        self.sizes = sizes or ([Size.B1] if on_gpu else [Size.M5, Size.M30])
        self.smallest = self.sizes[0] if sizes or on_gpu else Size.TINY
        self.parts = parts or list(Part)
        self.requests, self.rounds, self.cancels = requests, rounds, cancels
        self.occupancy: throughput.Occupancy | None = None
        self._began = time.perf_counter()

    def say(self, line: str) -> None:
        typer.echo(f"{time.perf_counter() - self._began:6.1f} s  {line}", err=True)

    def sections(self) -> Iterator[Section]:
        first, *others = self.sizes
        yield from self._of(first, widely=True)
        for size in others:
            yield from self._of(size, widely=False)
        if Part.CANCEL in self.parts:
            yield cancel.measure(self._subject(self.smallest), self.cancels, self.say)

    def _of(self, size: Size, *, widely: bool) -> Iterator[Section]:
        model, rounds = self._subject(size), self.rounds if widely else 1
        if Part.THROUGHPUT in self.parts:
            section, seen = throughput.measure(model, self.requests, rounds, self.say, widely=widely)
            self.occupancy = self.occupancy or seen
            yield section
        if Part.STALL in self.parts:
            yield stall.measure(model, rounds, self.say)
        if Part.STEPS in self.parts:
            yield steps.measure(model, self.say)
        if Part.BORDER in self.parts and widely:
            yield border.measure(model, rounds, self.say)

    def _subject(self, size: Size) -> Subject:
        self.say(f"the model of size {size.value}")
        return subject(size.value, self.device)


def main(
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where models are computed.")] = "auto",
    size: Annotated[list[Size] | None, typer.Option(help="Which models; 5m and 30m on a processor, else 1b.")] = None,
    only: Annotated[list[Part] | None, typer.Option(help="Which parts; all of them by default.")] = None,
    requests: Annotated[int, typer.Option(min=8, max=1024, help="How many are batched.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, max=15, help="How often the first model is measured; others once.")] = 3,
    cancels: Annotated[int, typer.Option(min=10, max=10_000, help="How many requests leave.")] = 200,
    out: Annotated[Path | None, typer.Option(help="The page; its pictures go beside it.")] = None,
) -> None:
    """Measure batching on real models; five to six minutes on two quiet cores. Needs the extra `torch`."""
    bench = Bench(device, size or [], only or [], requests, rounds, cancels)
    where = f"{describe()}; {versions()}"
    sections = []
    for section in bench.sections():
        sections.append(section)
        for figure in section.figures:
            typer.echo(row((section.title, *cells(figure))))
    target = out or (None if only else PAGE)
    if target is None:
        typer.echo("\n".join(line for section in sections for line in section.markdown()))
        return
    command = shlex.join(["python", "-m", "loadtests.bench.batching", *sys.argv[1:]])
    for path in write(target, sections, bench.occupancy, command=command, where=where):
        typer.echo(f"Written: {path}")


if __name__ == "__main__":
    typer.run(main)
