"""A desk that learns how many slots a server has: one limit for all routers, which finds what a router alone would."""

from __future__ import annotations

import asyncio
from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.core.leases.messages import Ask, Want
from services.core.leases.times import MIN_TTL_S
from services.desk.book import LEARN_S, DeskBook
from services.desk.learned import MIN_SLOTS, LearnedSlots
from tests.desk.history import History
from tests.desk.rig import desked
from tests.router.sharedrig import floods
from tests.virtual import run

ALONE_S, EACH_S = 0.020, 0.0005
KNEE = (2 * (ALONE_S + EACH_S * MIN_SLOTS) - ALONE_S) / EACH_S
"""Where a token takes twice its uncongested time, which is the limit's tolerance (`core.adaptive`)."""
MANY = 300
HIGHEST = 200


class Crowd(History):
    """Nothing breaks. So many `clients` always ask at each router; a step of the server takes `alone_s`, and EACH_S for
    each request.
    """

    def __init__(self, seed: int, *, routers: int, clients: int = MANY) -> None:
        super().__init__(seed, routers=routers, slots=HIGHEST, learns=LearnedSlots)
        self.is_calm = True
        self.alone_s = ALONE_S
        self.pace = lambda inflight: self.alone_s + EACH_S * inflight
        self.clients = clients
        self.come()

    def come(self) -> None:
        for router in self.routers.values():
            router.waiting = max(0, self.clients - len(router.running))
        self.after(0.02, self.come)

    def slots_over(self, seconds: float) -> list[int]:
        found = []
        for _ in range(int(seconds)):
            self.run(1.0)
            found.append(self.desk.slots)
        return found


# Where it settles


@pytest.mark.parametrize("routers", [1, 2, 4])
def test_it_settles_where_one_routers_limit_does_and_follows_the_server(routers: int) -> None:
    crowd = Crowd(1, routers=routers)
    crowd.run(40.0)
    settled = crowd.slots_over(30.0)
    assert 0.85 * KNEE < min(settled) <= max(settled) < 1.3 * KNEE
    crowd.alone_s = 3 * ALONE_S
    assert crowd.slots_over(30.0)[-1] < KNEE / 4, "one that has become much slower takes fewer"
    crowd.alone_s = ALONE_S
    crowd.run(40.0)
    settled = crowd.slots_over(20.0)
    assert 0.85 * KNEE < min(settled) <= max(settled) < 1.3 * KNEE, "and more when that has passed"


def test_a_router_that_comes_into_congestion_does_not_take_it_for_normal() -> None:
    """A limit of its own would begin there: with a baseline that the others have doubled."""
    crowd = Crowd(1, routers=1)
    crowd.run(60.0)
    for name in ("b", "c"):
        crowd.start_router(name)
    crowd.run(10.0)
    settled = crowd.slots_over(30.0)
    assert 0.85 * KNEE < min(settled) <= max(settled) < 1.3 * KNEE


@settings(max_examples=6)
@given(st.integers(1, 3), st.integers(1, 12))
def test_it_does_not_grow_while_the_clients_are_the_limit(routers: int, clients: int) -> None:
    crowd = Crowd(1, routers=routers, clients=clients)
    crowd.run(60.0)
    asked = routers * clients
    assert crowd.desk.slots <= asked + sqrt(asked) + 1


# What it is told


def asks(book: DeskBook, now: float, number: int, in_flight: int, wants: int = 0, **told: object) -> int:
    wanted = (Want("default", wants, 0, 0.0, 0.0),) if wants else ()
    ask = Ask("a", (1, number), (9, 10**6), None, wanted, 1.0, MIN_TTL_S)
    grants = book.receive(now, ask, number, in_flight, **told)  # type: ignore[arg-type]
    assert grants is not None
    return grants["a"].may


def test_a_router_that_tells_of_no_ends_teaches_nothing() -> None:
    book = DeskBook(1, LearnedSlots(8), 10.0)
    book.begin(-LEARN_S)
    book.open("a", 1)
    for number in range(1, 200):
        assert asks(book, number / 10, number, number % 2, wants=3) <= 1
    assert book.slots == 1


def grown() -> tuple[DeskBook, int]:
    """A book of sixteen slots or so, all of them lent, and the number of the last message."""
    book, number = DeskBook(1, LearnedSlots(64), 10.0), 0
    book.begin(-LEARN_S)
    book.open("a", 1)
    may = 0
    while book.slots < 16:
        number += 2
        may = asks(book, number / 100, number - 1, may, wants=64)
        may = asks(book, number / 100, number, may, wants=64, ended=((1.0, 10, 9),) * 16)
    return book, number


def test_what_the_server_refuses_takes_off_a_tenth_and_a_repeated_message_nothing() -> None:
    book, number = grown()
    before = book.slots
    asks(book, number / 100, number + 1, 0, overloaded=2)
    assert book.slots == int(0.9 * before)
    for _ in range(40):
        asks(book, number / 100, number + 1, 0, overloaded=64)
    assert book.slots == int(0.9 * before)


def test_a_desk_that_starts_counts_more_than_it_lends_and_waits_until_they_have_ended() -> None:
    book = DeskBook(1, LearnedSlots(64), 10.0)
    book.begin(0.0)
    for name in "ab":
        book.open(name, 1)

    def says(router: str, now: float, in_flight: int, wants: int = 9) -> int:
        number = int(now * 100) + 1
        ask = Ask(router, (1, number), (9, 10**6), None, (Want("default", wants, 0, 0.0, 0.0),), 1.0, MIN_TTL_S)
        grants = book.receive(now, ask, number, in_flight)
        assert grants is not None
        return grants[router].may

    now = 0.0
    while now < LEARN_S + 1:
        assert (says("a", now, 10), says("b", now, 3)) == (0, 0)
        assert (book.promised, book.slots) == (13, 1)
        now += 0.25
    assert says("a", now, 0, wants=0) == 0, "three of the other router are left, and one slot"
    assert says("b", now, 0) == 1


# With routers


def test_real_routers_teach_it_what_their_server_takes() -> None:
    async def main() -> None:
        async with desked(routers=2, slots=64, learns=True, max_queue_size=1000) as made:
            made.server.service_s, made.server.crowding_s = 0.040, 0.004
            knee = (2 * 0.044 - 0.040) / 0.004
            one, other = made.routers
            async with floods((one, "a", 30), (other, "b", 30)):
                await asyncio.sleep(6.0)
                made.server.highest = 0
                await asyncio.sleep(2.0)
                slots = [value for _, value in await made.samples("weir_desk_slots")]
                assert 0.7 * knee < slots[0] < 1.35 * knee, slots
                assert 0.7 * knee < made.server.highest < 1.35 * knee
                assert [worker.announced_slots for worker in one.dispatcher.fleet.workers] == pytest.approx(
                    slots, abs=3
                )

    run(main)
