"""The connection of a lease, in virtual time: a stream that ends, an ask without an answer, a worker that is frozen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from services.contracts.lease import MAX_ENDED, LeaseAsk, LeaseGrant
from services.core.choices import SchedulerSettings
from services.core.leases.messages import Ask
from services.core.leases.poolleases import PoolLeases
from services.core.leases.times import MIN_TTL_S
from services.core.scheduler import Scheduler
from services.router.workers.leaselink import MAX_PAUSE_S, MIN_PAUSE_S, OPEN_TIMEOUT_S, LeaseLink
from services.router.workers.worker import Worker
from services.router.workers.workersfile import WorkerSpec
from services.runtime.upstream import Truncated, UpstreamError
from tests.retrieval.fakes import Lines
from tests.router.fleetrig import FakeUpstream, spec
from tests.virtual import run

WEIR = spec("w0", kind="weir", slots=None, models=())
DESKED = spec("w0", slots=None, desk="http://d/w0")


class FakeGrants:
    """A stream whose grants the test sends. None ends it; an error breaks it."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[LeaseGrant | Exception | None] = asyncio.Queue()
        self.closed = False

    async def next(self) -> LeaseGrant | None:
        grant = await self.sent.get()
        if isinstance(grant, Exception):
            raise grant
        return grant

    def close(self) -> None:
        self.closed = True


class FakeLender(FakeUpstream):
    """Lends `may` slots to whoever asks. `frozen`: it answers nothing; `refuses`: it opens no stream."""

    def __init__(self) -> None:
        super().__init__()
        self.asks: list[LeaseAsk] = []
        self.opened: list[tuple[float, int]] = []
        self.streams: list[FakeGrants] = []
        self.frozen = self.refuses = False
        self.takes_s = 0.001
        self.may = 1
        self.grants_made = 0
        self.at_once = self.most_at_once = 0

    async def lease(self, ask: LeaseAsk) -> LeaseGrant:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.frozen:
                await asyncio.Event().wait()
            await asyncio.sleep(self.takes_s)
        finally:
            self.at_once -= 1
        self.asks.append(ask)
        return self.grant(ask.stamp)

    def grant(self, echo: tuple[int, int], may: int | None = None) -> LeaseGrant:
        self.grants_made += 1
        return LeaseGrant((1, self.grants_made), echo, self.may if may is None else may, 1000 * MIN_TTL_S, 4)

    async def grants(self, router: str, epoch: int) -> FakeGrants:
        self.opened.append((asyncio.get_running_loop().time(), epoch))
        if self.frozen:
            await asyncio.Event().wait()
        if self.refuses:
            raise UpstreamError("the stream of grants answered 404")
        self.streams.append(FakeGrants())
        return self.streams[-1]


class Linked:
    """One link, and what its owner was told."""

    def __init__(self, entry: WorkerSpec) -> None:
        self.lender = FakeLender()
        self.worker = Worker(entry, self.lender, is_shared=True)
        scheduler = Scheduler(SchedulerSettings(several_routers=True), Random(1).random)
        self.leases = PoolLeases("r0", 100, scheduler, "m", Random(1).random)
        self.leases.borrower.join(0.0, self.worker.lease_name, 4)
        self.may: list[int] = []
        self.lines = Lines()
        self.link = LeaseLink(self.worker, self.leases, changed=self._changed, log=self.lines.log, rng=Random(1))
        self.fails = False

    def _changed(self, link: LeaseLink) -> None:
        assert not self.fails, "a fault of this router"
        self.may.append(link.lease.holding.may(asyncio.get_running_loop().time()))

    def ask(self) -> Ask:
        now = asyncio.get_running_loop().time()
        ask = self.link.lease.holding.ask(now, (), quantum=1.0, ttl_s=MIN_TTL_S)
        self.link.send(ask)
        return ask


def played(scenario: Callable[[Linked], Awaitable[None]], entry: WorkerSpec = WEIR) -> str:
    """Play it, and return what was logged."""
    linked: Linked

    async def main() -> None:
        nonlocal linked
        linked = Linked(entry)
        linked.link.start()
        await asyncio.sleep(0.01)
        await scenario(linked)
        await linked.link.stop()

    run(main())
    return linked.lines.read()


def test_a_grant_comes_as_an_answer_and_by_the_stream() -> None:
    async def scenario(linked: Linked) -> None:
        ask = linked.ask()
        await asyncio.sleep(0.01)
        assert linked.may[-1] == 1
        linked.lender.streams[-1].sent.put_nowait(linked.lender.grant(ask.stamp, may=3))
        await asyncio.sleep(0.01)
        assert linked.may[-1] == 3

    played(scenario)


