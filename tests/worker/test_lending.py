"""What a worker lends, in virtual time: streams of grants, what is pushed to whom, the end of a lease by time."""

from __future__ import annotations

import asyncio

import pytest

from services.core.leases.book import MAX_ROUTERS
from services.core.leases.times import DRIFT, MIN_TTL_S
from services.runtime.errors import BadInput, Refused
from services.runtime.grantstreams import EXPIRY_SLACK_S, PushedGrants
from services.runtime.leasewire import ask_of
from services.worker.lending import Lending
from tests.worker.leaserig import AskingRouter, may_of
from tests.worker.rig import in_virtual_time, now


def lending_of(slots: int) -> Lending:
    lending = Lending(epoch=7)
    lending.resize(slots)
    return lending


@in_virtual_time
async def test_an_ask_is_answered_at_once_with_what_the_router_may_use() -> None:
    lending, router = lending_of(4), AskingRouter("a")
    assert router.asks(lending, wants=1) == 1
    assert router.last is not None
    assert (router.last.stamp, router.last.echo, router.last.slots, router.last.ttl_ms) == ((7, 1), (1, 1), 4, 750.0)


@in_virtual_time
async def test_a_slot_that_comes_back_is_pushed_to_the_router_that_waits_for_it() -> None:
    lending, holder, other = lending_of(1), AskingRouter("a"), AskingRouter("b")
    first, second = holder.opens(lending), other.opens(lending)
    assert holder.asks(lending, wants=1) == 1
    assert other.asks(lending, wants=1) == 0
    recalled = first.take()
    assert (recalled.may, recalled.recall) == (1, True)
    assert holder.asks(lending, keep=0) == 0
    assert may_of(second) == 1
    assert may_of(first) is None, "its own grant was the answer"


@in_virtual_time
async def test_a_slow_reader_is_sent_the_newest_grant_only() -> None:
    stream = PushedGrants("a", 1)
    lending, router = lending_of(4), AskingRouter("a")
    grants = [lending.book.receive(0.0, ask_of(router.ask(wants)))["a"] for wants in (1, 2, 3)]
    for grant in (grants[0], grants[2], grants[1]):
        stream.offer(grant)
    assert await stream.is_offered()
    assert stream.take() == grants[2]
    waits = asyncio.ensure_future(stream.is_offered())
    await asyncio.sleep(1)
    assert not waits.done()
    stream.end()
    assert not await waits


@in_virtual_time
async def test_the_end_of_a_stream_ends_the_lease_and_its_slots_go_to_others() -> None:
    lending, holder, other = lending_of(1), AskingRouter("a"), AskingRouter("b")
    gone, stream = holder.opens(lending), other.opens(lending)
    holder.asks(lending, wants=1)
    other.asks(lending, wants=1)
    lending.close(gone)
    lending.close(gone)
    assert lending.book.may("a") == 0
    assert may_of(stream) == 1


@in_virtual_time
async def test_a_stream_that_another_replaces_ends_and_does_not_end_the_lease_of_its_own_epoch() -> None:
    lending, router = lending_of(1), AskingRouter("a")
    first = router.opens(lending)
    router.asks(lending, wants=1)
    second = router.opens(lending)
    assert not await first.is_offered()
    lending.close(first)
    assert lending.book.may("a") == 1
    assert not second.is_over
    lending.close(second)
    assert lending.book.may("a") == 0


@in_virtual_time
async def test_the_stream_of_a_newer_process_ends_the_lease_of_the_older_one() -> None:
    lending, older, newer, other = lending_of(1), AskingRouter("a", 1), AskingRouter("a", 2), AskingRouter("b")
    first, stream = older.opens(lending), other.opens(lending)
    older.asks(lending, wants=1)
    other.asks(lending, wants=1)
    newer.opens(lending)
    assert may_of(stream) == 1
    assert newer.asks(lending, wants=1) == 0
    lending.close(first)
    assert [lease.epoch for lease in lending.book.leases() if lease.router == "a"] == [2]


