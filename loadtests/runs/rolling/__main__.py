"""`python -m loadtests.runs.rolling [--restarts N] [--out FOLDER]`: restart routers behind HAProxy, count what is lost.

Two routers, each with a worker of its own, stand behind HAProxy, and a supervisor's SIGTERM restarts them in turn. The
load goes on all the while, and each request is counted by its end. rolling.md is written after the whole 50 restarts,
or wherever `--out` says. Exit status: 0; 1 where a request was lost or a router did not leave by itself; 2 where the
run could not be made, as without HAProxy.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from urllib.parse import urlsplit

from loadtests.cluster.processes import Process, free_ports, until_ready
from loadtests.cluster.stand import Server, Shape, key_of, ready, stand, start_router
from loadtests.load.arrivals import Ask, asks
from loadtests.load.client import Client
from loadtests.load.ledger import LATE, ON_TIME, Row
from loadtests.load.plan import MAX_SECONDS, Plan, Step, Tenant
from loadtests.report.figure import Figure, at_least, at_most
from loadtests.report.page import figures_table
from loadtests.report.progress import Say
from loadtests.report.result import Result
from loadtests.runs.judged import judged, typed
from loadtests.runs.matrix.subjects import haproxy
from loadtests.scenarios.distributions import constant

ALL, MOST_RESTARTS = 50, 200
SEED = 1
CONFIG = Path(__file__).with_name("haproxy.cfg")
ROUTERS = 2
SHAPE = Shape(workers=1, slots=16, step_ms=10.0, answer_tokens=8)
PER_S = {"whole": 25.0, "streams": 10.0}
"""The tenants, and what each asks for."""
ANSWER_TOKENS = {"whole": SHAPE.answer_tokens, "streams": 5 * SHAPE.answer_tokens}
DEADLINE_MS = 20_000.0
"""Far more than an answer takes: lateness is not what this run looks at."""
DRAIN_DELAY_S, DRAIN_TIMEOUT_S = 2.0, 10.0
LEAVES_WITHIN_S = DRAIN_DELAY_S + DRAIN_TIMEOUT_S + 5.0
AFTER_S = 1.0
"""Of load after the last restart."""
START_S, RESTART_S = 5.0, 4.0
"""About as long as the start takes, and one restart."""

PAGE = """\
Two routers, each with a worker of its own ({shape}), behind HAProxy with the configuration
`loadtests/runs/rolling/haproxy.cfg`, all real processes on loopback. HAProxy asks `/health/ready` every 200 ms and
sends nothing to a router that has said 503 twice. The routers are restarted in turn by SIGTERM, the next one when
HAProxy has seen both ready again; `DRAIN_DELAY_S` is {delay_s:g} and `DRAIN_TIMEOUT_S` {timeout_s:g}. All the while an
open-loop client asks for {whole:g} whole answers and {streams:g} streams a second. HAProxy does not retry, not even a
connection, so that every loss is seen."""
MEANING = """\
*Lost* is a request that ended without an answer: no connection, a connection that ended before the answer or within it,
an error status, or a refusal that does not say when to come back."""


@dataclass
class Tally:
    """The restarts, and how the requests ended."""

    wanted: int
    restarts: int = 0
    unclean: int = 0
    sent: int = 0
    answered: int = 0
    streamed: int = 0
    refused: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    late: int = 0

    def hear(self, row: Row) -> None:
        """One request has ended. A refusal without a hint comes from HAProxy: no router took the request."""
        self.sent += 1
        if row.ending in (ON_TIME, LATE):
            self.answered += 1
            self.streamed += row.stream
        elif row.ending.startswith("refused:") and row.hint_ms is not None:
            self.refused += 1
        else:
            self.lost[row.ending] += 1

    def figures(self) -> Iterator[Figure]:
        """Everything that was counted, with its target."""
        yield at_least("restarts", self.restarts, self.wanted)
        yield at_most("routers that did not leave by themselves with status 0", self.unclean, 0)
        yield Figure("requests sent", self.sent)
        yield at_least("answered, whole", self.answered, 1)
        yield Figure("streams among them", self.streamed)
        yield Figure("refused by a router, with a time to come back", self.refused)
        yield at_most("lost", self.lost.total(), 0)
        yield from (at_most(f"lost: {ending}", count, 0) for ending, count in sorted(self.lost.items()))
        yield Figure("sent over 20 ms late by the client", self.late)


def result(tally: Tally) -> Result:
    """The page and its figures."""
    figures = list(tally.figures())
    word = "Not held" if any(figure.held is False for figure in figures) else "Held"
    page = PAGE.format(shape=SHAPE, delay_s=DRAIN_DELAY_S, timeout_s=DRAIN_TIMEOUT_S, **PER_S)
    verdict = f"**{word}: {tally.lost.total():,} of {tally.sent:,} requests lost in {tally.restarts} restarts.**"
    return Result("A rolling restart", {"rolling": figures}, [verdict, page, figures_table(figures), MEANING])


def plan_of(seed: int) -> Plan:
    """The load, which `play` ends when the last restart is over."""
    tenants = tuple(
        Tenant(
            name, (Step(0.0, per_s),), answer_tokens=constant(ANSWER_TOKENS[name]), deadline_ms=DEADLINE_MS,
            stream=float(name == "streams"), key=key_of(name),
        )
        for name, per_s in PER_S.items()
    )  # fmt: skip
    return Plan(MAX_SECONDS, tenants, seed=seed)


async def play(restarts: int, seed: int, say: Say) -> Tally:
    """Restart so often, under load all the while. Raises StandError, and RuntimeError without HAProxy."""
    over, plan, tally = asyncio.Event(), plan_of(seed), Tally(restarts)
    async with rolling() as made:
        load = asyncio.create_task(Client(plan, made.url, _until(over, asks(plan))).run())
        began = perf_counter()
        try:
            for number in range(restarts):
                tally.unclean += not await made.restart(number)
                tally.restarts += 1
                left_s = (perf_counter() - began) / tally.restarts * (restarts - tally.restarts)
                say(f"restart {tally.restarts} of {restarts}, about {left_s:.0f} s left")
                if load.done():
                    break  # the client failed: its fault is raised below
            await asyncio.sleep(AFTER_S)
        finally:
            over.set()
        for row in (await load).rows:
            tally.hear(row)
            tally.late += row.late_s * 1000 > plan.late_ms
    return tally


def _until(over: asyncio.Event, asked: Iterator[Ask]) -> Iterator[Ask]:
    """The requests before that."""
    for ask in asked:
        if over.is_set():
            return
        yield ask


@dataclass
class Rolling:
    """What runs. Clients ask at `url`; HAProxy says at `both_url` whether it has seen both routers ready."""

    url: str
    both_url: str
    balancer: Process
    routers: list[Server]

    async def restart(self, number: int) -> bool:
        """Restart a router as a supervisor does it, and wait until HAProxy sends requests to both again.

        Returns whether the router left by itself and with status 0. Raises StandError where it does not come back.
        """
        router = self.routers[number % len(self.routers)]
        status = await router.process.leave(LEAVES_WITHIN_S)
        if status is None:
            router.process.kill()
        router.process.start()
        await ready(router)
        await self.both_ready()
        return status == 0

    async def both_ready(self) -> None:
        """Until HAProxy has seen both routers ready."""
        await until_ready(self.balancer, self.both_url)


@asynccontextmanager
async def rolling() -> AsyncIterator[Rolling]:
    """Start everything, and stop it whatever happens. Raises RuntimeError where HAProxy is not installed."""
    program = haproxy()
    if program is None:
        raise RuntimeError("HAProxy is not installed: apt-get install haproxy")
    tenants = tuple(PER_S)
    async with AsyncExitStack() as stack:
        # A worker belongs to one router: two routers would each plan with all of its slots.
        opening = (stack.enter_async_context(stand(SHAPE, tenants, router=False)) for _ in range(ROUTERS))
        stands = await asyncio.gather(*opening)
        settings = {"DRAIN_DELAY_S": str(DRAIN_DELAY_S), "DRAIN_TIMEOUT_S": str(DRAIN_TIMEOUT_S)}
        await asyncio.gather(*(start_router(made, tenants, settings) for made in stands))
        routers = [made.router for made in stands if made.router is not None]
        port, health_port = free_ports(2)
        env = {"PORT": str(port), "HEALTH_PORT": str(health_port)}
        env |= {f"ROUTER_{index}": str(urlsplit(router.url).port) for index, router in enumerate(routers)}
        balancer = Process("haproxy", [str(program), "-db", "-f", str(CONFIG)], env, stands[0].folder)
        made = Rolling(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{health_port}/both", balancer, routers)
        balancer.start()
        stack.push_async_callback(balancer.stop)
        await made.both_ready()
        yield made


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.runs.rolling", description="Is a request lost?")
    parser.add_argument("--restarts", type=int, default=ALL, help=f"how many, of one router after the other ({ALL})")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, help="write rolling.md into this folder, however many there were")
    given = parser.parse_args()
    if not 1 <= given.restarts <= MOST_RESTARTS:
        parser.error(f"--restarts: 1 to {MOST_RESTARTS} were expected")

    async def told(say: Say) -> Result:
        return result(await play(given.restarts, given.seed, say))

    command = typed("rolling", {"restarts": given.restarts, "seed": given.seed}, {"restarts": ALL, "seed": SEED})
    takes_s, whole = START_S + given.restarts * RESTART_S, given.restarts >= ALL
    return judged(told, name="rolling", command=command, takes_s=takes_s, out=given.out, whole=whole)


if __name__ == "__main__":
    raise SystemExit(main())