def test_the_end_of_the_stream_is_the_end_of_the_lease_and_it_is_opened_again_with_a_higher_epoch() -> None:
    async def scenario(linked: Linked) -> None:
        linked.ask()
        await asyncio.sleep(0.01)
        linked.lender.streams[-1].sent.put_nowait(None)
        await asyncio.sleep(0.005)
        assert linked.may[-1] == 0
        await asyncio.sleep(0.2)
        assert [epoch for _, epoch in linked.lender.opened] == [100, 101]
        assert linked.link.lease.is_up
        linked.ask()
        await asyncio.sleep(0.01)
        assert linked.may[-1] == 1

    played(scenario)


def test_a_stream_that_breaks_is_opened_again() -> None:
    async def scenario(linked: Linked) -> None:
        linked.lender.streams[-1].sent.put_nowait(Truncated("cut"))
        await asyncio.sleep(0.2)
        assert linked.link.lease.is_up
        assert len(linked.lender.streams) == 2
        assert linked.lender.streams[0].closed

    played(scenario)


def test_an_ask_without_an_answer_ends_the_stream() -> None:
    async def scenario(linked: Linked) -> None:
        linked.lender.frozen = True
        linked.ask()
        await asyncio.sleep(MIN_TTL_S + 0.05)
        assert not linked.link.lease.is_up
        assert linked.lender.streams[0].closed
        linked.lender.frozen = False
        await asyncio.sleep(OPEN_TIMEOUT_S + 2 * MAX_PAUSE_S)
        assert linked.link.lease.is_up

    played(scenario)


def test_what_waits_behind_an_ask_without_an_answer_is_not_sent_after_it() -> None:
    async def scenario(linked: Linked) -> None:
        linked.lender.frozen = True
        linked.ask()
        await asyncio.sleep(0.01)
        linked.ask()
        await asyncio.sleep(MIN_TTL_S + 0.01)
        assert linked.lender.at_once == 0

    played(scenario)


def test_an_ask_is_waited_for_as_long_as_the_shortest_lease_lasts() -> None:
    async def scenario(linked: Linked) -> None:
        linked.lender.takes_s = 0.9 * MIN_TTL_S
        now = asyncio.get_running_loop().time()
        linked.link.send(linked.link.lease.holding.ask(now, (), quantum=1.0, ttl_s=0.0))
        await asyncio.sleep(MIN_TTL_S)
        assert linked.link.lease.is_up
        assert len(linked.lender.asks) == 1

    played(scenario)


def test_a_stream_that_brought_a_grant_is_opened_again_soon() -> None:
    async def scenario(linked: Linked) -> None:
        linked.lender.refuses = True
        linked.lender.streams[-1].sent.put_nowait(None)
        await asyncio.sleep(30.0)
        linked.lender.refuses = False
        await asyncio.sleep(2 * MAX_PAUSE_S)
        linked.ask()
        await asyncio.sleep(0.01)
        ended, before = asyncio.get_running_loop().time(), len(linked.lender.opened)
        linked.lender.streams[-1].sent.put_nowait(None)
        await asyncio.sleep(1.5 * MAX_PAUSE_S)
        assert linked.lender.opened[before][0] <= ended + 1.5 * MIN_PAUSE_S

    played(scenario)


def test_a_worker_that_lends_nothing_from_the_start_has_been_tried_and_is_told_of_once() -> None:
    async def main() -> str:
        linked = Linked(WEIR)
        linked.lender.refuses = True
        linked.link.start()
        await asyncio.sleep(0.01)
        assert linked.link.has_tried.is_set()
        await asyncio.sleep(10.0)
        await linked.link.stop()
        return linked.lines.read()

    assert run(main()).count("the lease has ended") == 1


@pytest.mark.parametrize(("entry", "lender"), [(WEIR, "the worker"), (DESKED, "the desk")])
def test_the_log_names_the_desk_where_a_desk_lends_and_not_its_server(entry: WorkerSpec, lender: str) -> None:
    async def scenario(linked: Linked) -> None:
        linked.lender.streams[-1].sent.put_nowait(None)
        await asyncio.sleep(0.01)

    logged = played(scenario, entry)
    assert f'"url":"{entry.desk or entry.url}"' in logged
    assert f'"why":"{lender} ended it"' in logged


