"""`python -m loadtests.runs.failover [--kills N] [--out FOLDER]`: kill routers behind HAProxy, count what that hits.

Three routers that share four workers run behind HAProxy, under 200 streams and plain requests. SIGKILL ends them in
turn, and each request is counted by its end. A plain request that was hit is sent again once, at once. failover.md is
written after 12 kills or more, or wherever `--out` says. Exit status: 0; 1 if a target was missed; 2 if the run could
not be made, as without HAProxy.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from loadtests.cluster.stand import Server, Shape, key_of, ready
from loadtests.load.arrivals import asks
from loadtests.load.client import Client
from loadtests.load.plan import MAX_SECONDS, Plan, Step, Tenant
from loadtests.report.page import figures_table
from loadtests.report.progress import Say
from loadtests.report.result import Result
from loadtests.runs.balanced import CONFIG_NAME, Balanced, balanced
from loadtests.runs.failover.judge import Judged, Kill
from loadtests.runs.judged import judged, typed
from loadtests.scenarios.distributions import constant
from loadtests.scenarios.model import Retries

ALL, MAX_KILLS = 12, 60
SEED = 1
ROUTERS = 3
SHAPE = Shape(workers=4, slots=80, step_ms=150.0, answer_tokens=8)
STREAM_TOKENS = 64
"""A stream takes about ten seconds, so that STREAMS_PER_S makes more than 200 of them open at once."""
STREAMS_PER_S, PLAIN_PER_S = 24.0, 20.0
DEADLINE_MS = 60_000.0
"""Far more than an answer takes: this run does not judge lateness."""
BEFORE_S, BETWEEN_S, AFTER_S = 15.0, 3.0, 3.0
START_S, KILL_S = 25.0, 7.0
"""Estimated time of the start, and of one kill."""

PAGE = """\
Three routers that share four workers ({shape}) and exchange through Valkey, behind HAProxy with the configuration
`{config}`, all real processes on loopback. One router after the other is killed (SIGKILL)
and started again, the next one once HAProxy has seen all three ready. An open-loop client sends {streams:g} streams of
{tokens} tokens and {plain:g} plain requests a second. A plain request whose connection breaks is sent again once; a
stream is not."""
MEANING = """\
*Hit* is a request that failed, or was sent again, because of a kill. It may hit as many as were open at that router,
and those that were sent within half a second."""


def plan_of(seed: int) -> Plan:
    """The load; `play` ends it after the last kill."""
    plain = Tenant(
        "plain", (Step(0.0, PLAIN_PER_S),), answer_tokens=constant(SHAPE.answer_tokens), deadline_ms=DEADLINE_MS,
        retries=Retries(attempts=1, wait="immediate"), key=key_of("plain"),
    )  # fmt: skip
    streams = Tenant(
        "streams", (Step(0.0, STREAMS_PER_S),), answer_tokens=constant(STREAM_TOKENS), deadline_ms=DEADLINE_MS,
        stream=1.0, key=key_of("streams"),
    )  # fmt: skip
    return Plan(MAX_SECONDS, (plain, streams), seed=seed)


def result(found: Judged) -> Result:
    figures = list(found.figures())
    word = "Not held" if any(figure.held is False for figure in figures) else "Held"
    page = PAGE.format(config=CONFIG_NAME, shape=SHAPE, streams=STREAMS_PER_S, plain=PLAIN_PER_S, tokens=STREAM_TOKENS)
    hit = sum(found.hit.values())
    verdict = f"**{word}: {hit:,} of {found.sent:,} requests hit by {len(found.kills)} kills.**"
    return Result("A killed router", {"failover": figures}, [verdict, page, figures_table(figures), MEANING])


async def play(kills: int, seed: int, say: Say, *, before_s: float = BEFORE_S) -> Judged:
    """Kill routers under load. Raises StandError, and RuntimeError without HAProxy."""
    plan, killed, streams = plan_of(seed), [], [0]
    settings = {"MAX_INFLIGHT": str(SHAPE.all_slots), "MAX_SOURCE_SHARE": "1"}
    async with balanced(SHAPE, ("plain", "streams"), ROUTERS, settings) as made:
        client = Client(plan, made.url, asks(plan))
        load = asyncio.create_task(client.run())
        try:
            await asyncio.sleep(before_s)
            for number in range(kills):
                streams.append(sum([await asyncio.to_thread(_open_at, router) for router in made.routers]))
                killed.append(await kill(made, number, client))
                say(f"kill {number + 1} of {kills}")
                if load.done():
                    break  # the client failed; `await load` raises its error
                await asyncio.sleep(BETWEEN_S)
            await asyncio.sleep(AFTER_S)
        finally:
            client.stop()
        found = Judged(killed, frozenset({"plain"}), max_streams=max(streams))
        for row in (await load).rows:
            found.record(row)
    return found


def _open_at(router: Server) -> int:
    """Requests that the router has, running or queued."""
    state = router.state()
    return int(state["inflight"]["now"]) + int(state["scheduler"]["waiting"]["requests"])


async def kill(made: Balanced, number: int, client: Client) -> Kill:
    """Kill a router, and start it again; returns once all are ready. Raises StandError."""
    router = made.routers[number % len(made.routers)]
    found = await asyncio.to_thread(_open_at, router)
    killed = Kill(client.now_s, found)
    router.process.kill()
    await asyncio.sleep(1.0)  # alone long enough to be missed by HAProxy
    router.process.start()
    await ready(router)
    await made.all_ready()
    return killed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.runs.failover", description="What does a kill hit?")
    parser.add_argument("--kills", type=int, default=ALL, help=f"number of kills, in turn (default {ALL})")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, help="write failover.md into this folder, whatever the number of kills")
    given = parser.parse_args()
    if not 1 <= given.kills <= MAX_KILLS:
        parser.error(f"--kills: 1 to {MAX_KILLS} were expected")

    async def played(say: Say) -> Result:
        return result(await play(given.kills, given.seed, say))

    command = typed("failover", {"kills": given.kills, "seed": given.seed}, {"kills": ALL, "seed": SEED})
    takes_s, whole = START_S + given.kills * KILL_S, given.kills >= ALL
    return judged(played, name="failover", command=command, takes_s=takes_s, out=given.out, whole=whole)


if __name__ == "__main__":
    raise SystemExit(main())
