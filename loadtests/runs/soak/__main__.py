"""`python -m loadtests.runs.soak [--minutes N] [--out FOLDER]`: load the stack for N minutes and measure its growth.

The whole stack without faults, under identical rounds of load. soak.md is written for ten minutes or more, or wherever
`--out` says. Exit status: 0; 1 if something grew or an answer was wrong; 2 if the run could not be made.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from loadtests.cluster.making import POSTGRES, VALKEY, Shape
from loadtests.cluster.processes import StandError
from loadtests.cluster.settling import left_over
from loadtests.cluster.stack import Stack, stack
from loadtests.report.figure import Figure, at_least, at_most
from loadtests.report.page import figures_table, parts_table
from loadtests.report.progress import Say
from loadtests.report.result import Result
from loadtests.runs.judged import judged
from loadtests.runs.soak.growth import MAX_A_MINUTE, STORES_MAX_A_MINUTE, Sample, growth, sample
from loadtests.runs.soak.load import ABOUT, ROUND_S, Outcomes, one_round

MINUTES, MIN_MINUTES, MAX_MINUTES = 10.0, 0.1, 24 * 60.0
LOOK_EVERY_S = 1.0
WARMUP_SHARE, MAX_WARMUP_S = 0.3, 180.0
SETTLED_WITHIN_S = 20.0
START_S = 30.0
"""Estimated start and settling of the stack."""
MIN_ROUNDS = 4
"""With fewer rounds no slope is judged."""

PAGE = """\
The whole stack as real processes on loopback, under load for {minutes:g} minutes: {about}

Each process is sampled every {look_s:g} s, with its children. The first {warmup_s:.0f} s do not count, because caches
fill and the allocator reaches its working size. Of every following {round_s:g} s the median counts. The growth is the
slope of the straight line that fits the medians best (least squares)."""
MEANING = """\
*Memory* is resident memory without deliberately shared pages, such as PostgreSQL's buffers. *Tasks* are the tasks of
the process's event loop, from its metric `python_asyncio_tasks`. *At first* and *at last* are the first and the last
median."""


@dataclass
class Soak:
    """One soak. `left`: slots that the router still held at the end."""

    minutes: float
    outcomes: Outcomes = field(default_factory=Outcomes)
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    left: float = 0.0

    @property
    def warmup_s(self) -> float:
        """The time that does not count: caches fill, and the allocator reaches its working size."""
        return min(MAX_WARMUP_S, WARMUP_SHARE * self.minutes * 60)

    @property
    def is_long_enough(self) -> bool:
        return self.minutes * 60 - self.warmup_s >= MIN_ROUNDS * ROUND_S

    def growth(self) -> dict[str, list[Figure]]:
        """The growth of each process, by its name; judged only if the soak was long enough."""
        stores = dict.fromkeys((POSTGRES, VALKEY), STORES_MAX_A_MINUTE)
        return {
            name: list(
                growth(
                    samples, stores.get(name, MAX_A_MINUTE), warmup_s=self.warmup_s, round_s=ROUND_S,
                    judged=self.is_long_enough,
                )
            )
            for name, samples in self.samples.items()
        }  # fmt: skip

    def ends(self) -> list[Figure]:
        counted = [Figure(name, count) for name, count in self.outcomes.verdicts.most_common()]
        wrong, left = self.outcomes.wrong, self.left
        return [
            at_least("processes that were sampled", len(self.samples), 1),
            *counted,
            Figure("left by their clients", self.outcomes.left),
            at_most("wrong, foreign or dropped answers", wrong, 0),
            at_most("slots that the router still held at the end", left, 0),
        ]


def result(soak: Soak) -> Result:
    grown, ends = soak.growth(), soak.ends()
    found = [figure for some in grown.values() for figure in some]
    growing = sum(figure.held is False for figure in found)
    steepest = max((figure.value for figure in found if figure.name == "memory"), default=0.0)
    word = "Not held" if any(figure.held is False for figure in [*found, *ends]) else "Held"
    if not soak.is_long_enough:
        word = f"{word}, and too short to judge growth"
    verdict = (
        f"**{word}: {growing} of {len(found)} figures grow beyond their limit; "
        f"the steepest memory grows by {steepest:.2f} MB a minute.**"
    )
    page = PAGE.format(
        minutes=soak.minutes, about=ABOUT, look_s=LOOK_EVERY_S, warmup_s=soak.warmup_s, round_s=ROUND_S
    )  # fmt: skip
    tables = parts_table(grown, part="Process"), figures_table(ends)
    blocks = [verdict, page, tables[0], MEANING, "How the requests ended:", tables[1]]
    return Result("Soak: growth under continuous load", {**grown, "requests": ends}, blocks)


async def play(minutes: float, say: Say) -> Soak:
    """Load the stack. Raises StandError if it cannot be set up, or if a process ends."""
    say("starting the stack: three workers, retrieval, PostgreSQL, Valkey and the router")
    async with stack(Shape(wires=False)) as made:
        soak, number = Soak(minutes), 0
        say(f"{minutes:g} minutes, of which {soak.warmup_s:.0f} s are warm-up")
        began = perf_counter()
        looking = asyncio.create_task(_look(made, soak, began))
        try:
            while (left_s := minutes * 60 - (perf_counter() - began)) > 0:
                number += 1
                await one_round(made.router.url, number, min(ROUND_S, max(1.0, left_s)), soak.outcomes)
                if looking.done():
                    looking.result()
                say(_progress(soak, max(0.0, minutes * 60 - (perf_counter() - began))))
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        soak.left = await left_over(made.held, SETTLED_WITHIN_S)
        return soak


def _progress(soak: Soak, left_s: float) -> str:
    ended = ", ".join(f"{name} {count:,}" for name, count in sorted(soak.outcomes.verdicts.items()))
    memory = ", ".join(f"{name} {some[-1].memory_mb:.0f}" for name, some in soak.samples.items())
    return f"{left_s:.0f} s left; {ended}, left {soak.outcomes.left:,}; MB: {memory}"


async def _look(made: Stack, soak: Soak, began: float) -> None:
    """Sample every process about once a second. Raises StandError if one has ended."""
    metrics = {server.process.name: server.metrics_url for server in made.services}
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        for name, part in made.parts.items():
            found = await sample(part.pid, perf_counter() - began, metrics.get(name, ""))
            if found is None:
                raise StandError(f"{name} has ended")
            soak.samples.setdefault(name, []).append(found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.runs.soak", description="What grows under load?")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"how long (default {MINUTES:g})")
    parser.add_argument("--out", type=Path, help="write soak.md into this folder, however long it lasted")
    given = parser.parse_args()
    if not MIN_MINUTES <= given.minutes <= MAX_MINUTES:
        parser.error(f"--minutes: {MIN_MINUTES:g} to {MAX_MINUTES:g} were expected")

    async def made(say: Say) -> Result:
        return result(await play(given.minutes, say))

    command, takes_s = f"make soak MINUTES={given.minutes:g}", START_S + given.minutes * 60
    whole = given.minutes >= MINUTES
    return judged(made, name="soak", command=command, takes_s=takes_s, out=given.out, whole=whole)


if __name__ == "__main__":
    raise SystemExit(main())
