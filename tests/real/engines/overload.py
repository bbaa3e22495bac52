"""Overload of a real inference server, alone and behind Weir: `python -m tests.real.engines.overload [NAME...]`.

Capacity is measured first, directly at the server, by a closed loop of one client for each slot. Then an open loop
(Poisson, the same arrivals for both) offers multiples of it, first to the server and then to the router before it. A
client has a deadline of four median answers at full load and leaves at it; all read streams, since each server stops a
stream whose client has left. Prints a table for each server, in Markdown. Nothing else may run on the machine.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import NamedTuple

import httpx2
import uvloop

from loadtests.report.machine import describe
from tests.real.engines.stand import EngineStand, client_of, long_answer, make_model, router_before
from tests.real.engines.table import ENGINES, Engine

ANSWER_TOKENS = 40
DEADLINE_ANSWERS = 4
CAPACITY_S, LOAD_S = 15.0, 20.0
LOADS = (0.8, 2.0, 4.0)
PAUSE_S = 3.0
"""Between two loads, so that what was left has ended."""


class Ask(NamedTuple):
    """The end of one request: seconds from its intended time, and whether it was answered whole or refused."""

    took_s: float
    answered: bool
    refused: bool


class Capacity(NamedTuple):
    per_s: float
    answer_s: float


async def ask(client: httpx2.AsyncClient, at: float, deadline_s: float) -> Ask:
    """Stream one answer; give up at the deadline after `at`."""
    headers = {"x-weir-deadline-ms": f"{deadline_s * 1000:.0f}"}
    body = {**long_answer(ANSWER_TOKENS), "stream": True}
    try:
        async with (
            asyncio.timeout_at(at + deadline_s),
            client.stream("POST", "/completions", json=body, headers=headers, timeout=None) as answer,
        ):
            events = [line async for line in answer.aiter_lines() if line.startswith("data:")]
            whole = bool(events) and not any('"error"' in event for event in events)
            refused = answer.status_code in (429, 503, 504)
            return Ask(time.monotonic() - at, answer.status_code == 200 and whole, refused)
    except (TimeoutError, httpx2.HTTPError):
        return Ask(time.monotonic() - at, answered=False, refused=False)


async def capacity_of(client: httpx2.AsyncClient, slots: int) -> Capacity:
    """By a closed loop of `slots` clients."""
    took: list[float] = []
    began = time.monotonic()

    async def one() -> None:
        while (now := time.monotonic()) - began < CAPACITY_S:
            found = await ask(client, now, 60.0)
            assert found.answered
            took.append(found.took_s)

    await asyncio.gather(*(one() for _ in range(slots)))
    return Capacity(len(took) / (time.monotonic() - began), median(took))


def arrivals(per_s: float, seed: str) -> Iterator[float]:
    chance, at = Random(seed), 0.0
    while (at := at + chance.expovariate(per_s)) < LOAD_S:
        yield at


async def offer(client: httpx2.AsyncClient, per_s: float, deadline_s: float, seed: str) -> list[Ask]:
    began = time.monotonic()

    async def one(after_s: float) -> Ask:
        await asyncio.sleep(began + after_s - time.monotonic())
        return await ask(client, began + after_s, deadline_s)

    return list(await asyncio.gather(*(one(at) for at in arrivals(per_s, seed))))


def row(name: str, load: float, found: list[Ask], capacity: Capacity) -> str:
    on_time = [each.took_s for each in found if each.answered]
    refused = sorted(each.took_s for each in found if each.refused)
    goodput = len(on_time) / LOAD_S / capacity.per_s
    p95 = f"{quantiles(on_time, n=20)[-1]:.2f} s" if len(on_time) > 1 else "-"
    refusal = f"{1000 * median(refused):.0f} ms" if refused else "-"
    lost = len(found) - len(on_time) - len(refused)
    return f"| {load:g} | {name} | {goodput:.2f} | {p95} | {len(refused)} | {refusal} | {lost} |"


async def measured(stand: EngineStand, folder: Path, say: Callable[[str], None]) -> None:
    engine = stand.engine
    async with client_of(f"{stand.url}/v1") as direct, router_before(stand, folder) as router:
        await capacity_of(direct, engine.slots)  # warm
        capacity = await capacity_of(direct, engine.slots)
        deadline_s = DEADLINE_ANSWERS * capacity.answer_s
        say(
            f"\n**{engine.name}**, {engine.slots} slots, answers of {ANSWER_TOKENS} tokens: {capacity.per_s:.1f} a "
            f"second, {capacity.answer_s:.2f} s each; deadline {deadline_s:.1f} s.\n"
        )
        say("| load | | on time / capacity | p95 of those | refused | a refusal takes | not in time |")
        say("|---:|---|---:|---:|---:|---:|---:|")
        await capacity_of(router.client, engine.slots)  # the router learns the engine's pace
        for load in LOADS:
            for name, client in (("alone", direct), ("behind Weir", router.client)):
                await asyncio.sleep(PAUSE_S)
                found = await offer(client, load * capacity.per_s, deadline_s, f"{engine.name} {load}")
                say(row(name, load, found, capacity))


async def play(engine: Engine, say: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(prefix="weir-overload-") as name:
        folder = Path(name)
        make_model(engine, folder)
        stand = EngineStand(engine, folder)
        try:
            await stand.start()
            await measured(stand, folder, say)
        finally:
            stand.kill()


def main(names: list[str]) -> int:
    chosen = [engine for engine in ENGINES if not names or engine.name in names]
    if missing := [why for engine in chosen if (why := engine.missing())]:
        print("\n".join(missing), file=sys.stderr)
        return 1
    for engine in chosen:
        uvloop.run(play(engine, lambda line: print(line, flush=True)))
    print(f"\n{describe()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
