"""A client that comes back before its hint gets its refusal again, cheaply; nobody else does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import httpx2
import pytest
import yaml

from services.core.outcome import Outcome
from services.core.reservations import RetryReservations
from services.router.serving.pipeline import Pipeline
from services.router.tenancy.tenants import FileTenants, Tenants
from services.runtime.apikey import digest, written
from tests.router.rig import FakeWorker, Stand, answer, error_of, hang, standing, then
from tests.runtime.rig import until
from tests.virtual import run

AT_ONCE = {"x-tenant": "caller", "prefer": "wait=0"}
HOLDER = {"x-tenant": "holder", "authorization": "Bearer holder"}


class Caller:
    """A client with one connection, which it keeps."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.close = writer.close

    async def ask(self, headers: dict[str, str] = AT_ONCE, **fields: Any) -> httpx2.Response:
        reader, writer = self._reader, self._writer
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode()
        lines = ["POST /v1/chat/completions HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        told = dict(line.split(": ", 1) for line in head[1:] if line)
        content = await reader.readexactly(int(told["content-length"]))
        return httpx2.Response(int(head[0].split()[1]), headers=told, content=content)

    async def refused(self, reason: str, headers: dict[str, str] = AT_ONCE, **fields: Any) -> dict[str, Any]:
        """Ask, and be refused for this reason; the details."""
        told = await self.ask(headers, **fields)
        details: dict[str, Any] = error_of(told)["details"]
        assert (told.status_code, details["reason"]) == (429, reason)
        assert int(told.headers["retry-after-ms"]) == details["retry_hint_ms"]
        return details


@asynccontextmanager
async def calling(stand: Stand) -> AsyncIterator[Caller]:
    caller = Caller(*await asyncio.open_connection("127.0.0.1", stand.router.bound_port))
    try:
        yield caller
    finally:
        caller.close()


@asynccontextmanager
async def full(**settings: Any) -> AsyncIterator[tuple[Stand, Caller]]:
    """A stand whose only slot is taken, and a client."""
    async with standing(FakeWorker(hang, slots=1), **settings) as stand, calling(stand) as caller:
        holding = asyncio.create_task(stand.chat(headers=HOLDER))
        await until(lambda: stand.workers[0].running == 1)
        try:
            yield stand, caller
        finally:
            holding.cancel()


def tenants_of(stand: Stand) -> Tenants:
    pipeline = stand.router.inside
    assert isinstance(pipeline, Pipeline)
    return pipeline.tenants


async def repeated(stand: Stand) -> float:
    return sum(value for _, value in await stand.samples("weir_early_retries_total"))


def test_a_retry_before_its_hint_is_told_what_is_left_of_it() -> None:
    async def main() -> None:
        async with full() as (stand, caller):
            first = await caller.refused("no_slot")
            await asyncio.sleep(0.02)
            again = await caller.refused("early_retry")
            assert first["retry_hint_ms"] - 22 <= again["retry_hint_ms"] <= first["retry_hint_ms"] - 20
            assert (again["scope"], again["status"]) == (first["scope"], "yield")
            assert await repeated(stand) == 1
            assert (await stand.counted())["yield"] == 2

    run(main)


def test_an_early_retry_is_refused_before_its_body_is_parsed_and_reserves_nothing() -> None:
    async def main() -> None:
        async with full() as (stand, caller):
            await caller.refused("no_slot")
            with (
                mock.patch("services.router.parsing.parsers.loads", side_effect=AssertionError("it was parsed")),
                mock.patch.object(RetryReservations, "hint", side_effect=AssertionError("it was reserved for")),
            ):
                for _ in range(10):
                    await caller.refused("early_retry")
            assert await repeated(stand) == 10

    run(main)


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({**AT_ONCE, "x-tenant": "another"}, {}),
        ({**AT_ONCE, "prefer": "wait=0, respond-async"}, {}),
        ({**AT_ONCE, "x-weir-deadline-ms": "20000"}, {}),
        (AT_ONCE, {"max_tokens": 7}),
    ],
    ids=["tenant", "wait", "deadline", "body"],
)
def test_a_request_that_differs_is_judged(headers: dict[str, str], fields: dict[str, Any]) -> None:
    async def main() -> None:
        async with full() as (stand, caller):
            await caller.refused("no_slot")
            await caller.refused("no_slot", headers, **fields)
            assert await repeated(stand) == 0

    run(main)


