"""The console's frame of one of several routers: what it has borrowed, as /admin/state says, and bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import msgspec
import pytest

from services.contracts.console import Frame, SharedClassNow, SharingNow
from services.core.elsewhere import STALE_S
from services.router.console.sharing import MAX_CLASSES, MAX_POOLS, sharing_now
from services.router.console.tables import MAX_WORKERS
from tests.router.rig import FakeWorker, answer, standing
from tests.router.sharedrig import floods, sharing
from tests.virtual import run


def state(**pool: Any) -> dict[str, Any]:
    """`sharing` of /admin/state, with one pool of two classes and one worker."""
    levels = [
        {"class": "gold", "level": 1234.56, "lowest": 1000.04, "turn": 77.77},
        {"class": "tin", "level": 0.0, "lowest": None, "turn": 0.0},
    ]
    wants = [{"class_name": "gold", "requests": 9, "light": 2, "level": 1234.56, "turn": 77.77}]
    of = {
        "name": "m", "routers": 3, "exchange_up": True, "exchange_age_s": 0.1234, "planned_slots": 5, "levels": levels,
        "wants": wants,
    }  # fmt: skip
    worker = {"name": "w0", "up": True, "lent": 3, "in_flight": 2, "slots": 8, "recalled": True}
    return {"router": "r1", "pools": [of | pool], "workers": [worker]}


async def frame(client: httpx2.AsyncClient) -> Frame:
    async with client.stream("GET", "/console/events") as events:
        name = ""
        async for line in events.aiter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: ") and name == "frame":
                return msgspec.json.decode(line[6:], type=Frame)
    raise AssertionError("the stream ended before its first frame")


def told(seen: Frame) -> SharingNow:
    assert isinstance(seen.sharing, SharingNow)
    return seen.sharing


def test_two_routers_show_between_them_every_slot_of_the_workers_and_what_each_waits_for() -> None:
    async def main() -> None:
        async with sharing(routers=2, workers=2, slots=2) as shared:
            one, other = shared.routers
            async with floods((one, "a", 12), (other, "b", 12)):
                await asyncio.sleep(3.0)
                seen = [told(await frame(router.client)) for router in shared.routers]
            assert [each.router for each in seen] == ["r0", "r1"]
            for each in seen:
                (pool,) = each.pools
                assert (pool.routers, pool.exchange_stale) == (2, False)
                (of,) = pool.classes
                assert of.wanted > 0
                assert of.level > 0.0
                assert [lease.slots for lease in each.leases] == [2, 2]
                assert all(lease.up and lease.in_flight <= lease.borrowed for lease in each.leases)
            for leases in zip(*(each.leases for each in seen), strict=True):
                assert 0 < sum(lease.borrowed for lease in leases) <= 2, "of one worker"

    run(main)


def test_without_the_store_the_exchange_is_stale() -> None:
    async def main() -> None:
        async with sharing(routers=2, workers=1, slots=2) as shared:
            assert await shared.routers[0].ask() == 200
            shared.store.gone = True
            await asyncio.sleep(STALE_S + 0.5)
            (pool,) = told(await frame(shared.routers[0].client)).pools
            assert pool.exchange_stale
            assert pool.exchange_age_s is not None
            assert pool.exchange_age_s > STALE_S

    run(main)


def test_a_router_that_is_alone_says_nothing_of_sharing() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            seen = await frame(stand.client)
            assert seen.sharing is msgspec.UNSET
            assert "sharing" not in msgspec.to_builtins(seen)

    run(main)


def test_what_a_class_wants_stands_beside_its_level_and_a_class_that_wants_nothing_wants_none() -> None:
    (pool,) = sharing_now(state()).pools
    assert pool.classes == [
        SharedClassNow("gold", 1234.6, 1000.0, 77.8, wanted=9, light=2),
        SharedClassNow("tin", 0.0, None, 0.0, wanted=0, light=0),
    ]


@pytest.mark.parametrize(("age_s", "is_stale"), [(None, True), (STALE_S, False), (STALE_S + 0.001, True)])
def test_an_exchange_is_stale_from_the_age_from_which_the_router_decides_by_its_own_figures(
    age_s: float | None, is_stale: bool
) -> None:
    (pool,) = sharing_now(state(exchange_age_s=age_s)).pools
    assert pool.exchange_stale is is_stale


def test_pools_classes_and_leases_are_bounded_and_the_rest_is_counted() -> None:
    many = state()
    (pool,), (worker,) = many["pools"], many["workers"]
    pool["levels"] *= MAX_CLASSES
    seen = sharing_now(many | {"pools": [pool] * (MAX_POOLS + 2), "workers": [worker] * (MAX_WORKERS + 3)})
    assert (len(seen.pools), seen.other_pools) == (MAX_POOLS, 2)
    assert (len(seen.leases), seen.other_leases) == (MAX_WORKERS, 3)
    assert len(seen.pools[0].classes) == MAX_CLASSES
    assert len(msgspec.json.encode(seen)) < 50_000
