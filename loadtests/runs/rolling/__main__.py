"""`python -m loadtests.runs.rolling [--restarts N] [--out FOLDER]`: restart routers behind HAProxy, count losses.

Two routers that share two workers run behind HAProxy. SIGTERM restarts them in turn under continuous load, and each
request is counted by its end. rolling.md is written after 50 restarts or more, or wherever `--out` says. Exit status:
0; 1 if a request was lost or a router did not exit by itself; 2 if the run could not be made, as without HAProxy.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from loadtests.cluster.stand import Shape, key_of, ready
from loadtests.load.arrivals import Ask, asks
from loadtests.load.client import Client
from loadtests.load.ledger import LATE, ON_TIME, Row
from loadtests.load.plan import MAX_SECONDS, Plan, Step, Tenant
from loadtests.report.figure import Figure, at_least, at_most
from loadtests.report.page import figures_table
from loadtests.report.progress import Say
from loadtests.report.result import Result
from loadtests.runs.balanced import CONFIG_NAME, Balanced, balanced
from loadtests.runs.judged import judged, typed
from loadtests.scenarios.distributions import constant

ALL, MAX_RESTARTS = 50, 200
SEED = 1
ROUTERS = 2
SHAPE = Shape(workers=2, slots=8, step_ms=10.0, answer_tokens=8)
PER_S = {"whole": 25.0, "streams": 10.0}
"""Requests a second of each tenant."""
ANSWER_TOKENS = {"whole": SHAPE.answer_tokens, "streams": 5 * SHAPE.answer_tokens}
DEADLINE_MS = 20_000.0
"""Far more than an answer takes: this run does not judge lateness."""
DRAIN_DELAY_S, DRAIN_TIMEOUT_S = 2.0, 10.0
LEAVES_WITHIN_S = DRAIN_DELAY_S + DRAIN_TIMEOUT_S + 5.0
AFTER_S = 1.0
"""Load after the last restart."""
START_S, RESTART_S = 5.0, 4.0
"""Estimated time of the start, and of one restart."""

PAGE = """\
Two routers that share their workers ({shape}) and exchange through Valkey, behind HAProxy with the configuration
`{config}`, all real processes on loopback. HAProxy probes `/health/ready` every 200 ms and
sends nothing to a router after two answers of 503. The routers are restarted in turn by SIGTERM, each once HAProxy has
seen both ready again; `DRAIN_DELAY_S` is {delay_s:g} and `DRAIN_TIMEOUT_S` {timeout_s:g}. Meanwhile an open-loop client
sends {whole:g} unary requests and {streams:g} streams a second. HAProxy does not retry, not even a connection, so that
every loss is visible."""
MEANING = """\
*Lost* is a request that ended without an answer: no connection, a connection that ended before or within the answer, an
error status, or a rejection without a time to retry."""


@dataclass
class Counted:
    wanted: int
    restarts: int = 0
    unclean: int = 0
    sent: int = 0
    answered: int = 0
    streamed: int = 0
    refused: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    late: int = 0

    def record(self, row: Row) -> None:
        """Count one request. A rejection without a hint comes from HAProxy: no router took the request."""
        self.sent += 1
        if row.ending in (ON_TIME, LATE):
            self.answered += 1
            self.streamed += row.stream
        elif row.ending.startswith("refused:") and row.hint_ms is not None:
            self.refused += 1
        else:
            self.lost[row.ending] += 1

    def figures(self) -> Iterator[Figure]:
        yield at_least("restarts", self.restarts, self.wanted)
        yield at_most("routers that did not exit by themselves with status 0", self.unclean, 0)
        yield Figure("requests sent", self.sent)
        yield at_least("answered completely", self.answered, 1)
        yield Figure("streams among them", self.streamed)
        yield Figure("rejected by a router, with a time to retry", self.refused)
        yield at_most("lost", self.lost.total(), 0)
        yield from (at_most(f"lost: {ending}", count, 0) for ending, count in sorted(self.lost.items()))
        yield Figure("sent over 20 ms late by the client", self.late)


def result(counted: Counted) -> Result:
    figures = list(counted.figures())
    word = "Not held" if any(figure.held is False for figure in figures) else "Held"
    page = PAGE.format(config=CONFIG_NAME, shape=SHAPE, delay_s=DRAIN_DELAY_S, timeout_s=DRAIN_TIMEOUT_S, **PER_S)
    verdict = f"**{word}: {counted.lost.total():,} of {counted.sent:,} requests lost in {counted.restarts} restarts.**"
    return Result("Rolling restart", {"rolling": figures}, [verdict, page, figures_table(figures), MEANING])


def plan_of(seed: int) -> Plan:
    """The load; `play` ends it after the last restart."""
    tenants = tuple(
        Tenant(
            name, (Step(0.0, per_s),), answer_tokens=constant(ANSWER_TOKENS[name]), deadline_ms=DEADLINE_MS,
            stream=float(name == "streams"), key=key_of(name),
        )
        for name, per_s in PER_S.items()
    )  # fmt: skip
    return Plan(MAX_SECONDS, tenants, seed=seed)


async def play(restarts: int, seed: int, say: Say) -> Counted:
    """Restart routers under load. Raises StandError, and RuntimeError without HAProxy."""
    over, plan, counted = asyncio.Event(), plan_of(seed), Counted(restarts)
    settings = {"DRAIN_DELAY_S": str(DRAIN_DELAY_S), "DRAIN_TIMEOUT_S": str(DRAIN_TIMEOUT_S)}
    async with balanced(SHAPE, tuple(PER_S), ROUTERS, settings, connect_retries=0) as made:
        load = asyncio.create_task(Client(plan, made.url, _until(over, asks(plan))).run())
        began = perf_counter()
        try:
            for number in range(restarts):
                counted.unclean += not await restart(made, number)
                counted.restarts += 1
                left_s = (perf_counter() - began) / counted.restarts * (restarts - counted.restarts)
                say(f"restart {counted.restarts} of {restarts}, about {left_s:.0f} s left")
                if load.done():
                    break  # the client failed; `await load` raises its error
            await asyncio.sleep(AFTER_S)
        finally:
            over.set()
        for row in (await load).rows:
            counted.record(row)
            counted.late += row.late_s * 1000 > plan.late_ms
    return counted


def _until(over: asyncio.Event, asked: Iterator[Ask]) -> Iterator[Ask]:
    for ask in asked:
        if over.is_set():
            return
        yield ask


async def restart(made: Balanced, number: int) -> bool:
    """Restart a router and wait until all are ready. Returns whether it exited with 0. Raises StandError."""
    router = made.routers[number % len(made.routers)]
    status = await router.process.leave(LEAVES_WITHIN_S)
    if status is None:
        router.process.kill()
    router.process.start()
    await ready(router)
    await made.all_ready()
    return status == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.runs.rolling", description="Is a request lost?")
    parser.add_argument("--restarts", type=int, default=ALL, help=f"number of restarts, in turn (default {ALL})")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, help="write rolling.md into this folder, whatever the number of restarts")
    given = parser.parse_args()
    if not 1 <= given.restarts <= MAX_RESTARTS:
        parser.error(f"--restarts: 1 to {MAX_RESTARTS} were expected")

    async def played(say: Say) -> Result:
        return result(await play(given.restarts, given.seed, say))

    command = typed("rolling", {"restarts": given.restarts, "seed": given.seed}, {"restarts": ALL, "seed": SEED})
    takes_s, whole = START_S + given.restarts * RESTART_S, given.restarts >= ALL
    return judged(played, name="rolling", command=command, takes_s=takes_s, out=given.out, whole=whole)


if __name__ == "__main__":
    raise SystemExit(main())