def test_a_newcomer_with_a_connection_of_its_own_is_judged() -> None:
    async def main() -> None:
        async with full() as (stand, caller):
            await caller.refused("no_slot")
            async with calling(stand) as newcomer:
                await newcomer.refused("no_slot")
            assert await repeated(stand) == 0

    run(main)


def test_an_attempt_number_does_not_make_it_another_request() -> None:
    async def main() -> None:
        async with full() as (_, caller):
            await caller.refused("no_slot", {**AT_ONCE, "x-stainless-retry-count": "0"})
            await caller.refused("early_retry", {**AT_ONCE, "x-stainless-retry-count": "1"})

    run(main)


def test_an_early_retry_is_served_where_a_slot_has_come_free() -> None:
    async def main() -> None:
        async with standing(FakeWorker(then(hang, answer), slots=1)) as stand, calling(stand) as caller:
            holding = asyncio.create_task(stand.chat(headers=HOLDER))
            await until(lambda: stand.workers[0].running == 1)
            await caller.refused("no_slot")
            holding.cancel()
            await stand.all_returned()
            assert (await caller.ask()).status_code == 200
            assert await repeated(stand) == 0

    run(main)


def test_after_its_hint_a_retry_is_judged() -> None:
    async def main() -> None:
        async with full() as (stand, caller):
            told = await caller.refused("no_slot")
            await asyncio.sleep(told["retry_hint_ms"] / 1000)
            await caller.refused("no_slot")
            assert await repeated(stand) == 0

    run(main)


@pytest.mark.parametrize("queued", [1, 2, 3, 4])
def test_while_less_than_half_as_many_are_queued_as_at_the_refusal_an_early_retry_is_judged(queued: int) -> None:
    async def main() -> None:
        async with full() as (stand, caller):
            waiting = [asyncio.create_task(stand.chat(headers=HOLDER)) for _ in range(queued)]
            await until(lambda: len(stand.dispatcher.waiting) == queued)
            await caller.refused("no_slot")
            for left in reversed(range(queued)):
                waiting.pop().cancel()
                await until(lambda left=left: len(stand.dispatcher.waiting) == left)  # type: ignore[misc]
                if 2 * left < queued:
                    break
                await caller.refused("early_retry")
            await caller.refused("no_slot")
            assert await repeated(stand) == queued // 2
            for each in waiting:
                each.cancel()

    run(main)


def test_a_rate_refuses_an_early_retry_until_it_has_enough() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer), lab_tenant_rps=2.0) as stand, calling(stand) as caller:
            while (await caller.ask()).status_code == 200:
                pass
            await caller.refused("early_retry")
            await asyncio.sleep(0.6)
            assert (await caller.ask()).status_code == 200
            assert (await stand.counted())[Outcome.RATE_LIMITED] == 2

    run(main)


def test_a_resumed_tenant_and_a_draining_router_are_not_answered_with_an_old_refusal() -> None:
    async def main() -> None:
        async with full() as (stand, caller):
            tenants = tenants_of(stand)
            await caller.refused("no_slot")
            tenants.pause("caller")
            await caller.refused("paused")
            tenants.pause("caller", paused=False)
            await caller.refused("no_slot")
            await caller.refused("early_retry")
            stand.dispatcher.drain()
            told = await caller.ask()
            assert (told.status_code, error_of(told)["code"]) == (503, "draining")

    run(main)


def test_a_key_that_was_taken_away_is_refused_as_unknown_before_its_hint_too(tmp_path: Path) -> None:
    def listed(*ids: str) -> Path:
        file = tmp_path / "tenants.yaml"
        entries = [{"id": id, "keys": [written(digest(id.encode()))]} for id in ids]
        file.write_text(yaml.safe_dump({"tenants": entries}))
        return file

    async def main() -> None:
        headers = {"authorization": "Bearer ann", "prefer": "wait=0"}
        async with full(tenants_file=listed("ann", "holder")) as (stand, caller):
            await caller.refused("no_slot", headers)
            await caller.refused("early_retry", headers)
            listed("holder")
            tenants = tenants_of(stand)
            assert isinstance(tenants, FileTenants)
            tenants.adopt(tenants.read())
            assert (await caller.ask(headers)).status_code == 401

    run(main)
