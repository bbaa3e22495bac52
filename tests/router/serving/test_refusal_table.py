"""The table of refusals, row by row: on every route, whole and streamed, with status, code, hint and details."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest

from services.runtime.errors import MAX_RETRY_HINT_MS, MIN_RETRY_HINT_MS
from tests.router.rig import FakeWorker, Stand, answer, cut_after, failing, hang, refuse, standing, then
from tests.runtime.rig import until
from tests.virtual import run

SURFACES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    "text": ("/v1/completions", {"prompt": "hi"}),
    "ask": ("/ask", {"query": "hi", "top_k": 1}),
}
HOLDER, WAITER, CALLER = ({"x-tenant": name} for name in ("holder", "waiter", "caller"))


@dataclass
class Row:
    """What a refusal has to say. `details`: exactly these values, and None for what must not be there."""

    status: int
    code: str
    type: str = "rate_limit_error"
    retry: bool = True
    param: str | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def check(self, told: httpx2.Response) -> dict[str, Any]:
        assert told.status_code == self.status, told.text
        assert told.headers["content-type"] == "application/json"
        error: dict[str, Any] = told.json()["error"]
        assert (error["code"], error["type"], error["param"]) == (self.code, self.type, self.param)
        assert error["message"]
        assert told.headers["x-should-retry"] == ("true" if self.retry else "false")
        assert told.headers["x-request-id"]
        assert told.headers["x-weir-level"] in "01234"
        details: dict[str, Any] = error["details"]
        self._check_hint(told, details)
        assert details.get("status") == ("yield" if self.status == 429 else None)
        assert told.headers.get("x-weir-reason") == details.get("reason")
        assert {name: details.get(name) for name in self.details} == self.details
        return details

    def _check_hint(self, told: httpx2.Response, details: dict[str, Any]) -> None:
        hint = details.get("retry_hint_ms")
        if not self.retry:
            assert hint is None
            assert not {"retry-after", "retry-after-ms"} & set(told.headers)
            return
        assert hint is not None
        assert MIN_RETRY_HINT_MS <= hint <= MAX_RETRY_HINT_MS
        assert int(told.headers["retry-after-ms"]) == hint
        assert int(told.headers["retry-after"]) == math.ceil(hint / 1000)
        assert details["scope"] in ("tenant", "class", "platform")


async def ask(stand: Stand, surface: str, headers: dict[str, str], **fields: Any) -> httpx2.Response:
    path, body = SURFACES[surface]
    return await stand.client.post(path, content=json.dumps({**body, **fields}).encode(), headers=headers)


async def every(stand: Stand, row: Row, headers: dict[str, str] | None = None, **fields: Any) -> list[dict[str, Any]]:
    """Ask on every route, whole and streamed, all at once; each is told the row."""
    asking = [ask(stand, surface, headers or CALLER, stream=stream, **fields) for surface in SURFACES for stream in
              (False, True)]  # fmt: skip
    answers = await asyncio.gather(*asking)
    return [row.check(told) for told in answers]


@asynccontextmanager
async def occupied(
    stand: Stand, *, waiting: dict[str, str] | None = None, **fields: Any
) -> AsyncIterator[asyncio.Task[Any]]:
    """The one slot is taken by the holder; and somebody waits for it."""
    tasks = [asyncio.create_task(ask(stand, "chat", HOLDER, **fields))]
    try:
        await until(lambda: stand.workers[0].running == 1, "the holder at its worker")
        if waiting is not None:
            tasks.append(asyncio.create_task(ask(stand, "chat", waiting)))
            await until(lambda: len(stand.dispatcher.waiting) == 1, "one in line")
        yield tasks[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_a_tenants_queue_that_is_full() -> None:
    async def main() -> None:
        worker = FakeWorker(hang, slots=1)
        async with standing(worker, tenant_queue_size=1) as stand, occupied(stand, waiting=CALLER):
            said = {"reason": "tenant_requests", "scope": "tenant", "queue_depth": 1, "deadline_ms": 30_000}
            for details in await every(stand, Row(429, "tenant_queue_full", details=said)):
                assert details["predicted_wait_ms"] > 0

    run(main)


def test_a_platform_whose_queue_is_full() -> None:
    async def main() -> None:
        one = standing(FakeWorker(hang, slots=1), max_queue_size=1, tenant_queue_size=1)
        async with one as stand, occupied(stand, waiting=WAITER):
            said = {"reason": "platform_requests", "scope": "platform", "queue_depth": 1}
            await every(stand, Row(429, "yield", details=said))

    run(main)


def test_a_tenants_rate_that_is_used_up() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer), lab_tenant_rps=0.2) as stand:
            assert (await ask(stand, "chat", CALLER)).status_code == 200
            row = Row(429, "rate_limit_exceeded", details={"reason": "rate", "scope": "tenant"})
            hints = [details["retry_hint_ms"] for details in await every(stand, row)]
            assert min(hints) > 1000
            assert len(set(hints)) > 1, "those who were refused together come back together"
            assert (await ask(stand, "chat", WAITER)).status_code == 200

    run(main)


def test_no_slot_for_whoever_does_not_wait_or_not_that_long() -> None:
    async def main() -> None:
        async with standing(FakeWorker(hang, slots=1)) as stand, occupied(stand):
            row = Row(429, "yield", details={"reason": "no_slot"})
            await every(stand, row, {**CALLER, "prefer": "wait=0"})
            await every(stand, row, {**WAITER, "prefer": "wait=1"})

    run(main)


def test_a_deadline_that_cannot_be_met_now_but_could_be_later() -> None:
    async def main() -> None:
        slow = FakeWorker(hang, slots=1, step_ms=100, prefill_ms_per_token=1)
        async with standing(slow) as stand, occupied(stand, max_tokens=256):
            row = Row(429, "deadline_infeasible", details={"deadline_ms": 2000})
            for details in await every(stand, row, {**CALLER, "x-weir-deadline-ms": "2000"}, max_tokens=1):
                assert details["predicted_wait_ms"] > 2000 * 0.8
                assert details["reason"] in ("deadline", "first_token")

    run(main)


def test_a_deadline_that_can_never_be_met_invites_nobody_back() -> None:
    async def main() -> None:
        slow = FakeWorker(answer, slots=1, step_ms=100, prefill_ms_per_token=1000)
        async with standing(slow) as stand:
            row = Row(429, "deadline_infeasible", retry=False, details={"reason": "too_long", "deadline_ms": 500})
            await every(stand, row, {**CALLER, "x-weir-deadline-ms": "500"})
            assert slow.asked == []

    run(main)


def test_an_own_queue_that_stands() -> None:
    async def main() -> None:
        async with standing(FakeWorker(hang, slots=1, step_ms=1000)) as stand, occupied(stand, waiting=CALLER):
            (waiting,) = stand.dispatcher.waiting
            waiting.flow.stats.codel.limit_s = 0.0
            said = {"reason": "standing_queue", "scope": "tenant"}
            await every(stand, Row(429, "yield", details=said))

    run(main)


def test_a_deadline_that_passes_in_line() -> None:
    async def main() -> None:
        async with standing(FakeWorker(hang, slots=1)) as stand, occupied(stand, max_tokens=1):
            row = Row(429, "deadline_expired", retry=False, details={"reason": "deadline", "deadline_ms": 200})
            await every(stand, row, {**CALLER, "x-weir-deadline-ms": "200"}, max_tokens=1)
            for surface in SURFACES:
                told = await ask(stand, surface, {**WAITER, "x-weir-ttft-ms": "100"}, stream=True)
                Row(429, "deadline_expired", retry=False, details={"reason": "first_token"}).check(told)
            assert len(stand.workers[0].asked) == 1

    run(main)


def test_a_deadline_that_fits_no_more_when_the_turn_comes() -> None:
    async def main() -> None:
        async with standing(FakeWorker(hang, slots=1)) as stand, occupied(stand) as holding:
            asking = asyncio.create_task(every(stand, Row(429, "deadline_expired", retry=False)))
            await until(lambda: len(stand.dispatcher.waiting) == 6 and all(t.ready for t in stand.dispatcher.waiting))
            for of_pool in stand.dispatcher.scheduler.pools.values():
                for _ in range(50):
                    of_pool.estimator.learn_prefill(1000.0, 1.0)
            holding.cancel()  # the slot comes free, and nobody fits it any more
            await asking
            assert len(stand.workers[0].asked) == 1

    run(main)


def test_a_deadline_that_passes_at_a_worker() -> None:
    async def main() -> None:
        async with standing(FakeWorker(hang, slots=8)) as stand:
            row = Row(504, "deadline_exceeded", "timeout_error", retry=False, details={"deadline_ms": 150})
            await every(stand, row, {**CALLER, "x-weir-deadline-ms": "150"})

    run(main)


def test_a_first_token_that_was_asked_for_and_does_not_come() -> None:
    async def main() -> None:
        async with standing(FakeWorker(hang, slots=8)) as stand:
            row = Row(504, "deadline_exceeded", "timeout_error", retry=False, details={"reason": "first_token"})
            for surface in SURFACES:
                row.check(await ask(stand, surface, {**CALLER, "x-weir-ttft-ms": "100"}, stream=True))

    run(main)


def test_a_deadline_that_passes_while_a_retry_waits_for_its_second_place() -> None:
    async def main() -> None:
        async with standing(FakeWorker(hang, slots=1), FakeWorker(then(failing()), slots=1)) as stand:
            holding = asyncio.create_task(ask(stand, "chat", HOLDER))
            await until(lambda: stand.dispatcher.cap.inflight > 0)
            row = Row(504, "deadline_exceeded", "timeout_error", retry=False)
            for stream in (False, True):
                row.check(await ask(stand, "chat", {**CALLER, "x-weir-deadline-ms": "300"}, stream=stream))
            assert len(stand.workers[0].asked) == 1
            holding.cancel()

    run(main)


SERVICE = "service_unavailable_error"


def test_no_worker_has_answered_yet_or_none_is_alive() -> None:
    async def main() -> None:
        row = Row(503, "no_capacity", SERVICE, details={"reason": "no_worker", "scope": "platform"})
        async with standing() as stand:
            await every(stand, row)
        async with standing(FakeWorker(answer)) as stand:
            stand.workers[0].draining = True
            await until(lambda: not stand.dispatcher.fleet.alive("fake"), "the worker's drain is known")
            await every(stand, row)

    run(main)


def test_a_router_that_drains_refuses_who_waits_and_who_comes() -> None:
    async def main() -> None:
        async with standing(FakeWorker(hang, slots=1)) as stand, occupied(stand):
            row = Row(503, "draining", SERVICE, details={"reason": "draining"})
            asking = asyncio.create_task(every(stand, row))
            await until(lambda: len(stand.dispatcher.waiting) == 6, "six in line")
            stand.router.drain.begin()
            await asking
            await every(stand, row)
            decisions = {label: n for label, n in await stand.samples("weir_admission_total") if "caller" in label if n}
            assert sorted(decisions.values()) == [6, 6], "six were let in, six turned away at the door"

    run(main)


def test_who_waits_while_its_worker_dies_waits_for_its_return() -> None:
    async def main() -> None:
        async with standing(FakeWorker(then(hang, answer), slots=1)) as stand, occupied(stand) as holding:
            tight = {**CALLER, "x-weir-deadline-ms": "800"}
            expiring = asyncio.create_task(ask(stand, "chat", tight, max_tokens=1))
            await until(lambda: len(stand.dispatcher.waiting) == 1, "one in line")
            waiting = [asyncio.create_task(ask(stand, surface, WAITER)) for surface in SURFACES]
            await until(lambda: len(stand.dispatcher.waiting) == 4, "four in line")
            stand.workers[0].draining = True
            await until(lambda: not stand.dispatcher.fleet.alive("fake"))
            holding.cancel()
            Row(429, "deadline_expired", retry=False).check(await expiring)
            stand.workers[0].draining = False
            assert [told.status_code for told in await asyncio.gather(*waiting)] == [200] * 3

    run(main)


def test_workers_that_failed_before_the_first_token() -> None:
    async def main() -> None:
        async with standing(*(FakeWorker(failing(), slots=8) for _ in range(2)), retry_share=1.0) as stand:
            row = Row(502, "upstream_failed", "upstream_error")
            await every(stand, row)

    run(main)


def test_workers_that_refused_and_so_did_the_retry() -> None:
    async def main() -> None:
        row = Row(429, "yield", details={"reason": "workers_busy"})
        for surface in SURFACES:
            async with standing(*(FakeWorker(refuse, slots=8) for _ in range(2))) as stand:
                row.check(await ask(stand, surface, CALLER))
                await until(lambda: not any(w.resting for w in stand.dispatcher.fleet.workers))
                row.check(await ask(stand, surface, CALLER, stream=True))

    run(main)


@pytest.mark.parametrize("surface", SURFACES)
def test_a_request_that_killed_two_workers(surface: str) -> None:
    async def main() -> None:
        async with standing(FakeWorker(cut_after(0)), FakeWorker(cut_after(0))) as stand:
            row = Row(422, "poison_request", "invalid_request_error", retry=False, details={"reason": "poison"})
            for stream in (False, True):
                await stand.until_up(2)
                row.check(await ask(stand, surface, CALLER, stream=stream))
            assert all(worker.asked for worker in stand.workers)

    run(main)


def test_what_is_wrong_with_a_request_is_named_on_every_route() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer), max_body_bytes=4096) as stand:
            invalid = "invalid_request_error"
            missing = Row(404, "model_not_found", invalid, retry=False, param="model")
            await every(stand, missing, model="gpt-9")
            await every(stand, Row(400, "invalid_request", invalid, retry=False, param="max_tokens"), max_tokens=0)
            header = {**CALLER, "x-weir-deadline-ms": "soon"}
            await every(stand, Row(400, "invalid_request", invalid, retry=False, param="x-weir-deadline-ms"), header)
            await every(stand, Row(400, "invalid_request", invalid, retry=False, param="X-Tenant"), {"x-tenant": "a b"})
            await every(stand, Row(413, "request_too_large", invalid, retry=False), user="x" * 5000)
            packed = {**CALLER, "content-encoding": "gzip"}
            await every(stand, Row(415, "unsupported_encoding", invalid, retry=False), packed)
            assert stand.workers[0].asked == []

    run(main)
