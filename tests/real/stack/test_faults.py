"""Each part of a real stack killed, frozen, filled or asked to leave, under questions that go on being asked.

The page "How each failure is answered" of docs/architecture, line by line. Nothing is restarted but what was broken:
the rest has to find it again by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2
import psutil
import pytest

from loadtests.cluster.processes import frozen
from tests.processes import is_alive
from tests.real.stack.stand import Part, Stand, Told, chat, soon, until

CALLERS = 12  # fewer than the places of one worker, so that either can carry them all
LONG = 2000  # tokens: a few seconds
ENDLESS = 20_000  # tokens: longer than any test
PATIENT = {"x-weir-deadline-ms": "120000"}  # as long: on a slow machine the default could end it first


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(90):
            await main()

    asyncio.run(bounded())


@contextlib.asynccontextmanager
async def callers(client: httpx2.AsyncClient, told: list[Told]) -> AsyncIterator[None]:
    """So many clients, half of them streaming, each asking again as soon as it is answered."""
    leaving = asyncio.Event()

    async def call(number: int) -> None:
        while not leaving.is_set():
            told.append(await chat(client, stream=number % 2 == 0))

    async with asyncio.TaskGroup() as group:
        for number in range(CALLERS):
            group.create_task(call(number))
        try:
            yield
        finally:
            leaving.set()


def no_error_before_the_first_token(told: list[Told]) -> None:
    """Every answer is whole, or a stream that was cut after it had begun and says so."""
    for one in told:
        cut = one.status == 200 and one.deltas > 0 and one.code == "upstream_failed" and not one.whole
        assert one.served or cut, one


def served_by(worker: Part) -> float:
    return worker.metrics("weir_worker_requests_total", "outcome").get("served", 0.0)


# Workers


def test_a_worker_killed_under_load_costs_no_client_an_error_before_its_first_token(stand: Stand) -> None:
    victim, other = stand.workers
    told: list[Told] = []

    async def main() -> None:
        async with stand.client() as client, callers(client, told):
            await soon(lambda: len(told) >= 40, "40 answers from two workers")
            await soon(lambda: held(stand.router).get("worker-0", 0) >= 2, "the victim has something to lose")
            victim.kill()
            before, by_other = len(told), served_by(other)
            await soon(lambda: len(told) >= before + 60, "60 answers from one worker")
            assert served_by(other) >= by_other + 60 - CALLERS
            victim.spawn()
            await soon(lambda: served_by_if_up(victim) >= 10, "the worker that was killed is used again")

    before = stand.router.metrics("weir_retries_total", "reason")
    run(main)
    no_error_before_the_first_token(told)
    cut = sum(not one.served for one in told)
    after = stand.router.metrics("weir_retries_total", "reason")
    retried = sum(after.values()) - sum(before.values())
    assert cut + retried >= 1, "what the victim held was either tried again or said to be cut"
    assert cut <= CALLERS / 2


def held(router: Part) -> dict[str, float]:
    """What the router's ledger says each worker holds."""
    return router.metrics("weir_worker_inflight", "worker")


def served_by_if_up(worker: Part) -> float:
    with contextlib.suppress(httpx2.TransportError):
        return served_by(worker)
    return 0.0


def test_with_every_worker_dead_503_is_immediate_and_one_worker_back_is_enough(stand: Stand) -> None:
    for worker in stand.workers:
        worker.kill()

    async def main() -> None:
        async with stand.client() as client:
            # The first of them find out for themselves, and wait for nothing: their deadline is a minute away. Each is
            # a tenant of its own: until the last worker is known to be dead, a tenant whose queue stands is told that.
            told = await asyncio.gather(
                *(chat(client, stream=number % 2 == 0, headers=own_minute(number)) for number in range(20))
            )
            assert {(one.status, one.code) for one in told} == {(503, "no_capacity")}
            for one in told:
                assert one.headers["x-should-retry"] == "true"
                assert int(one.headers["retry-after-ms"]) > 0
            await soon(lambda: stand.router.health()[0] == 503, "the router is not ready")
            stand.workers[1].spawn()
            await soon(stand.router.ready, "the router is ready")
            assert (await chat(client)).served
            assert (await chat(client, stream=True)).served

    run(main)


def own_minute(number: int) -> dict[str, str]:
    """A minute for a tenant of its own."""
    return {"x-weir-deadline-ms": "60000", "x-tenant": f"caller-{number}"}


