"""What ends a request from the router's side, at each stage it may stand at: its deadline, or the router's leaving.

The clock is put forward instead of waited for, so these hold on a slow machine too.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from services.core.outcome import Outcome
from services.router.serving import context
from tests.router.leaver import Client, answered_whole
from tests.router.leaving import leap, scene
from tests.router.rig import Stand
from tests.router.stepping import AT_A_WORKER, NOT_YET_ASKED, TOKENS_BEFORE, Stage
from tests.runtime.rig import until
from tests.virtual import run

FEW = ("one", "two", "three", "four")
DEADLINE_MS, PAST_S = 4500, 4.6  # before the head of a silent stream goes out by itself

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
ASKED = [stage for stage in Stage if stage not in (*NOT_YET_ASKED, Stage.AFTER)]


def stages(which: list[Stage]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("stage", which, ids=lambda stage: stage.value)


def began(stage: Stage, stream: bool) -> bool:
    """Whether the client has heard the beginning of its answer by then."""
    return stream and stage in TOKENS_BEFORE


def told(client: Client) -> tuple[int, dict[str, Any]]:
    """The status, and the error: the body of a refusal, or the last event of a stream that was cut."""
    head, _, body = client.seen.partition(b"\r\n\r\n")
    status = int(head.split(b" ")[1])
    if status == 200:
        assert b"[DONE]" not in body
        body = body.partition(b"event: error\ndata: ")[2].partition(b"\n\n")[0]
    error: dict[str, Any] = json.loads(body)["error"]
    return status, error


@both
@stages(ASKED)
def test_a_deadline_that_passes_ends_it_where_it_stands(
    stage: Stage, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = stage in (Stage.QUEUED, Stage.RETRIEVAL)
    outcome = Outcome.DEADLINE_EXPIRED if waited else Outcome.DEADLINE_EXCEEDED

    async def main() -> None:
        async with scene(stage, monkeypatch, stream=stream) as here:
            holder = await here.hold_the_slot() if stage is Stage.QUEUED else None
            clients = await here.arrive(FEW, x_weir_deadline_ms=str(DEADLINE_MS))
            leap(PAST_S)
            await asyncio.gather(*(client.read_until(answered_whole) for client in clients))
            for status, error in map(told, clients):
                assert status == (200 if began(stage, stream) else 429 if waited else 504)
                assert error["code"] == outcome
                assert "retry_hint_ms" not in error["details"]
            if holder is not None:
                holder.leave()
            await here.at_rest()
            assert {here.dispatcher.outcomes[name] for name in FEW} == {outcome}
            assert (await here.stand.counted())[outcome] == len(FEW)
            if stage in AT_A_WORKER:
                await until(lambda: sum(len(w.cancelled) for w in here.workers) == len(FEW), "the workers told")

    run(main)


@both
@stages(list(Stage))
def test_a_drain_turns_away_who_waits_and_cuts_who_runs_at_the_end_of_the_grace(
    stage: Stage, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        clients = await drained(stage, stream, monkeypatch)
        if stage in (*NOT_YET_ASKED, Stage.AFTER):
            return
        for status, error in map(told, clients):
            assert status == (200 if began(stage, stream) else 503)
            assert error["code"] == Outcome.DRAINING
            assert error["details"]["retry_hint_ms"] >= 50

    run(main)


async def drained(stage: Stage, stream: bool, monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """Clients at the stage, when their router has left; what they read is read to the end of their connection."""
    monkeypatch.setattr(Stand, "all_returned", lambda stand: asyncio.sleep(0))  # it leaves with all of them there
    async with scene(stage, monkeypatch, stream=stream, drain_timeout_s=0.1) as here:
        if stage is Stage.QUEUED:
            await here.hold_the_slot()
        clients = await here.arrive(FEW)
        before = [client.seen for client in clients]
        reading = asyncio.gather(*(client.read_to_end() for client in clients))
    await reading
    assert here.still_held() == []
    if stage in NOT_YET_ASKED:
        assert [client.seen for client in clients] == [b""] * len(FEW)  # closed without a word: nothing was asked
        assert here.dispatcher.outcomes == {}
    elif stage is Stage.AFTER:
        assert [client.seen for client in clients] == before  # closed, idle
    else:
        assert {here.dispatcher.outcomes[name] for name in FEW} == {Outcome.DRAINING}
    return clients


@both
def test_a_drain_lets_what_runs_come_to_its_end(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with scene(Stage.LAST_TOKEN, monkeypatch, stream=stream) as here:
            clients = await here.arrive(FEW)
            here.stand.router.drain.begin()
            here.go.set()
            for client in clients:
                assert (await client.read_until(answered_whole)).startswith(b"HTTP/1.1 200")
            assert not here.stand.router.drain.inflight or await until(lambda: not here.stand.router.drain.inflight)
            assert await here.stand.counted() == {Outcome.SERVED: len(FEW)}

    run(main)


def test_a_deadline_that_nears_during_retrieval_costs_the_passages_and_not_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(context, "ANSWER_RESERVE_MS", 3000.0)  # on a slow machine, too, more than an answer takes

    async def main() -> None:
        async with scene(Stage.RETRIEVAL, monkeypatch, stream=False) as here:
            for worker in here.workers:
                worker.stage = Stage.AFTER  # answers
            clients = await here.arrive(FEW, x_weir_deadline_ms=str(DEADLINE_MS))
            leap(PAST_S - 3.0)  # the time that is reserved for the answer has begun
            for client in clients:
                seen = await client.read_until(answered_whole)
                assert seen.startswith(b"HTTP/1.1 200")
                assert b"x-weir-degraded: retrieval" in seen
            await until(lambda: here.retrieval.left == len(FEW), "retrieval let go")

    run(main)


def test_whoever_is_turned_away_during_retrieval_is_told_at_once_and_retrieval_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Retrieval's budget is a minute and so is the grace: nothing but the refusal ends them so soon."""

    async def main() -> None:
        async with scene(Stage.RETRIEVAL, monkeypatch, stream=False, drain_timeout_s=60) as here:
            clients = await here.arrive(FEW, x_weir_deadline_ms="60000")
            here.dispatcher.drain()
            await asyncio.gather(*(client.read_until(answered_whole) for client in clients))
            assert [(status, error["code"]) for status, error in map(told, clients)] == [(503, Outcome.DRAINING)] * 4
            await until(lambda: here.retrieval.left == len(FEW), "retrieval let go")
            await here.at_rest()

    run(main)


def test_a_client_without_patience_is_told_when_it_ends_also_after_its_retrieval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with scene(Stage.RETRIEVAL, monkeypatch, stream=False, max_inflight=1, retrieval_budget_ms=100) as here:
            holder = await here.hold_the_slot()
            clients = await here.arrive(FEW, prefer="wait=5")
            leap(1.0)  # retrieval has had its time; from now on they could start
            await until(lambda: here.retrieval.left == len(FEW), "retrieval let go")
            leap(8.0)
            await asyncio.gather(*(client.read_until(answered_whole) for client in clients))
            for status, error in map(told, clients):
                assert (status, error["code"], error["details"]["reason"]) == (429, Outcome.YIELD, "no_slot")
            holder.leave()
            await here.at_rest()

    run(main)
