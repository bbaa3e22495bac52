"""`python -m loadtests.runs.restarts [--restarts N] [--out FOLDER]`: replace router processes under load, count losses.

A router of two processes (ROUTER_PROCESSES=2) serves clients that keep their connections and open new ones. SIGUSR2
replaces its processes one after the other, again and again. restarts.md is written after 100 replaced processes or
more, or wherever `--out` says. Exit status: 0; 1 if a request was lost; 2 if the run could not be made.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from loadtests.cluster.several import several
from loadtests.cluster.stand import Shape
from loadtests.load.keepalive import STREAM_EVERY, Load
from loadtests.report.figure import Figure, at_least, at_most
from loadtests.report.page import figures_table
from loadtests.report.progress import Say
from loadtests.report.result import Result
from loadtests.runs.judged import judged

ALL, MAX_RESTARTS = 100, 1000
PROCESSES = 2
CONNECTIONS = 16
AGAIN_EVERY = 25
SHAPE = Shape(workers=2, slots=16, step_ms=10.0, answer_tokens=4)
AFTER_S = 1.0
START_S, RESTART_S = 6.0, 5.0
"""Estimated time of the start, and of one replaced process."""
PAGE = """\
One router of {processes} processes on one port, {shape} and a Valkey, all real processes on loopback with default
settings. SIGUSR2 replaces the processes one after the other, again and again. {connections} clients send as
soon as they are answered, every {stream}th time for a stream; each keeps its connection, and opens a new one after
{again} requests or when an answer says `connection: close`. Nothing is sent twice."""
MEANING = """\
*Lost* is a request without a whole answer: no connection, a connection that ended before or within the answer, an error
status, or a rejection without a time to retry."""


async def play(restarts: int, say: Say) -> Result:
    """Replace so many processes under load. Raises StandError."""
    async with several(SHAPE, PROCESSES) as made:
        load, over = Load(made.url, connections=CONNECTIONS, again_every=AGAIN_EVERY), asyncio.Event()
        asking = asyncio.create_task(load.until(over))
        began, replaced = perf_counter(), 0
        try:
            while replaced < restarts and not asking.done():
                await made.replace_all()
                replaced += PROCESSES
                left_s = (perf_counter() - began) / replaced * (restarts - replaced)
                say(f"{replaced} of {restarts} processes replaced, about {left_s:.0f} s left")
            await asyncio.sleep(AFTER_S)
        finally:
            over.set()
        await asking
        unclean = [line for line in made.logged("a router process ended") if line["status"] != "status 0"]
    return result(load, restarts, replaced, len(unclean))


def result(load: Load, wanted: int, replaced: int, unclean: int) -> Result:
    found = list(figures(load, wanted, replaced, unclean))
    word = "Not held" if any(figure.held is False for figure in found) else "Held"
    verdict = f"**{word}: {load.lost.total():,} of {load.sent:,} requests lost in {replaced} replaced processes.**"
    page = PAGE.format(
        processes=PROCESSES, shape=SHAPE, connections=CONNECTIONS, stream=STREAM_EVERY, again=AGAIN_EVERY
    )
    return Result("Processes replaced under load", {"restarts": found}, [verdict, page, figures_table(found), MEANING])


def figures(load: Load, wanted: int, replaced: int, unclean: int) -> Iterator[Figure]:
    yield at_least("processes replaced", replaced, wanted)
    yield at_most("processes that did not end by themselves with status 0", unclean, 0)
    yield Figure("requests sent", load.sent)
    yield at_least("answered completely", load.answered, 1)
    yield Figure("streams among them", load.streamed)
    yield Figure("connections opened", load.opened)
    yield Figure("rejected, with a time to retry", load.refused.total())
    yield at_most("lost", load.lost.total(), 0)
    yield from (at_most(f"lost: {ending}", count, 0) for ending, count in sorted(load.lost.items()))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.runs.restarts", description="Is a request lost?")
    parser.add_argument("--restarts", type=int, default=ALL, help=f"processes to replace (default {ALL})")
    parser.add_argument("--out", type=Path, help="write restarts.md into this folder, whatever the number of restarts")
    given = parser.parse_args()
    if not PROCESSES <= given.restarts <= MAX_RESTARTS:
        parser.error(f"--restarts: {PROCESSES} to {MAX_RESTARTS} were expected")

    async def played(say: Say) -> Result:
        return await play(given.restarts, say)

    number = "" if given.restarts == ALL else f" --restarts {given.restarts}"
    command = f"python -m loadtests.runs.restarts{number}"
    takes_s, whole = START_S + given.restarts * RESTART_S, given.restarts >= ALL
    return judged(played, name="restarts", command=command, takes_s=takes_s, out=given.out, whole=whole)


if __name__ == "__main__":
    raise SystemExit(main())