@in_virtual_time
async def test_an_older_process_cannot_open_a_stream_beside_that_of_a_newer_one() -> None:
    lending = lending_of(1)
    AskingRouter("a", 2).opens(lending)
    with pytest.raises(BadInput, match="1 is below 2, that of the stream which a has open") as refusal:
        AskingRouter("a", 1).opens(lending)
    assert (refusal.value.status, refusal.value.code, refusal.value.param) == (409, "older_epoch", "epoch")


@in_virtual_time
async def test_a_grant_is_pushed_only_to_the_process_that_it_is_for() -> None:
    lending, older, newer, other = lending_of(1), AskingRouter("a", 1), AskingRouter("a", 2), AskingRouter("b")
    stream = older.opens(lending)
    other.asks(lending, wants=1)
    newer.asks(lending, wants=1)
    other.asks(lending, keep=0)
    assert lending.book.may("a") == 1
    assert may_of(stream) is None, "the lease is the newer process's"


@in_virtual_time
async def test_of_more_routers_than_may_hold_leases_the_streams_without_one_make_room_and_then_nobody() -> None:
    lending = lending_of(2 * MAX_ROUTERS)
    routers = [AskingRouter(f"r{n}") for n in range(MAX_ROUTERS)]
    streams = [router.opens(lending) for router in routers]
    for router in routers[1:]:
        assert router.asks(lending, wants=1) == 1
    AskingRouter("newcomer").opens(lending)
    assert [stream.is_over for stream in streams] == [True] + [False] * (MAX_ROUTERS - 1)
    AskingRouter("newcomer").asks(lending, wants=1)
    with pytest.raises(Refused, match="64 routers have leases here") as refusal:
        AskingRouter("one more").opens(lending)
    assert (refusal.value.status, refusal.value.details.reason) == (503, "too_many_routers")


@in_virtual_time
async def test_a_lease_ends_by_time_and_its_slots_go_to_the_routers_that_wait() -> None:
    lending, frozen, other = lending_of(1), AskingRouter("a"), AskingRouter("b")
    stream = other.opens(lending)
    frozen.asks(lending, wants=1)
    while now() < 3 * MIN_TTL_S and lending.book.may("a"):
        other.asks(lending, wants=1)
        await asyncio.sleep(0.05)
    assert now() == pytest.approx(MIN_TTL_S * (1 + DRIFT), abs=0.06)
    assert may_of(stream) == 1


@in_virtual_time
async def test_the_end_of_a_lease_is_noticed_without_any_event() -> None:
    lending, frozen, other = lending_of(1), AskingRouter("a"), AskingRouter("b")
    stream = other.opens(lending)
    frozen.asks(lending, wants=1)
    await asyncio.sleep(0.6)
    other.asks(lending, wants=1)
    assert await stream.is_offered()
    assert stream.take().may == 1
    assert now() == pytest.approx(MIN_TTL_S * (1 + DRIFT) + EXPIRY_SLACK_S, abs=1e-6)
    await asyncio.sleep(10)
    assert not lending.book.has_leases


@in_virtual_time
async def test_an_ask_that_prolongs_a_lease_moves_its_end() -> None:
    lending, router = lending_of(1), AskingRouter("a")
    router.asks(lending, wants=1)
    for _ in range(10):
        await asyncio.sleep(0.25)
        assert router.asks(lending) == 1
    await asyncio.sleep(0.7)
    assert lending.book.may("a") == 1
    await asyncio.sleep(0.1)
    assert lending.book.may("a") == 0


@in_virtual_time
async def test_a_worker_that_stops_leaves_no_timer() -> None:
    lending, router = lending_of(1), AskingRouter("a")
    stream = router.opens(lending)
    router.asks(lending, wants=1)
    lending.stop()
    assert stream.is_over
    lending.close(stream)
    router.asks(lending, wants=1)
    assert lending._timer is not None
    assert lending._timer.cancelled()


@in_virtual_time
async def test_repr_tells_the_state() -> None:
    lending, router = lending_of(1), AskingRouter("a")
    stream = router.opens(lending)
    assert repr(stream) == "<PushedGrants of a/1, open, to send None>"
    assert repr(lending).startswith("<Lending <LeaseBook 0 of 1+0: [], 0 left, 0 without a lease>, streams [<Pushed")