def test_a_frozen_worker_costs_at_most_the_deadline_and_is_left_alone_until_it_thaws(stand: Stand) -> None:
    victim, other = stand.workers
    deadline_ms = 1000

    async def main() -> None:
        async with stand.client() as client:
            loop = asyncio.get_running_loop()

            async def timed() -> tuple[Told, float]:
                began = loop.time()
                told = await chat(client, headers={"x-weir-deadline-ms": str(deadline_ms)})
                return told, (loop.time() - began) * 1000

            with victim.frozen():
                waiting = asyncio.create_task(chat(client))  # one of these two is held by the frozen worker,
                beside = asyncio.create_task(chat(client))  # with half a minute to spare
                answers = await asyncio.gather(*(timed() for _ in range(8)))
                while not any(told.served for told, _ in answers):  # a machine that stood still is late everywhere
                    answers += await asyncio.gather(*(timed() for _ in range(8)))
                assert {(told.status, told.code) for told, _ in answers} == {(200, None), (504, "deadline_exceeded")}
                for told, took_ms in answers:
                    assert told.served or took_ms >= deadline_ms
                await soon(lambda: stand.router.health()[1]["workers"] == [other.name], "the frozen worker is left out")
                after = [await chat(client) for _ in range(20)]
                assert all(told.served for told in after)
            assert (await waiting).served
            assert (await beside).served
            await soon(stand.whole, "the worker that thawed is taken back")
            before = served_by(victim)
            told = await asyncio.gather(*(chat(client) for _ in range(8)))
            assert all(one.served for one in told)
            assert served_by(victim) > before
            await soon(lambda: not held(stand.router), "every place is given back")

    run(main)


# The cache


def test_without_redis_every_answer_has_its_passages_and_the_cache_comes_back_by_itself(stand: Stand) -> None:
    query = stand.question()
    until(lambda: stand.source(query) == "cache", "the cache is in use")
    stand.redis.stop()
    assert [stand.source(query) for _ in range(6)] == ["db"] * 6
    until(lambda: stand.router.degraded() == ["redis"], "the router says what is missing")
    stand.redis.start()
    until(lambda: stand.source(query) == "cache", "the cache is in use again")
    until(stand.whole, "nothing is said to be missing")


def test_a_frozen_redis_costs_three_timeouts_and_then_nothing(stand: Stand) -> None:
    query = stand.question()
    until(lambda: stand.source(query) == "cache", "the cache is in use")
    timeout_ms = float(stand.retrieval.settings["REDIS_TIMEOUT_MS"])
    for _ in range(3):  # where the machine stood still as well, that was waited for: once more
        with frozen(stand.redis.pid):
            answers = [stand.ask() for _ in range(20)]
        assert {answer["retrieval_source"] for answer in answers} == {"db"}
        waited = [answer for answer in answers if answer["retrieval_ms"] >= timeout_ms * 0.9]
        until(lambda: stand.source(query) == "cache", "the cache is in use again")
        if len(waited) <= 3:
            break
    assert len(waited) <= 3


def test_a_full_redis_keeps_nothing_new_and_refuses_no_answer(stand: Stand) -> None:
    known, query = stand.question(), stand.question()
    until(lambda: stand.source(known) == "cache", "the cache is in use")
    stand.set_redis_memory("1", "noeviction")
    assert [stand.source(query) for _ in range(6)] == ["db"] * 6
    until(lambda: stand.source(known) == "cache", "what it has is given out: nothing can have been put in since")
    until(stand.whole, "nothing is said to be missing")
    stand.restore()
    until(lambda: stand.source(query) == "cache", "the cache takes new results again")


# The database


def test_without_postgres_answers_say_that_they_lack_context_and_it_is_found_again(stand: Stand) -> None:
    known = stand.question()
    until(lambda: stand.source(known) == "cache", "the cache is in use")
    stand.postgres.kill()
    answers = [stand.ask() for _ in range(6)]
    for answer in answers:
        assert (answer["retrieval_source"], answer["source"]) == ("none", "degraded")
        assert (answer["degraded"], answer["citations"]) == (["retrieval"], [])
    until(lambda: stand.source(known) == "cache", "what is kept is given out")
    while (stale := stand.ask(known, cache_ttl_s=0))["retrieval_source"] == "none":
        assert stale["degraded"] == ["retrieval"]  # the cache was late, and nobody waits for it
    assert (stale["retrieval_source"], stale["degraded"]) == ("stale", ["retrieval"])
    assert stale["citations"][0]["doc_id"] == "lock.md"
    until(lambda: stand.retrieval.degraded() == ["postgres"], "retrieval names what is missing")
    until(lambda: stand.router.degraded() == ["postgres"], "so does the router")
    assert stand.retrieval.ready()
    assert stand.router.ready()
    stand.postgres.start()
    until(lambda: stand.source() == "db", "the database is in use again")
    until(stand.whole, "nothing is said to be missing")


