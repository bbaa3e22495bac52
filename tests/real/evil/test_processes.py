"""Real workers killed and frozen in the middle of what they say, under a real router: nobody gets half an answer.

Eight clients ask again and again, each question with a nonce of its own. Whatever is done to a worker, an answer is
the right one to the last byte, or an honest word that there is none.

Three workers, of which a test loses one: a machine that takes the processor from another one for as long as a probe
waits leaves a third, so that a refusal is the router's fault and never the machine's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Any

import httpx2
import pytest

from loadtests.cluster.making import CHAT, Shape
from loadtests.cluster.processes import freeze
from loadtests.cluster.stack import Stack, stack
from loadtests.cluster.stand import Server, key_of, ready
from loadtests.judging.answers import Received, Verdict, judge
from loadtests.judging.nonces import nonce, prompt
from loadtests.runs.integrity.questions import MAX_TOKENS, ROUTES

CALLERS = 8
WORKERS = 3
SHARE = CALLERS // WORKERS  # what each worker holds at least; who holds one more is the router's affair
SILENCE_S = 3.0  # longer than any machine stands still: who is cut for silence was frozen by the test
STEP_MS = 20.0  # an answer takes a third of a second: what is done to its worker meets it halfway
WITHIN_S = 25.0
NUMBERS = count(1)
HEADERS = {"authorization": f"Bearer {key_of(CHAT)}", "x-weir-deadline-ms": "20000"}


@pytest.fixture
def standing() -> Iterator[Stack]:
    """Workers and a router. New ones for each test: who dies often is left alone for longer each time."""
    with asyncio.Runner() as runner:
        shape = Shape(WORKERS, STEP_MS, SILENCE_S, wires=False, stores=False)
        made: AbstractAsyncContextManager[Stack] = stack(shape)
        try:
            yield runner.run(made.__aenter__())
        finally:
            runner.run(made.__aexit__(None, None, None))


async def soon(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(WITHIN_S):
            while not await condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {WITHIN_S:g} s: {what}") from None


def client_of(made: Stack) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=made.router.url, headers=HEADERS, timeout=30, trust_env=False)


async def ask(client: httpx2.AsyncClient, stream: bool) -> Verdict:
    mark = nonce(next(NUMBERS))
    body = {"messages": [{"role": "user", "content": prompt(mark)}], "max_tokens": MAX_TOKENS, "stream": stream}
    reply = await client.post(ROUTES[CHAT], json=body)
    verdict = judge(Received(reply.status_code, reply.content, stream and reply.status_code == 200), mark, MAX_TOKENS)
    assert verdict not in (Verdict.WRONG, Verdict.FOREIGN, Verdict.DROPPED), reply.text
    if verdict is Verdict.REFUSED:
        print(f"refused with {reply.status_code}: {reply.text}")  # pytest shows it where a refusal is a fault
    return verdict


@asynccontextmanager
async def asking(made: Stack, told: list[Verdict], stream: bool) -> AsyncIterator[None]:
    """So many clients, each asking again as soon as it is answered."""
    leaving = asyncio.Event()

    async def call(client: httpx2.AsyncClient) -> None:
        while not leaving.is_set():
            told.append(await ask(client, stream))

    async with client_of(made) as client, asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(call(client))
        try:
            yield
        finally:
            leaving.set()


def done_to(
    made: Stack, victim: Server, stream: bool, trouble: Callable[[], Awaitable[None]], *, lost: bool = False
) -> list[Verdict]:
    """What the clients were told while this was done to a worker that had work, and after it was well again.

    `lost`: it is not well again before the router has taken from it what it held.
    """
    told: list[Verdict] = []

    async def more(than: int) -> None:
        goal = len(told) + than
        await soon(lambda: _true(len(told) >= goal), f"{than} answers more")

    async def held() -> float:
        return await made.read("weir_worker_inflight", f'"{victim.process.name}"')

    async def busy() -> bool:
        return await held() >= SHARE

    async def empty() -> bool:
        return await held() == 0

    async def main() -> None:
        async with asking(made, told, stream):
            await more(20)
            await soon(busy, "the victim has something to lose")
            await trouble()
            await more(40)
            if lost:
                await soon(empty, "what the victim held is taken from it")
            if not victim.process.running:
                victim.process.start()
            victim.process.thaw()
            await ready(victim)
            await soon(busy, "the victim is used again")
            await more(20)
        await soon(lambda: _held_nothing(made), "every place is given back")
        async with client_of(made) as late:
            assert await ask(late, stream) is Verdict.RIGHT

    asyncio.run(main())
    return told


async def _true(value: bool) -> bool:
    return value


async def _held_nothing(made: Stack) -> bool:
    return not await made.held()


def retries(made: Stack) -> float:
    return asyncio.run(made.read("weir_retries_total"))


async def killed(victim: Server) -> None:
    victim.process.kill()


async def frozen(victim: Server) -> None:
    """Until it is thawed, when others have been served."""
    freeze(victim.process.pid)


async def killed_in_its_sleep(victim: Server) -> None:
    freeze(victim.process.pid)
    await asyncio.sleep(0.3)
    victim.process.kill()


async def frozen_for_a_moment(victim: Server) -> None:
    """Shorter than any silence that anybody minds."""
    freeze(victim.process.pid)
    await asyncio.sleep(0.3)
    victim.process.thaw()


LOSING: list[Any] = [killed, frozen, killed_in_its_sleep]


@pytest.mark.parametrize("trouble", LOSING)
@pytest.mark.parametrize("stream", [True, False], ids=["streams", "whole"])
def test_what_a_lost_worker_had_begun_is_cut_and_says_so_and_the_rest_is_made_anew(
    standing: Stack, trouble: Callable[[Server], Awaitable[None]], stream: bool
) -> None:
    before = retries(standing)
    told = done_to(standing, standing.workers[0], stream, lambda: trouble(standing.workers[0]), lost=True)
    cut = told.count(Verdict.CUT)
    assert set(told) <= ({Verdict.RIGHT, Verdict.CUT} if stream else {Verdict.RIGHT}), told
    assert cut + retries(standing) - before >= 1, "what the victim held was made anew, or said to be cut"
    assert cut <= CALLERS


@pytest.mark.parametrize("stream", [True, False], ids=["streams", "whole"])
def test_a_worker_that_stands_still_for_a_moment_costs_nobody_an_answer(standing: Stack, stream: bool) -> None:
    victim = standing.workers[1]
    told = done_to(standing, victim, stream, lambda: frozen_for_a_moment(victim))
    assert set(told) == {Verdict.RIGHT}


@pytest.mark.parametrize("stream", [True, False], ids=["streams", "whole"])
def test_workers_killed_one_after_the_other_leave_no_answer_half_told(standing: Stack, stream: bool) -> None:
    async def one_after_the_other(*workers: Server) -> None:
        for worker in workers:
            worker.process.kill()
            worker.process.start()
            await ready(worker)

    first, second, _ = standing.workers
    told = done_to(standing, first, stream, lambda: one_after_the_other(first, second, first))
    assert Verdict.RIGHT in told
    assert set(told) <= {Verdict.RIGHT, Verdict.CUT, Verdict.REFUSED}
