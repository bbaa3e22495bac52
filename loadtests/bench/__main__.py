"""`python -m loadtests.bench [PART]... [--seconds N]`: measure each part, show a table, write docs/results/bench.md.

A missed target is a result, not a failure: the exit status is 0 and the table says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from loadtests.bench import core, generator, report, retrieval, router, simulator, startup, worker, world
from loadtests.bench.governor import short as governor
from loadtests.paths import RESULTS, ROOT
from loadtests.report.figure import Figure, median
from loadtests.report.machine import describe

PAGE = RESULTS / "bench.md"
ROUTER_RUNS = 3  # its figures are the ones that a neighbour on the machine moves most
WIDE_ENOUGH_FOR_NOTES = 140
PAUSE_S = 1.0  # sockets close, caches are written back: no part pays for the one before


class Part(StrEnum):
    ROUTER = "router"
    RETRIEVAL = "retrieval"
    WORKER = "worker"
    STARTUP = "startup"
    SIMULATOR = "simulator"
    WORLD = "world"
    CORE = "core"
    GOVERNOR = "governor"
    GENERATOR = "generator"


Measure = Callable[[float], Awaitable[list[Figure]]]


def bench(
    parts: Annotated[list[Part] | None, typer.Argument(help="Which parts; all of them by default.")] = None,
    seconds: Annotated[float, typer.Option(min=0.2, max=60, help="How long each load lasts.")] = 4.0,
    write: Annotated[bool, typer.Option(help="Write docs/results/bench.md, if all parts were measured.")] = True,
) -> None:
    """Measure the figures that docs/results quotes: about five minutes with the defaults."""
    console = Console()
    machine = describe()
    chosen = list(dict.fromkeys(parts or Part))
    measured = {part.value: _measure(part, seconds, console) for part in chosen}
    console.print(report.table(measured, notes=console.width >= WIDE_ENOUGH_FOR_NOTES))
    console.print(f"\n{machine}\n", soft_wrap=True, highlight=False)
    if write and set(chosen) == set(Part):
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(report.markdown(measured, machine, seconds), encoding="utf-8")
        console.print(f"Written to {PAGE.relative_to(ROOT)}.", highlight=False)


def _measure(part: Part, seconds: float, console: Console) -> Sequence[Figure]:
    measures: dict[Part, Measure] = {
        Part.ROUTER: router.measure,
        Part.RETRIEVAL: retrieval.measure,
        Part.WORKER: worker.measure,
        Part.STARTUP: startup.measure,
        Part.SIMULATOR: simulator.measure,
        Part.WORLD: world.measure,
        Part.CORE: core.measure,
        Part.GOVERNOR: governor.measure,
        Part.GENERATOR: generator.measure,
    }
    runs = []
    for run in range(times := ROUTER_RUNS if part is Part.ROUTER else 1):
        which = f" ({run + 1} of {times})" if times > 1 else ""
        with console.status(f"measuring {part.value}{which}"):
            runs.append(uvloop.run(_after_a_pause(measures[part], seconds)))
    return median(runs) if len(runs) > 1 else runs[0]


async def _after_a_pause(measure: Measure, seconds: float) -> list[Figure]:
    await asyncio.sleep(PAUSE_S)
    return await measure(seconds)


if __name__ == "__main__":
    typer.run(bench)
