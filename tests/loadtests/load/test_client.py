"""The open loop against a scripted server, in memory: what it does to the client must end up on the ledger."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from loadtests.cluster.processes import Process
from loadtests.cluster.stand import Server as Running
from loadtests.cluster.stand import Shape, Stand
from loadtests.load import connection
from loadtests.load.arrivals import Ask, asks
from loadtests.load.asking import Asking
from loadtests.load.capacity import measure
from loadtests.load.client import BURST_S, Bounds, Client
from loadtests.load.figures import figures
from loadtests.load.ledger import GAVE_UP, HELD_BACK, LATE, ON_TIME, Ledger
from loadtests.load.plan import Plan, Step, Tenant
from loadtests.scenarios.distributions import constant
from loadtests.scenarios.model import Retries
from tests.loadtests.load.scripted import (
    SPOKEN_ERROR,
    TOKEN,
    Received,
    Script,
    Server,
    answer,
    bare_503,
    chunked,
    close_unanswered,
    cut,
    endings,
    events,
    never,
    no_http,
    plan,
    refuse,
    reset,
    run,
    serving,
    slowly,
    steadily,
    twice,
    until_closed,
)
from tests.virtual import stand_still

UNHURRIED = {"deadline_ms": 20_000.0}
HURRIED = {"deadline_ms": 100.0}
IMPATIENT = {"deadline_ms": 100.0, "client_timeout_ms": 150.0}


@pytest.mark.parametrize(
    ("script", "tenant", "ending"),
    [
        (answer, UNHURRIED, ON_TIME),
        (chunked, UNHURRIED, ON_TIME),
        (until_closed, UNHURRIED, ON_TIME),
        (events(TOKEN, TOKEN, b"[DONE]"), UNHURRIED, ON_TIME),
        (refuse, UNHURRIED, "refused:yield"),
        (bare_503, UNHURRIED, "refused:bare_503"),
        (slowly, HURRIED, LATE),
        (never, IMPATIENT, GAVE_UP),
        (close_unanswered, UNHURRIED, "failed:closed"),
        (cut, UNHURRIED, "failed:cut"),
        (reset, UNHURRIED, "failed:closed"),
        (no_http, UNHURRIED, "failed:malformed"),
        (twice, UNHURRIED, "failed:malformed"),
        (events(TOKEN), UNHURRIED, "failed:cut"),
        (events(TOKEN, SPOKEN_ERROR), UNHURRIED, "failed:stream_error"),
    ],
    ids=[
        "whole", "chunked", "ends with the connection", "streamed", "refused", "a proxy's bare 503", "slow", "silent",
        "closed", "cut", "reset", "not HTTP", "answered twice", "a stream without its end", "a stream with an error",
    ],
)  # fmt: skip
def test_whatever_a_server_does_each_request_has_one_ending(
    script: Script, tenant: dict[str, Any], ending: str
) -> None:
    ledger, server = steadily(run(plan(4, **tenant), script))
    assert endings(ledger) == {ending: 4}
    assert ledger.tries == {ending: 4}
    assert len(server.heard) == 4


def test_no_connection_is_an_ending_of_its_own() -> None:
    ledger = steadily(Client(plan(3), "http://127.0.0.1:1").run())
    assert endings(ledger) == {"failed:connect": 3}


def test_requests_leave_at_their_times_although_nothing_is_answered() -> None:
    ledger, server = steadily(run(plan(20, **IMPATIENT), never))
    assert max(heard.at_once for heard in server.heard) > 5  # a client that waits would have sent one
    assert [row.intended_s for row in ledger.rows] == pytest.approx([0.01 * (n + 1) for n in range(20)])
    assert all(row.sent_s >= row.intended_s for row in ledger.rows if row.sent_s is not None)


def test_latency_counts_from_the_intended_time_where_the_generator_has_no_connection_left() -> None:
    ledger, _ = steadily(run(plan(4, deadline_ms=20_000, connections=1), slowly))
    last = ledger.rows[-1]
    assert last.sent_s is not None
    assert last.latency_s is not None
    assert last.sent_s - last.intended_s > 0.2  # three answers of 0.15 s stood before it, in 0.2 s
    assert last.latency_s > last.late_s + 0.1


STALL_S = 1.0


class Stalling:
    """Answers at once, but for one second in which nothing is answered: it begins with the hundredth request."""

    def __init__(self) -> None:
        self.heard = 0
        self.over = asyncio.Event()

    async def __call__(self, heard: Received, writer: asyncio.StreamWriter) -> None:
        self.heard += 1
        if self.heard == 100:
            asyncio.get_running_loop().call_later(STALL_S, self.over.set)
        if self.heard >= 100:
            await self.over.wait()
        await answer(heard, writer)


@pytest.mark.parametrize("connections", [4096, 1], ids=["as many connections as it takes", "one connection"])
def test_a_server_that_stalls_for_a_second_shows_it_in_the_percentiles(connections: int) -> None:
    tenant = Tenant("a", (Step(0, 100),), arrivals="paced", deadline_ms=20_000, connections=connections)
    made = Plan(seconds=3, tenants=(tenant,), warmup_s=0, cooldown_s=0)
    ledger, _ = steadily(run(made, Stalling()))
    found = figures(made, ledger).all
    assert found.endings == {ON_TIME: len(ledger.rows)}
    # A hundred of three hundred came while it stood still. They waited for what was left of the second: any of them
    # more than half of it if it came in its first half, and this whatever else the machine does.
    waited = [row for row in ledger.rows if row.latency_s is not None and row.latency_s > STALL_S / 2]
    assert len(waited) >= 49
    assert found.answers_ms.p95 > 700
    assert found.answers_ms.max > 990


def test_a_loop_that_waits_for_its_answer_would_have_hidden_it() -> None:
    async def asked() -> list[float]:
        async with serving(Stalling()) as (_, url):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            request = Asking(url, "completions").bytes_of(Ask(0, plan().tenants[0], 8, 4, False), 1)
            now, waits_s = asyncio.get_running_loop().time, []
            for _ in range(300):
                began_at = now()
                writer.write(request)
                await reader.readuntil(b"}}")
                waits_s.append(now() - began_at)
            writer.close()
            return waits_s

    waits_s = sorted(steadily(asked()))
    assert waits_s[-1] > 0.99
    assert sum(wait_s > STALL_S / 2 for wait_s in waits_s) < 10  # of as many requests: its p95 knows of no stall


def test_a_connection_is_kept_and_never_carries_two_requests_at_once() -> None:
    ledger, server = steadily(run(plan(20, connections=1), answer))
    assert endings(ledger) == {ON_TIME: 20}
    assert server.connections == 1
    _, server = steadily(run(plan(20, connections=3), slowly))
    assert server.connections == 3
    assert max(heard.at_once for heard in server.heard) <= 3


def test_a_connection_that_has_rested_for_long_is_left_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_REST_S", 0.0)
    ledger, server = steadily(run(plan(5, connections=1), answer))
    assert endings(ledger) == {ON_TIME: 5}
    assert server.connections == 5


def test_a_client_may_say_for_how_long_its_connections_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_REST_S", 0.0)
    assert connection.Pool("127.0.0.1", 1, limit=1).rest_s == 0.0
    assert connection.Pool("127.0.0.1", 1, limit=1, rest_s=60.0).rest_s == 60.0


def test_nothing_is_sent_on_a_connection_that_the_server_has_closed() -> None:
    async def main() -> None:
        pool = connection.Pool("127.0.0.1", 1, limit=1)
        closed, transport = connection.Connection(pool), mock.Mock(spec=asyncio.Transport)
        closed.connection_made(transport)
        pool.free(closed)
        transport.is_closing.return_value = True
        pool.send(connection.Exchange(b"GET / HTTP/1.1\r\n\r\n", lambda exchange: None))
        transport.write.assert_not_called()
        await pool.close()

    steadily(main())


def test_who_gives_up_closes_its_connection_at_once() -> None:
    impatient = plan(1, **IMPATIENT).tenants[0]
    witness = replace(impatient, name="witness", deadline_ms=20_000, client_timeout_ms=0)
    made = replace(plan(1), tenants=(impatient, witness))

    async def played() -> Counter[str]:
        async def script(heard: Received, writer: asyncio.StreamWriter) -> None:
            if heard.headers["x-tenant"] == "a":
                await events(*[TOKEN] * 500)(heard, writer)
            while server.gone < 3:  # the run is not over before the witness is answered, so its end closes nothing
                await asyncio.sleep(0.01)
            await answer(heard, writer)

        async with serving(script) as (server, url):
            trace = [Ask(0.0, tenant, 8, 4, False) for tenant in (impatient, impatient, impatient, witness)]
            return endings(await Client(made, url, iter(trace)).run())

    assert steadily(played()) == {GAVE_UP: 3, ON_TIME: 1}


def test_a_first_token_is_timed_apart() -> None:
    ledger, _ = steadily(run(plan(2, deadline_ms=20_000, stream=1.0), events(*[TOKEN] * 5, b"[DONE]")))
    for row in ledger.rows:
        assert row.first_s is not None
        assert row.end_s is not None
        assert row.end_s - row.first_s > 0.05
        assert row.tokens == 5


def test_what_an_answer_says_of_itself_is_on_the_ledger() -> None:
    ledger, _ = steadily(run(plan(1), answer))
    (row,) = ledger.rows
    assert (row.status, row.level, row.degraded, row.tokens, row.attempts) == (200, 2, "max_tokens", 4, 1)
    ledger, _ = steadily(run(plan(1), refuse))
    (row,) = ledger.rows
    assert (row.status, row.code, row.hint_ms, row.should_retry) == (429, "yield", 60, True)


def test_a_server_is_told_tenant_key_deadline_and_length_and_no_two_prompts_are_alike() -> None:
    made = plan(5, key="secret", deadline_ms=1500, answer_tokens=constant(7))
    _, server = steadily(run(made, answer))
    heard = server.heard[0]
    assert heard.target == "/v1/completions"
    assert heard.headers["x-tenant"] == "a"
    assert heard.headers["authorization"] == "Bearer secret"
    assert heard.headers["x-weir-deadline-ms"] == "1500"
    assert (heard.body["max_tokens"], heard.body["ignore_eos"]) == (7, True)
    assert len({each.body["prompt"] for each in server.heard}) == 5


@pytest.mark.parametrize(
    ("route", "target", "field"),
    [
        ("completions", "/v1/completions", "prompt"),
        ("chat", "/v1/chat/completions", "messages"),
        ("ask", "/ask", "query"),
        ("generate", "/generate", "prompt"),
    ],
)
def test_each_route_has_its_own_body(route: str, target: str, field: str) -> None:
    made = replace(plan(1), route=route)
    _, server = steadily(run(made, answer))
    assert server.heard[0].target == target
    assert field in server.heard[0].body


def refuse_first(times: int) -> Script:
    seen: Counter[str] = Counter()

    async def script(heard: Received, writer: asyncio.StreamWriter) -> None:
        seen["all"] += 1
        await (refuse if seen["all"] <= times else answer)(heard, writer)

    return script


def test_an_obedient_client_comes_back_when_it_was_told_and_is_one_request() -> None:
    ledger, server = steadily(run(plan(1, retries=Retries(attempts=3, wait="hint")), refuse_first(2)))
    (row,) = ledger.rows
    assert (row.ending, row.attempts, len(server.heard)) == (ON_TIME, 3, 3)
    assert ledger.tries == {"refused:yield": 2, ON_TIME: 1}
    assert row.tried_s - row.intended_s >= 0.12
    assert [refusal.hint_ms for refusal in ledger.refusals] == [60, 60]


def test_a_storm_comes_back_at_once_whatever_happened_and_not_for_ever() -> None:
    for script, ending in ((refuse, "refused:yield"), (cut, "failed:cut"), (never, GAVE_UP)):
        made = plan(2, retries=Retries(attempts=3, wait="immediate"), deadline_ms=50, client_timeout_ms=60)
        ledger, server = steadily(run(made, script))
        assert endings(ledger) == {ending: 2}
        assert ledger.tries == {ending: 8}
        assert len(server.heard) == 8


def test_a_retry_that_repeats_has_the_same_bytes_on_the_same_connection_and_any_other_a_new_prompt() -> None:
    for repeats in (True, False):
        retries = Retries(attempts=3, wait="immediate", repeats=repeats)
        ledger, server = steadily(run(plan(5, retries=retries), refuse))
        assert ledger.tries == {"refused:yield": 20}
        of_connection: dict[int, list[str]] = {}
        for heard in server.heard:
            of_connection.setdefault(heard.connection, []).append(heard.body["prompt"])
        prompts = {prompt for each in of_connection.values() for prompt in each}
        assert len(prompts) == (5 if repeats else 20)
        if repeats:
            assert all(sorted(each) == each for each in of_connection.values()), "a request's tries follow each other"


def test_a_retry_whose_connection_was_closed_repeats_its_bytes_on_another() -> None:
    _, server = steadily(run(plan(1, retries=Retries(attempts=2, wait="immediate", repeats=True)), bare_503))
    assert [heard.connection for heard in server.heard] == [1, 2, 3]
    assert len({heard.body["prompt"] for heard in server.heard}) == 1


def test_a_retry_takes_its_own_connection_although_another_was_used_later() -> None:
    async def main() -> None:
        async with serving(refuse) as (server, url):
            retries = Retries(attempts=1, wait="hint", repeats=True)
            made = plan(6, retries=retries, deadline_ms=20_000)
            # the hint is longer than the gaps: all first tries are over before the first retry
            source = iter([Ask(0.001 * at, made.tenants[0], 8, 4, False) for at in range(6)])
            await asyncio.wait_for(Client(made, url, source).run(), 30)
        connections: dict[str, set[int]] = {}
        for heard in server.heard:
            connections.setdefault(heard.body["prompt"], set()).add(heard.connection)
        assert len(connections) == 6
        assert all(len(each) == 1 for each in connections.values())

    steadily(main())


def test_impatient_clients_come_back_at_once_and_the_others_when_they_were_told() -> None:
    made = plan(200, retries=Retries(attempts=1, wait="hint", impatient=0.3), deadline_ms=20_000)
    ledger, _ = steadily(run(made, refuse))
    impatient = [row for row in ledger.rows if row.impatient]
    assert 40 < len(impatient) < 80
    waited = {row.impatient: row.tried_s - row.intended_s >= 0.06 for row in ledger.rows}
    assert waited == {True: False, False: True}


def test_a_recorded_trace_can_stand_in_for_the_plans_own_arrivals() -> None:
    made = plan(1)
    trace = iter([Ask(at_s, made.tenants[0], 8, 4, False) for at_s in (0.0, 0.01, 0.05)])

    async def replay() -> Ledger:
        async with serving(answer) as (_, url):
            return await Client(made, url, trace).run()

    ledger = steadily(replay())
    assert [row.intended_s for row in ledger.rows] == [0.0, 0.01, 0.05]
    assert endings(ledger) == {ON_TIME: 3}


def test_a_client_that_was_away_knows_by_how_much() -> None:
    made = plan(1, deadline_ms=20_000)

    async def blocked() -> Ledger:
        async with serving(answer) as (_, url):
            client = Client(made, url, iter([Ask(0.1, made.tenants[0], 8, 4, False)]))
            run = asyncio.create_task(client.run())
            while not client.ledger.open:
                await asyncio.sleep(0.001)
            stand_still(0.3)
            return await run

    (row,) = steadily(blocked()).rows
    assert row.lag_s > 0.25
    (row,) = steadily(run(made, answer))[0].rows
    assert row.end_s is not None
    assert row.lag_s <= row.end_s


def test_a_fault_of_the_generator_itself_ends_the_run_loudly() -> None:
    made = plan(1)

    def broken():
        yield Ask(0.0, made.tenants[0], 8, 4, False)
        raise ZeroDivisionError("the trace is broken")

    async def replay() -> None:
        async with serving(answer) as (_, url):
            await Client(made, url, broken()).run()

    with pytest.raises(ZeroDivisionError, match="trace"):
        steadily(asyncio.wait_for(replay(), 10))


def bounded(script: Script, made: Plan, bounds: Bounds, stop_after_s: float | None = None) -> tuple[Ledger, Server]:
    """A run within bounds; `stop_after_s`: everybody is sent away then."""

    async def main() -> tuple[Ledger, Server]:
        async with serving(script) as (server, url):
            client = Client(made, url, bounds=bounds)
            if stop_after_s is not None:
                asyncio.get_running_loop().call_later(stop_after_s, partial(client.stop, at_once=True))
            return await asyncio.wait_for(client.run(), 30), server

    return steadily(main())


def test_no_more_leave_in_any_time_than_may() -> None:
    ledger, server = bounded(refuse, plan(400, retries=Retries(attempts=5, wait="immediate")), Bounds(100.0, 100, 100))
    assert endings(ledger)[HELD_BACK] > 350
    assert len(server.heard) == sum(row.attempts for row in ledger.rows) <= 100 * (0.2 + BURST_S) + 1


def test_no_more_are_under_way_than_may_be_and_one_tenants_connections_serve_the_next() -> None:
    early = replace(plan().tenants[0], steps=(Step(0, 200), Step(0.1, 0)))
    late = replace(early, name="b", steps=(Step(0, 0), Step(0.4, 200), Step(0.5, 0)))
    both = Plan(seconds=0.6, tenants=(early, late), warmup_s=0, cooldown_s=0)
    ledger, server = bounded(slowly, both, Bounds(1000.0, 5, 100))
    found = endings(ledger)
    assert found[ON_TIME] == len(server.heard) == 10
    assert found[HELD_BACK] == len(ledger.rows) - 10 > 20
    assert max(heard.at_once for heard in server.heard) == server.connections == 5


def test_no_more_wait_for_their_next_try_than_may() -> None:
    ledger, server = bounded(refuse, plan(50, retries=Retries(attempts=1, wait="hint")), Bounds(1000.0, 100, 3))
    assert endings(ledger) == {"refused:yield": 50}
    assert max(row.attempts for row in ledger.rows) == 2
    assert 50 < len(server.heard) < 65


def test_a_client_that_is_stopped_leaves_at_once_and_every_request_has_its_ending() -> None:
    ledger, server = bounded(slowly, plan(10), Bounds(1000.0, 100, 100), 0.15)
    gone = endings(ledger)
    assert set(gone) == {GAVE_UP}
    assert 3 <= gone[GAVE_UP] == len(server.heard) < 10
    waiting, _ = bounded(refuse, plan(10, retries=Retries(attempts=3, wait="hint")), Bounds(1000.0, 100, 100), 0.15)
    assert set(endings(waiting)) == {"refused:yield"}


def test_one_that_is_stopped_before_it_begins_sends_nothing() -> None:
    async def main() -> int:
        async with serving(answer) as (server, url):
            client = Client(plan(), url)
            client.stop()
            ledger = await asyncio.wait_for(client.run(), 5)
            return len(server.heard) + len(ledger.rows)

    assert steadily(main()) == 0


def test_a_client_may_be_more_impatient_than_its_tenant_is() -> None:
    made = plan(2, **UNHURRIED)
    hurried = (replace(ask, client_timeout_s=0.1) for ask in asks(made))

    async def main() -> Ledger:
        async with serving(slowly) as (_, url):
            return await asyncio.wait_for(Client(made, url, hurried).run(), 30)

    assert endings(steadily(main())) == {GAVE_UP: 2}


def test_workers_that_answer_nothing_have_no_capacity(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(never) as (_, url):
            stand = Stand(Shape(1, 2), tmp_path, [Running(Process("w", (), {}, tmp_path), url)])
            with pytest.raises(RuntimeError, match="there was no answer"):
                await measure(stand, 0.2, 0.1)

    steadily(main())
