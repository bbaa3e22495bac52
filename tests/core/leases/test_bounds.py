"""How long a slot may be idle while a router that asked there waits: two half trips, four if it must be recalled, and a
lease's time if its holder stands still, for at most half of the slots.
"""

from __future__ import annotations

from services.core.leases.book import UNUSED_PART
from services.core.leases.times import DRIFT, MIN_TTL_S
from tests.core.leases.network import Message, Network, Router

H = 0.001
"""Half a trip."""
STILL = "r0"


class Timed(Network):
    """Each message takes H. A frozen router receives nothing."""

    def __init__(self, routers: int, workers: int, slots: int) -> None:
        super().__init__(routers, workers, slots)
        self.due: dict[int, float] = {}
        self.frozen: set[Router] = set()

    def send(self, kind: str, router: Router, worker: str, body: object = None, work: object = None) -> None:
        super().send(kind, router, worker, body, work)  # type: ignore[arg-type]
        self.due[id(self.under_way[-1])] = self.now + H

    def run_until(self, until: float, step_s: float = H / 10) -> None:
        while self.now < until:
            self.now += step_s
            for message in [each for each in self.under_way if self.due[id(each)] <= self.now + 1e-9]:
                if self.is_received(message):
                    self.deliver(message)
                else:
                    self.under_way.remove(message)
            for worker, book in self.books.items():
                if book.wakes_at() < self.now:
                    self.send_grants(worker, book.expire(self.now))

    def is_received(self, message: Message) -> bool:
        return message.kind in ("ask", "request", "fin") or message.router not in self.frozen

    def waits_for_a_slot(self, router: Router, limit_s: float) -> float:
        """Seconds until the router has started what it has."""
        began = self.now
        while router.waits:
            self.run_until(self.now + H / 10)
            if round((self.now - began) / H * 10) % 1000 == 0:
                self.refresh(router)
            assert self.now - began <= limit_s, f"{router.name} waits for {self.now - began:g} s"
        return self.now - began


def test_a_free_slot_is_used_after_two_half_trips() -> None:
    net = Timed(2, 1, 4)
    net.arrive(net.routers[0])
    assert net.waits_for_a_slot(net.routers[0], 1.0) <= 2.2 * H


def test_an_idle_slot_of_another_router_is_used_after_four_half_trips() -> None:
    net = Timed(2, 1, 1)
    idle, other = net.routers
    net.arrive(idle)
    net.waits_for_a_slot(idle, 1.0)
    net.run_until(net.now + 2 * H)
    net.end(net.running("w0")[0])
    net.run_until(net.now + 2 * H)
    assert net.books["w0"].may("r0") == 1
    net.arrive(other)
    assert net.waits_for_a_slot(other, 1.0) <= 4.4 * H


def test_the_slot_of_a_request_that_ends_is_used_after_two_half_trips() -> None:
    net = Timed(2, 1, 1)
    one, other = net.routers
    net.arrive(one)
    net.waits_for_a_slot(one, 1.0)
    net.arrive(other)
    net.run_until(net.now + 3 * H)
    assert other.waits == 1
    net.end(net.running("w0")[0])
    assert net.waits_for_a_slot(other, 1.0) <= 1.2 * H, "it is pushed: half a trip, and its request is another"


def test_the_slots_of_a_frozen_router_are_lent_when_its_lease_ends_and_no_more_than_half_are_idle_until_then() -> None:
    net = Timed(2, 1, 4)
    frozen, other = net.routers
    net.arrive(frozen, n=8)
    net.run_until(net.now + 20 * H)
    assert net.books["w0"].running == 4
    net.frozen.add(frozen)
    began = net.now
    net.arrive(other, n=8)
    net.run_until(net.now + 4 * H)
    for work in net.running("w0"):
        net.end(work)
    net.run_until(net.now + 4 * H)
    assert net.books["w0"].slots - net.books["w0"].running <= 4 // UNUSED_PART
    while net.books["w0"].running < 4:
        net.run_until(net.now + 0.01, 0.001)
        net.refresh(other)
        assert net.now - began <= MIN_TTL_S * (1 + DRIFT) + 0.05
