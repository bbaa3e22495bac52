"""What one router wants of a pool, and the slots that it plans with."""

from __future__ import annotations

import pytest

from services.core.leases.messages import Grant
from services.core.leases.poolleases import PoolLeases
from services.core.leases.times import MIN_TTL_S
from tests.core.leases.rig import Site

RETRIES = {"default": 2}


class Made:
    """A router with `queued` requests of one tenant, before one worker of four slots."""

    def __init__(self, queued: int = 0) -> None:
        self.site = Site("r0", {"a": 1.0})
        self.leases = PoolLeases("r0", 1, self.site.scheduler, "default", lambda: 0.5)
        self.leases.borrower.join(0.0, "w0", 4)
        self.site.queue("a", queued)
        self.grants = 0

    def lend(self, may: int, now: float = 0.0) -> None:
        ask = self.leases.borrower.holdings["w0"].ask(now, (), quantum=1.0, ttl_s=MIN_TTL_S)
        self.grants += 1
        self.leases.borrower.receive(now, "w0", Grant((1, self.grants), ask.stamp, may, MIN_TTL_S, 4))


@pytest.mark.parametrize(("lent", "is_capped", "wanted"), [(0, False, [3]), (1, False, []), (0, True, [])])
def test_the_queue_waits_for_a_slot_while_none_is_free_and_its_requests_could_use_it(
    lent: int, is_capped: bool, wanted: list[int]
) -> None:
    made = Made(queued=3)
    made.lend(lent)
    assert [want.requests for want in made.leases.wants(0.0, is_capped=is_capped)] == wanted
    assert [want.requests for want in made.leases.last_wants] == wanted


@pytest.mark.parametrize(("lent", "is_capped", "wanted"), [(0, False, 5), (1, False, 2), (0, True, 2), (1, True, 2)])
def test_retries_wait_for_a_slot_whatever_is_free_and_the_queue_beside_them_as_ever(
    lent: int, is_capped: bool, wanted: int
) -> None:
    made = Made(queued=3)
    made.lend(lent)
    (want,) = made.leases.wants(0.0, RETRIES, is_capped=is_capped)
    assert (want.requests, want.light) == (wanted, 2)


def test_what_has_been_wanted_is_forgotten_once_nothing_waits() -> None:
    made = Made()
    assert made.leases.wants(0.0, RETRIES)
    assert made.leases.wants(0.0) == made.leases.last_wants == ()
