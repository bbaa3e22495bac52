"""A whole run in virtual time, before a router that does as the test says: what is asked, and what answers count as."""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

import msgspec
import pytest

from loadtests.load import client, connection
from loadtests.storm import run as running
from loadtests.storm.config import StormSettings
from loadtests.storm.ledger import Books
from loadtests.storm.run import QUESTIONS, Run, RunRequest
from loadtests.storm.scenarios import SCENARIOS
from loadtests.storm.sliders import slider_values
from services.contracts.storm import Run as RunResult
from services.runtime.http import Exchange
from services.runtime.log import Log
from tests import virtual
from tests.runtime.rig import serving

ANSWER = b'{"text":"so it is","retrieval_source":"db"}'
Handler = Callable[[Exchange], Awaitable[None]]


def replying(status: int, body: bytes = ANSWER, takes_s: float = 0.1, **headers: str) -> Handler:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]

    async def reply(exchange: Exchange) -> None:
        await asyncio.sleep(takes_s)
        await exchange.reply(status, body, headers=named)

    return reply


async def never(exchange: Exchange) -> None:
    task = asyncio.current_task()
    assert task is not None
    exchange.on_gone(task.cancel)
    await asyncio.sleep(3600)


def played(
    handler: Handler, scenario: str = "steady", *, stop_after_s: float = 0.0, limits: dict[str, Any] | None = None,
    **sliders: float,
) -> RunResult:  # fmt: skip
    """Ten seconds at twenty requests a second, unless it is told otherwise."""

    async def main() -> RunResult:
        routes = {("POST", "/v1/chat/completions"): handler, ("POST", "/ask"): handler}
        async with serving(routes, drain_timeout_s=0.2) as process:
            url = f"http://127.0.0.1:{process.bound_port}"
            settings = StormSettings(
                _env_file=None, storm_router_url=url, storm_metrics_url=url, storm_fault_urls="none",
                workers="http://127.0.0.1:1", **({"storm_capacity_rps": 20} | (limits or {})),
            )  # type: ignore[call-arg]  # fmt: skip
            button = SCENARIOS[scenario]
            values = slider_values(button.sliders, {"seconds": 10, **sliders})
            made = Run(RunRequest("a1", button, values, 0), settings, Log("storm", stream=io.BytesIO(), threaded=False))
            playing = asyncio.ensure_future(made.play())
            if stop_after_s:
                await asyncio.sleep(stop_after_s)
                playing.cancel()
            await playing
            return made.result()

    with mock.patch.object(client, "perf_counter", now), mock.patch.object(connection, "perf_counter", now):
        told = virtual.run(main)
    assert told.sent == told.on_time + told.late + told.refused + told.failed + told.gone
    for part in (told.series, told.tenants):
        assert told.sent == sum(each.sent for each in part)
    return told


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_request_says_who_asks_by_when_and_no_two_are_alike() -> None:
    heard: list[tuple[str, str, str]] = []

    async def handler(exchange: Exchange) -> None:
        said = msgspec.json.decode(exchange.body)
        assert (said["max_tokens"], said["ignore_eos"]) == (24, True)
        named = [(exchange.header(name) or b"").decode() for name in (b"x-tenant", b"x-weir-deadline-ms")]
        heard.append((named[0], named[1], said["messages"][0]["content"]))
        await exchange.reply(200, ANSWER)

    told = played(handler, deadline_ms=1500)
    assert len(heard) == told.on_time > 100
    assert {(tenant, deadline) for tenant, deadline, _ in heard} == {
        (name, "1500") for name in ("anna", "ben", "chloe")
    }
    assert len({words for _, _, words in heard}) == len(heard)  # no cache answers them
    assert told.sources == {"db": told.on_time}


def test_questions_about_documents_are_few_so_that_a_cache_is_worth_having() -> None:
    heard: Counter[str] = Counter()

    async def handler(exchange: Exchange) -> None:
        heard[msgspec.json.decode(exchange.body)["query"]] += 1
        await exchange.reply(200, ANSWER)

    with mock.patch.object(running, "begin_troubles", return_value=[]):
        told = played(handler, "redis_gone")
    assert set(heard) == set(QUESTIONS)
    assert heard.total() == told.sent


