"""A router's calls of the exchange, in virtual time: their pace, a store that is slow or gone, and one router."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable
from itertools import pairwise
from unittest import mock

import pytest

from services.core import pool, stats
from services.core.elsewhere import STALE_S
from services.core.leases import exchange as arithmetic
from services.core.leases.exchange import UsageAnswer, UsageExchange, UsageReport
from services.core.leases.usage import UsageLedger, UsedElsewhere
from services.router.leases.exchanging import ALONE_PERIOD_S, MAX_OPEN_S, PERIOD_S, TIMEOUT_S, Exchanging
from services.router.leases.fault import StoreFault
from services.router.leases.store import SCRIPT
from tests.core.leases.rig import Site
from tests.retrieval.fakes import Lines
from tests.virtual import run

TRIP_S = 0.001
FAR_S = 1000.0


class FakeStore:
    """The pure class behind two trips. `frozen`: it adds nothing and answers nothing. `answers`: or it adds only."""

    def __init__(self) -> None:
        self.exchange = UsageExchange("run 0")
        self.runs = 0
        self.frozen = self.gone = False
        self.answers = True
        self.takes_s = 2 * TRIP_S
        self.asked_at: dict[str, list[float]] = {}
        self.waiting = 0
        self.took_s: list[float] = []

    def restart(self) -> None:
        self.runs += 1
        self.exchange = UsageExchange(f"run {self.runs}")

    async def call(self, report: UsageReport) -> UsageAnswer:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.asked_at.setdefault(report.router, []).append(began)
        self.waiting += 1
        try:
            if self.gone:
                raise StoreFault("ConnectionError: refused")
            if self.frozen:
                await asyncio.sleep(FAR_S)
            answer = self.exchange.call(loop.time(), report)
            await asyncio.sleep(self.takes_s if self.answers else FAR_S)
            return answer
        finally:
            self.waiting -= 1
            self.took_s.append(loop.time() - began)

    def calls(self, router: str, since: float) -> list[float]:
        return [at for at in self.asked_at.get(router, ()) if at >= since]


class Router:
    """A site and its exchange."""

    def __init__(self, name: str, store: FakeStore) -> None:
        self.site = Site(name, {"a": 1.0})
        self.lines = Lines()
        self.charged: list[UsedElsewhere] = []
        self.exchanging = Exchanging(
            store, self.site.ledger, wants=tuple, charge=self.charged.append, log=self.lines.log
        )  # fmt: skip

    @property
    def elsewhere(self) -> float:
        """What the other one served, as the last answer said."""
        seen = self.site.ledger._entries["a", "default"].seen
        return 0.0 if seen is None else seen.served


def play(scenario: Callable[..., Awaitable[None]], routers: int = 1) -> list[str]:
    """Run it with so many routers, whose calls have begun; what each logged."""
    parts: list[Router] = []

    async def main() -> None:
        store = FakeStore()
        parts.extend(Router(f"r{n}", store) for n in range(routers))
        for part in parts:
            part.site.queue("a", 50)
            part.site.serve()
            part.exchanging.start()
        try:
            await scenario(store, *parts)
        finally:
            for part in parts:
                await part.exchanging.stop()

    run(main())
    return [part.lines.read() for part in parts]


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_router_that_is_alone_calls_once_a_second() -> None:
    async def scenario(store: FakeStore, router: Router) -> None:
        await asyncio.sleep(10.5)
        calls = store.calls("r0", 0.0)
        assert [b - a for a, b in pairwise(calls)] == pytest.approx([ALONE_PERIOD_S] * 10)
        assert router.site.ledger.routers == 1
        assert router.exchanging.age_s <= ALONE_PERIOD_S

    play(scenario)


def test_two_routers_call_five_times_a_second_and_find_one_another_within_one() -> None:
    async def scenario(store: FakeStore, *routers: Router) -> None:
        await asyncio.sleep(ALONE_PERIOD_S + PERIOD_S)
        assert [each.site.ledger.routers for each in routers] == [2, 2]
        since = now()
        await asyncio.sleep(10.0)
        for name in ("r0", "r1"):
            assert len(store.calls(name, since)) == pytest.approx(10.0 / PERIOD_S, abs=1)

    play(scenario, routers=2)


def test_the_last_of_two_routers_slows_down_when_the_other_one_is_gone() -> None:
    async def scenario(store: FakeStore, one: Router, other: Router) -> None:
        await asyncio.sleep(3.0)
        await other.exchanging.stop()
        await asyncio.sleep(3.0)
        since = now()
        await asyncio.sleep(10.0)
        assert len(store.calls("r0", since)) == pytest.approx(10.0 / ALONE_PERIOD_S, abs=1)
        assert one.site.ledger.routers == 1

    play(scenario, routers=2)


def test_what_one_router_serves_is_known_at_the_other_within_two_periods() -> None:
    async def scenario(store: FakeStore, one: Router, other: Router) -> None:
        await asyncio.sleep(3.0)
        before = other.elsewhere
        one.site.serve(now=now())
        flow = one.site.drr.tenants["a"].flows["default"]
        one.site.ledger.add_taken(flow, 1, 7.0)
        await asyncio.sleep(2 * PERIOD_S + 4 * TRIP_S)
        assert other.elsewhere == pytest.approx(before + 10.0)
        assert other.charged == [UsedElsewhere("a", "default", 1, 7.0)]
        assert not one.charged

    play(scenario, routers=2)


def test_a_store_that_is_too_slow_is_left_after_the_time_out_and_blocked_after_three_calls() -> None:
    async def scenario(store: FakeStore, router: Router, _: Router) -> None:
        await asyncio.sleep(3.0)
        since = now()
        store.takes_s = TIMEOUT_S * 1.5
        store.took_s.clear()
        await asyncio.sleep(2 * PERIOD_S + 1.0)
        assert not router.exchanging.up
        assert len(store.calls("r0", since)) == 3
        assert store.took_s == pytest.approx([TIMEOUT_S] * 6)

    logs = play(scenario, routers=2)
    assert logs[0].count("exchange is down") == 1


def test_a_frozen_store_is_probed_and_the_figures_grow_old_until_it_thaws() -> None:
    async def scenario(store: FakeStore, router: Router, _: Router) -> None:
        await asyncio.sleep(3.0)
        store.frozen = True
        since = now()
        await asyncio.sleep(60.0)
        assert len(store.calls("r0", since)) <= 3 + 3 + math.ceil(60.0 / MAX_OPEN_S)
        assert router.exchanging.age_s == pytest.approx(60.0, abs=PERIOD_S + TIMEOUT_S)
        assert not router.site.ledger.elsewhere.is_fresh(now()), f"older than {STALE_S} s"
        assert store.waiting == 0, "no call is left behind"
        store.frozen = False
        await asyncio.sleep(MAX_OPEN_S + 2 * PERIOD_S)
        assert router.exchanging.up
        assert router.exchanging.age_s <= PERIOD_S + TIMEOUT_S
        assert router.site.ledger.elsewhere.is_fresh(now())

    logs = play(scenario, routers=2)
    assert logs[0].count("exchange is down") == logs[0].count("exchange is up") == 1


def test_a_store_that_is_not_there_from_the_beginning_is_found_later() -> None:
    async def scenario(store: FakeStore, router: Router) -> None:
        store.gone = True
        assert router.exchanging.age_s == math.inf
        await asyncio.sleep(60.0)
        assert not router.exchanging.up
        store.gone = False
        await asyncio.sleep(MAX_OPEN_S + ALONE_PERIOD_S)
        assert router.exchanging.up
        assert router.exchanging.age_s <= ALONE_PERIOD_S + TIMEOUT_S

    (log,) = play(scenario)
    assert "ConnectionError: refused" in log


def test_a_call_that_was_added_but_not_answered_counts_once() -> None:
    async def scenario(store: FakeStore, one: Router, other: Router) -> None:
        await asyncio.sleep(3.0)
        before = other.elsewhere
        store.answers = False
        one.site.serve(now=now())
        await asyncio.sleep(2 * PERIOD_S)
        store.answers = True
        await asyncio.sleep(MAX_OPEN_S)
        assert other.elsewhere == pytest.approx(before + 10.0)

    play(scenario, routers=2)


def test_a_store_that_restarts_empty_counts_nothing_twice() -> None:
    async def scenario(store: FakeStore, one: Router, other: Router) -> None:
        one.site.serve(3, now=now())
        await asyncio.sleep(3.0)
        before = other.elsewhere
        store.restart()
        await asyncio.sleep(3.0)
        assert other.elsewhere == 0.0 < before
        one.site.serve(now=now())
        await asyncio.sleep(1.0)
        assert other.elsewhere == pytest.approx(10.0), "the new run counts on"

    play(scenario, routers=2)


def test_a_request_never_waits_for_a_frozen_store() -> None:
    async def scenario(store: FakeStore, router: Router) -> None:
        store.frozen = True
        for _ in range(20):
            began = now()
            assert router.site.serve(now=began) == "a"
            assert now() == began
            await asyncio.sleep(0.01)

    play(scenario)


def test_an_exchange_is_stopped_in_the_middle_of_a_call_and_can_begin_again() -> None:
    async def scenario(store: FakeStore, router: Router) -> None:
        store.takes_s = TIMEOUT_S * 0.9
        await asyncio.sleep(TRIP_S)
        assert store.waiting == 1
        with pytest.raises(RuntimeError, match="has been started"):
            router.exchanging.start()
        await router.exchanging.stop()
        assert store.waiting == 0
        since = now()
        await asyncio.sleep(5.0)
        assert not store.calls("r0", since)
        router.exchanging.start()
        await asyncio.sleep(TIMEOUT_S)
        assert router.exchanging.age_s <= TIMEOUT_S

    play(scenario)


def test_a_fault_of_this_router_is_logged_and_does_not_end_the_calls() -> None:
    async def scenario(store: FakeStore, router: Router) -> None:
        def broken(now: float, answer: UsageAnswer) -> list[UsedElsewhere]:
            raise ArithmeticError("a fault")

        with mock.patch.object(UsageLedger, "receive", broken):
            await asyncio.sleep(1.5)
        await asyncio.sleep(2 * ALONE_PERIOD_S)
        assert router.exchanging.age_s <= ALONE_PERIOD_S

    (logged,) = play(scenario)
    assert "the exchange failed" in logged


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ACTIVE_FOR_S", pool.ACTIVE_FOR_S), ("DEMAND_S", stats.DEMAND_S), ("LEVEL_S", arithmetic.LEVEL_S),
        ("FORGET_S", arithmetic.FORGET_S), ("FORGET_ROUTER_S", arithmetic.FORGET_ROUTER_S),
        ("FORGET_AT_ONCE", arithmetic.FORGET_AT_ONCE),
    ],
)  # fmt: skip
def test_the_script_has_the_constants_of_the_pure_class(name: str, value: float) -> None:
    found = {}
    for names, values in re.findall(r"^local ([A-Z_, ]+) = ([\d, ]+)(?:--.*)?$", SCRIPT, re.MULTILINE):
        found |= dict(zip(names.split(", "), map(float, values.split(", ")), strict=True))
    assert found[name] == value