def test_a_frozen_postgres_costs_no_more_than_the_budget_and_then_nothing(stand: Stand) -> None:
    budget_ms = float(stand.retrieval.settings["RETRIEVAL_BUDGET_MS"])
    with frozen(stand.postgres.pid):
        answers = [stand.ask() for _ in range(12)]
        assert {answer["retrieval_source"] for answer in answers} == {"none"}
        assert {tuple(answer["degraded"]) for answer in answers} == {("retrieval",)}
        waited = [answer for answer in answers if answer["retrieval_ms"] >= budget_ms / 2]
        assert len(waited) <= 3, "once it is known to be down, nobody waits"
        until(lambda: stand.router.degraded() == ["postgres"], "the router says what is missing")
    until(lambda: stand.source() == "db", "the database is in use again")
    until(stand.whole, "nothing is said to be missing")


# Retrieval


def test_without_retrieval_answers_go_on_and_it_is_found_again(stand: Stand) -> None:
    helpers = psutil.Process(stand.retrieval.pid).children(recursive=True)
    stand.retrieval.kill()
    until(lambda: not any(is_alive(helper) for helper in helpers), "what it had started is gone with it")
    answers = [stand.ask() for _ in range(6)]
    assert {(answer["retrieval_source"], tuple(answer["degraded"])) for answer in answers} == {("none", ("retrieval",))}
    embedding = stand.http.post(f"{stand.router.url}/v1/embeddings", json={"input": "a weir"})
    assert (embedding.status_code, embedding.json()["error"]["code"]) == (502, "upstream_failed")
    until(lambda: stand.router.degraded() == ["retrieval"], "the router says what is missing")
    stand.retrieval.spawn()
    until(lambda: stand.source() == "db", "retrieval is in use again")
    until(stand.whole, "nothing is said to be missing")


def test_a_frozen_retrieval_costs_its_budget_and_no_answer(stand: Stand) -> None:
    async def main() -> None:
        async with stand.client() as client:
            replies = await asyncio.gather(
                *(client.post("/ask", json={"query": stand.question(), "max_tokens": 40}) for _ in range(8))
            )
            assert {reply.status_code for reply in replies} == {200}
            assert {reply.json()["retrieval_source"] for reply in replies} == {"none"}

    with stand.retrieval.frozen():
        run(main)
        until(lambda: stand.router.degraded() == ["retrieval"], "the router says what is missing")
    until(lambda: stand.source() == "db", "retrieval is in use again")


# Leaving


def test_a_router_that_is_asked_to_leave_finishes_what_runs_and_takes_nothing_new(stand: Stand) -> None:
    async def main(router: Part) -> None:
        async with stand.client(router) as client, stand.client(router) as late:
            running = [asyncio.create_task(chat(client, LONG, stream=number % 2 == 0)) for number in range(8)]
            await soon(lambda: router.metric("weir_inflight") == 8, "all of them run")
            router.terminate()
            await soon(lambda: not accepts(router), "new connections are refused")
            assert not any(task.done() for task in running), "they are refused while the others still run"
            assert router.running
            told = await asyncio.gather(*running)
            assert all(one.served for one in told), told
            with pytest.raises(httpx2.ConnectError):
                await late.get("/health")
        assert router.exit_code() == 0

    with stand.another_router("leaving") as router:
        run(lambda: main(router))
    assert router.records()[-1]["event"] == "stopped"


def accepts(part: Part) -> bool:
    with contextlib.suppress(httpx2.TransportError):
        part.http.get(f"{part.url}/health")
        return True
    return False


def test_a_worker_that_is_asked_to_leave_finishes_or_says_so_and_new_requests_go_elsewhere(stand: Stand) -> None:
    victim, other = stand.workers
    told: list[Told] = []

    async def main() -> None:
        async with stand.client() as client, stand.client() as endless_client:
            begun: list[int] = []
            async with asyncio.TaskGroup() as group:
                endless = [
                    group.create_task(
                        chat(endless_client, ENDLESS, stream=True, on_first=lambda: begun.append(1), headers=PATIENT)
                    )
                    for _ in range(4)
                ]
                await soon(lambda: held(stand.router) == {"worker-0": 2, "worker-1": 2}, "both workers run two")
                await soon(lambda: len(begun) >= 4, "all have begun")
                async with callers(client, told):
                    await soon(lambda: len(told) >= 20, "others come and go")
                    victim.terminate()
                    await soon(lambda: not victim.running, "the worker has left")
                    by_other = served_by(other)
                    await soon(lambda: served_by(other) >= by_other + 20, "the other one serves")
                await soon(lambda: sum(task.done() for task in endless) == 2, "the worker's own two have ended")
                assert sum(task.done() for task in endless) == 2
                for task in endless:
                    if task.done():
                        cut = task.result()
                        assert (cut.status, cut.code, cut.whole) == (200, "upstream_failed", False)
                        assert cut.deltas > 0
                    else:
                        task.cancel()

    run(main)
    assert victim.exit_code() == 0
    assert all(one.served for one in told), [one for one in told if not one.served]
