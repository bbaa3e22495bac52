"""What one of several routers does when a lease changes, and what it wants for retries and at MAX_INFLIGHT."""

from __future__ import annotations

import asyncio

import pytest

from services.core.leases.messages import Want
from services.core.leases.times import MIN_TTL_S
from services.router.deciding.leasing import TICK_S
from services.router.request import InferenceRequest
from services.router.upstreams.call import Attempt, Whole, WorkerFailed
from services.router.workers.worker import Worker
from services.runtime.upstream import UpstreamError
from tests.router.fleetrig import probe
from tests.router.sharedrig import SERVICE_S, TOKENS, SharedRouter, sharing
from tests.virtual import run

NO_PROBE_S = 60.0
"""Longer than any test here: what is seen was not seen by a probe."""
AT_ONCE_S = 0.01


def test_the_slots_of_a_worker_count_while_its_stream_is_open_whatever_its_probes_say() -> None:
    async def main() -> None:
        async with sharing(routers=1, workers=1, slots=2, probe_interval_s=NO_PROBE_S) as shared:
            (router,) = shared.routers
            ((worker, link),) = router.leasing.links.items()
            borrower = link.leases.borrower
            assert (link.lease.is_up, borrower.pool_slots) == (True, 2)
            link._lose(UpstreamError("the link was cut"))
            for is_up, slots in ((False, 0), (True, 2)):
                async with asyncio.timeout(1.0):
                    while link.lease.is_up is not is_up:
                        await asyncio.sleep(0.001)
                assert worker.live, "its probes were answered"
                assert borrower.pool_slots == slots
            assert await router.ask(deadline_ms=1000) == 200

    run(main)


@pytest.mark.parametrize("model", ["other", "weir-sim"])
def test_a_slot_that_is_lent_starts_what_waits_in_any_pool_of_the_worker(model: str) -> None:
    async def main() -> None:
        async with sharing(routers=1, workers=1, slots=1, probe_interval_s=NO_PROBE_S) as shared:
            (router,) = shared.routers
            ((worker, link),) = router.leasing.links.items()
            fleet = router.dispatcher.fleet
            fleet.learn(worker, probe(slots=1, models=("other",)))
            fleet.learn(worker, probe(slots=1, models=("other", "weir-sim")))
            assert worker.pools == ("other", "weir-sim")
            assert link.leases.pool.name == "weir-sim", "for which it was borrowed"
            fleet.planned["other"] = 1  # type: ignore[attr-defined]  # as if another worker lent slots for it
            router.dispatcher.capacity_changed()
            failing(worker, after_s=1.0)
            link.send = lambda ask: None  # type: ignore[method-assign]
            body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": TOKENS}
            asked = asyncio.get_running_loop().create_task(router.client.post("/v1/chat/completions", json=body))
            await asyncio.sleep(TICK_S)
            assert (worker.inflight, len(router.dispatcher.waiting)) == (0, 1)
            del link.send
            now = asyncio.get_running_loop().time()
            link.send(link.lease.holding.ask(now, (Want("default", 1, 0, 0.0, 0.0),), quantum=1.0, ttl_s=MIN_TTL_S))
            await asyncio.sleep(AT_ONCE_S)
            assert (worker.inflight, len(router.dispatcher.waiting)) == (1, 0)
            asked.cancel()

    run(main)


def failing(worker: Worker, after_s: float) -> None:
    """It fails every request, and goes on to lend its slots and to answer probes."""

    async def whole(call: InferenceRequest, attempt: Attempt) -> Whole:
        await asyncio.sleep(after_s)
        raise WorkerFailed("no")

    worker.upstream.whole = whole  # type: ignore[method-assign, assignment]


async def one_fails(one: SharedRouter, other: SharedRouter) -> asyncio.Task[int]:
    """Of two workers of a slot each one works for `other` for longer than a want is remembered; the other fails."""
    long = asyncio.get_running_loop().create_task(other.ask(tokens=90, deadline_ms=60_000))
    await asyncio.sleep(SERVICE_S)
    (busy,) = [worker.name for worker in other.dispatcher.fleet.workers if worker.inflight]
    (fails,) = [worker for worker in one.dispatcher.fleet.workers if worker.name != busy]
    failing(fails, after_s=SERVICE_S / 4)
    return long


@pytest.mark.parametrize("max_inflight", [64, 1])
def test_a_retry_gets_the_next_slot_of_another_worker_whatever_else_it_was_lent(max_inflight: int) -> None:
    """The worker that failed lends its idle slot again, which is no use to the retry. A retry has its place under
    MAX_INFLIGHT.
    """

    async def main() -> None:
        async with sharing(routers=2, workers=2, slots=1, max_inflight=max_inflight) as shared:
            one, other = shared.routers
            long = await one_fails(one, other)
            asked = asyncio.get_running_loop().create_task(one.ask(deadline_ms=60_000))
            assert await long == 200
            ended_at = asyncio.get_running_loop().time()
            assert await asked == 200
            assert asyncio.get_running_loop().time() - ended_at < 1.5 * SERVICE_S

    run(main)


def test_at_its_cap_of_requests_in_flight_a_router_wants_a_slot_for_its_retry_only_and_reports_no_wait() -> None:
    async def main() -> None:
        async with sharing(routers=2, workers=2, slots=1, max_inflight=1) as shared:
            one, other = shared.routers
            long = await one_fails(one, other)
            asked = [asyncio.get_running_loop().create_task(one.ask(deadline_ms=60_000)) for _ in range(3)]
            await asyncio.sleep(SERVICE_S)
            ((name, pool),) = one.leasing.pools.items()
            assert (one.dispatcher.retries(name), len(one.dispatcher.waiting)) == ({"default": 1}, 2)
            assert [want.requests for want in pool.leases.last_wants] == [1]
            assert one.leasing._wants_to_report(name) == ()
            assert await asyncio.gather(long, *asked) == [200] * 4

    run(main)