@pytest.mark.parametrize(
    ("handler", "ending", "codes"),
    [
        (replying(200, takes_s=1.9), "on_time", set()),
        (replying(200, takes_s=2.5), "late", set()),
        (never, "gone", set()),
        (replying(200, b"<html>"), "failed", {"malformed"}),
        (replying(200, b"{}" + b" " * 300_000), "failed", {"malformed"}),
        (replying(200, b'{"error":{"code":"upstream_failed"}}'), "failed", {"malformed"}),
        (replying(429, b'{"error":{"code":"yield"}}'), "refused", {"yield"}),
        (replying(503, b'{"error":{"code":"new_here"}}'), "refused", {"new_here"}),
        (replying(503, b"\xff"), "refused", {"status_503"}),
        (replying(504, b'{"error":{"code":"deadline_exceeded"}}'), "failed", {"deadline_exceeded"}),
        (replying(500, b"{}"), "failed", {"status_500"}),
    ],
)
def test_whatever_comes_back_each_try_has_the_one_ending(handler: Handler, ending: str, codes: set[str]) -> None:
    told = played(handler)
    assert getattr(told, ending) == told.sent > 100
    assert set(told.refused_by_code) | set(told.failed_by_code) == codes


def test_an_answer_that_is_cut_is_a_connection_that_was_lost() -> None:
    async def cut(exchange: Exchange) -> None:
        await exchange.start(200, b"application/json")
        await exchange.write(b'{"half')
        raise RuntimeError("died")

    told = played(cut)
    assert told.failed_by_code == {"connection_lost": told.sent}


def test_who_leaves_early_does_so_before_half_of_the_deadline() -> None:
    told = played(replying(200, takes_s=1.0), leaving=100)
    assert told.gone == told.sent > 100
    half = played(replying(200, takes_s=1.0), leaving=50)
    assert 0.3 < half.gone / half.sent < 0.7


def test_the_same_people_come_whatever_becomes_of_them() -> None:
    well, badly = played(replying(200)), played(never, leaving=100)
    assert [second.sent for second in well.series][:10] == [second.sent for second in badly.series][:10]


def test_a_storm_of_retries_asks_at_once_and_not_for_ever() -> None:
    refusal = replying(429, b'{"error":{"code":"yield"}}', x_should_retry="true", retry_after_ms="3000")
    rash, obedient = played(refusal, "retry_storm", retries=3), played(refusal, "retry_storm", obey_hints=1)
    people = sum(tenant.asked for tenant in rash.tenants)
    assert 3.9 * people < rash.sent <= 4 * people  # at the very end nobody comes back
    assert people < obedient.sent < 3.5 * people
    assert not any(second.sent for second in obedient.series[11:])  # nobody comes back to a storm that is over
    assert sum(tenant.answered for tenant in rash.tenants) == rash.answered_share == 0


def test_more_than_may_be_sent_is_not_sent() -> None:
    told = played(replying(200), intensity=2, limits={"storm_capacity_rps": 5000, "storm_max_rps": 50})
    assert told.capped
    assert max(second.sent for second in told.series) <= 56  # the rate, and the burst of a tenth of a second
    crowd = played(never, intensity=2, limits={"storm_connections": 7})
    assert crowd.held_back > 100
    assert not crowd.capped


def test_a_run_that_is_stopped_sends_everybody_away_at_once() -> None:
    told = played(never, stop_after_s=5.0)
    assert (told.ended, told.gone) == ("stopped", told.sent)
    assert told.lasted_s < 5


def test_a_fault_of_the_bench_itself_ends_the_run_loudly() -> None:
    with mock.patch.object(Books, "close", side_effect=ZeroDivisionError):
        told = played(replying(200))
    assert (told.ended, told.why) == ("failed", "a fault of the bench: ZeroDivisionError")