def test_one_ask_is_under_way_and_of_those_that_wait_the_last_is_sent() -> None:
    async def scenario(linked: Linked) -> None:
        linked.lender.takes_s = 0.1
        asks = [linked.ask()]
        await asyncio.sleep(0.01)
        asks += [linked.ask() for _ in range(4)]
        await asyncio.sleep(0.5)
        assert linked.lender.most_at_once == 1
        assert [ask.stamp for ask in linked.lender.asks] == [asks[0].stamp, asks[-1].stamp]

    played(scenario)


def test_a_worker_that_does_not_lend_is_asked_again_once_a_second_and_told_of_once() -> None:
    async def scenario(linked: Linked) -> None:
        linked.lender.refuses = True
        linked.lender.streams[-1].sent.put_nowait(None)
        await asyncio.sleep(30.0)
        assert 15 < len(linked.lender.opened) < 60
        linked.ask()
        await asyncio.sleep(0.1)
        assert not linked.lender.asks, "no grant could come"

    assert played(scenario).count("the lease has ended") == 1


def test_a_fault_of_this_router_is_logged_and_ends_no_lease_for_good() -> None:
    async def scenario(linked: Linked) -> None:
        linked.fails = True
        linked.ask()
        await asyncio.sleep(0.1)
        linked.fails = False
        await asyncio.sleep(1.0)
        assert linked.link.lease.is_up

    assert "a lease's change was not followed" in played(scenario)


def test_a_desk_is_told_what_is_in_flight_with_each_ask_and_at_each_start_and_end() -> None:
    async def scenario(linked: Linked) -> None:
        lease, now = linked.link.lease, asyncio.get_running_loop().time
        assert [ask.count for ask in linked.lender.asks] == [(1, 0)], (
            "it asks at once, and learns how many slots there are"
        )
        lease.start(now())
        assert lease.ask(now()) is None, "no request takes the ask along"
        await asyncio.sleep(0.01)
        lease.end(now(), None)
        await asyncio.sleep(0.01)
        assert [ask.count for ask in linked.lender.asks] == [(1, 0), (2, 1), (3, 0)]
        assert linked.lender.asks[-1].keep == 0, "the end gives the slot back"

    played(scenario, DESKED)


def test_a_desk_is_told_once_how_requests_have_ended_and_of_many_the_last() -> None:
    async def scenario(linked: Linked) -> None:
        lease, now = linked.link.lease, asyncio.get_running_loop().time
        lease.note_end((0.5, 10, 20), overloaded=False)
        lease.note_end((0.1, 0, 0), overloaded=True)
        for _ in range(2):
            linked.link.send(lease.ask_alone(now()))
            await asyncio.sleep(0.01)
        for number in range(MAX_ENDED + 3):
            lease.note_end((0.1, 0, number), overloaded=False)
            lease.note_end((0.1, 0, 0), overloaded=True)
        linked.link.send(lease.ask_alone(now()))
        await asyncio.sleep(0.01)
        told = [(ask.ended, ask.overloaded) for ask in linked.lender.asks[1:]]
        assert told[:2] == [([(0.5, 10, 20)], 1), ([], 0)]
        assert (len(told[2][0]), told[2][0][0], told[2][1]) == (MAX_ENDED, (0.1, 0, 3), MAX_ENDED)

    played(scenario, DESKED)


def test_a_worker_is_told_no_count() -> None:
    async def scenario(linked: Linked) -> None:
        linked.ask()
        await asyncio.sleep(0.01)
        assert [ask.count for ask in linked.lender.asks] == [None]

    played(scenario)


def test_a_desk_has_been_tried_once_it_has_answered() -> None:
    async def main() -> None:
        linked = Linked(DESKED)
        linked.lender.takes_s = 0.2
        linked.link.start()
        await asyncio.sleep(0.1)
        assert (linked.link.lease.is_up, linked.link.has_tried.is_set()) == (True, False)
        await asyncio.sleep(0.2)
        assert linked.link.has_tried.is_set()
        await linked.link.stop()

    run(main())


def test_a_router_that_leaves_tells_a_desk_what_it_leaves_behind() -> None:
    async def main() -> None:
        linked = Linked(DESKED)
        linked.link.start()
        await asyncio.sleep(0.01)
        await linked.link.stop(linked.link.farewell())
        assert [(ask.keep, ask.count) for ask in linked.lender.asks] == [(None, (1, 0)), (0, (2, 0))]
        assert linked.link.farewell() is None, "once it has left"

    run(main())
