"""The exchange in a real Valkey: its script answers as the pure class does, and nothing is counted twice or kept on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from services.cli.valkey import EmbeddedValkey
from services.core.leases.exchange import (
    FORGET_AT_ONCE,
    FORGET_S,
    ClassLevel,
    UsageAnswer,
    UsageExchange,
    UsageReport,
    UsageRow,
)
from services.router.leases.exchanging import Exchanging
from services.router.leases.fault import StoreFault
from services.router.leases.store import ValkeyExchange
from services.runtime.valkey import redis_client
from tests.core.leases.rig import Site
from tests.core.leases.vectors import cases, plain, played
from tests.retrieval.fakes import Lines

PATIENCE_S = 60.0
REPORT = UsageReport("r0", (1, 1), "", (), (UsageRow("a", "default", 1.0, served=5.0, active=True),))


class Played:
    """A pool's exchange in the server, called from outside of a loop."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self.client = redis_client(url, timeout_s=PATIENCE_S, connections=1, socket_timeout_s=PATIENCE_S)
        self.exchange = ValkeyExchange(self.client, "the pool")
        self.run = "x"

    def emptied(self, run: str) -> Played:
        self.run = run
        self.do(self.client.flushall)
        return self

    def call(self, now: float, report: UsageReport) -> UsageAnswer:
        return self.do(lambda: self.exchange.call(report, now=now, new_run=self.run))

    def do(self, work: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        async def main() -> Any:
            return await work(*arguments)

        return self._runner.run(main())

    def close(self) -> None:
        self.do(self.client.aclose)
        self._runner.close()


@pytest.fixture
def store(redis_url: str) -> Iterator[Played]:
    store = Played(redis_url)
    yield store
    store.close()


@pytest.mark.parametrize("name", list(cases()))
def test_every_vector_is_answered_as_the_file_says(store: Played, name: str) -> None:
    for expected, found in played(cases()[name], store.emptied):
        assert found == expected


# ---- chance: the script and the pure class agree on whatever is called

TICK_S = 1 / 64  # binary fractions, so that both sides subtract times exactly
TENANTS = st.sampled_from(["a", "b", "ä\0 b", "", "7"])
CLASSES = ["default", "gold", "golden", "Tin", "Ü"]
FIGURES = st.one_of(st.just(0.0), st.floats(-1e6, 1e6), st.integers(-1000, 1000).map(float))
WEIGHTS = st.sampled_from([0.25, 1.0, 2.0, 8.0])
ROWS = st.lists(
    st.builds(
        UsageRow, TENANTS, st.sampled_from(CLASSES), WEIGHTS, FIGURES, st.floats(0, 1e6), st.integers(0, 1000), FIGURES,
        st.booleans(), st.booleans(), st.booleans(),
    ),
    max_size=6,
    unique_by=lambda row: row[:2],
).map(tuple)  # fmt: skip
TAGS = st.none() | st.floats(-1e3, 1e9)
LEVELS = st.lists(
    st.builds(ClassLevel, st.sampled_from(CLASSES), WEIGHTS, st.booleans(), TAGS, TAGS),
    max_size=4,
    unique_by=lambda level: level[0],
).map(tuple)
CALLS = st.builds(
    UsageReport,
    st.sampled_from(["r0", "r1", "r2"]),
    st.tuples(st.integers(1, 2), st.integers(1, 6)),
    st.sampled_from(["now", "now", "now", "now", "", "gone"]),
    LEVELS,
    ROWS,
)
PAUSES = st.one_of(st.integers(0, 96), st.sampled_from([int(FORGET_S * 0.6 / TICK_S)])).map(lambda n: n * TICK_S)
LOSSES = st.sampled_from(["", "", "", "", "", "", "", "all", "state", "sums", "received", "active", "weights"])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(st.tuples(PAUSES, LOSSES, CALLS), min_size=1, max_size=30))
def test_the_script_and_the_pure_class_agree(store: Played, steps: list[tuple[float, str, UsageReport]]) -> None:
    now, runs = 0.0, 0
    store.emptied("run 0")
    pure = UsageExchange("run 0")
    for pause_s, loss, report in steps:
        now += pause_s
        if loss:
            runs += 1
            lose(store, loss)
            store.run = f"run {runs}"
            pure = UsageExchange(store.run)
        report = report._replace(run=pure.run if report.run == "now" else report.run)
        expected, found = pure.call(now, report), store.call(now, report)
        assert list(leaves(plain(found))) == [
            pytest.approx(each, rel=1e-9, abs=1e-5) if isinstance(each, float) else each
            for each in leaves(plain(expected))
        ]


def lose(store: Played, what: str) -> None:
    """A restart, or the eviction of one key."""
    keys = store.exchange.keys if what == "all" else [key for key in store.exchange.keys if key.endswith(f":{what}")]
    store.do(store.client.delete, *keys)


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from leaves(each)
    else:
        yield value


# ---- what a store has beyond the arithmetic


def test_a_pool_has_five_keys_in_one_slot_that_end_when_nobody_calls(store: Played) -> None:
    store.call(0.0, REPORT)
    keys = [key.decode() for key in store.do(store.client.keys, "*")]
    assert sorted(keys) == sorted(store.exchange.keys)
    assert all("{the pool}" in key for key in keys)
    for key in keys:
        assert 0 < store.do(store.client.pttl, key) <= FORGET_S * 1000


def test_two_pools_have_nothing_in_common(store: Played) -> None:
    other = ValkeyExchange(store.client, "another pool")
    store.call(0.0, REPORT._replace(run="x"))
    answer = store.do(lambda: other.call(REPORT, now=0.0, new_run="y"))
    assert (answer.run, answer.classes) == ("y", ())


def test_tenants_that_nobody_reports_are_forgotten_a_hundred_at_a_time(store: Played) -> None:
    store.emptied("x")
    rows = tuple(UsageRow(f"t{n}", "default", 1.0, served=1.0) for n in range(250))
    store.call(0.0, UsageReport("r0", (1, 1), "x", (), rows))
    store.call(FORGET_S / 2, UsageReport("r0", (1, 2), "x", (), ()))
    for call, left in ((3, 250 - FORGET_AT_ONCE), (4, 250 - 2 * FORGET_AT_ONCE), (5, 0), (6, 0)):
        store.call(FORGET_S + call, UsageReport("r0", (1, call), "x", (), ()))
        assert store.do(store.client.hlen, store.exchange.keys[1]) == left + 1
        assert store.do(store.client.zcard, store.exchange.keys[2]) == left + 1


def test_thousands_of_tenants_in_one_report_are_added_and_answered(store: Played) -> None:
    store.emptied("x")
    pure = UsageExchange("x")
    rows = tuple(UsageRow(f"tenant-{n}", "default", 2.0, served=float(n), active=True) for n in range(5_000))
    report = UsageReport("r0", (1, 1), "x", (ClassLevel("default", 1.0, True),), rows)
    assert plain(store.call(0.0, report)) == plain(pure.call(0.0, report))
    later = report._replace(stamp=(1, 2), rows=())
    assert plain(store.call(2.0, later)) == plain(pure.call(2.0, later)), "none is active any more"
    assert store.do(store.client.zcard, store.exchange.keys[3]) == 1


def test_a_report_is_added_once_though_its_router_was_cut_off_for_longer_than_tenants_are_known(store: Played) -> None:
    store.emptied("x").call(0.0, REPORT._replace(run="x"))
    for minutes in range(5, 60, 5):
        store.call(minutes * 60.0, REPORT._replace(router="r1", stamp=(1, minutes), run="x", rows=()))
    assert store.call(3600.0 - 30.0, REPORT._replace(run="x")).classes == (("default", 5.0, 5.0),)


@pytest.mark.parametrize(("seconds", "run"), [(-0.5, "x"), (-2.0, "y"), (FORGET_S + 1.0, "y")])
def test_a_clock_that_was_set_begins_a_new_run_and_one_that_was_corrected_does_not(
    store: Played, seconds: float, run: str
) -> None:
    store.emptied("x").call(1000.0, REPORT)
    store.run = "y"
    answer = store.call(1000.0 + seconds, REPORT._replace(run="x"))
    assert (answer.run, answer.added) == (run, run == "x")


def test_while_the_clock_is_behind_where_it_was_time_stands_still(store: Played) -> None:
    asked = UsageReport("r0", (1, 1), "x", (), (UsageRow("a", "default", 1.0, asked=300.0),))
    store.emptied("x")
    for now in (1000.0, 999.5):
        assert store.call(now, asked).totals[0].asked_per_s == pytest.approx(100.0)


@pytest.mark.parametrize("figure", [float("nan"), float("inf")])
def test_a_figure_that_is_not_finite_is_refused_before_anything_is_added(store: Played, figure: float) -> None:
    rows = (UsageRow("a", "default", 1.0, served=1.0), UsageRow("b", "default", 1.0, served=figure))
    store.emptied("x").call(0.0, REPORT)
    with pytest.raises(StoreFault, match="not finite"):
        store.call(0.2, UsageReport("r0", (1, 2), "x", (), rows))
    assert store.call(0.4, REPORT).classes == ()


def test_a_key_of_another_kind_is_a_fault_and_not_an_answer(store: Played) -> None:
    for key in store.exchange.keys:
        store.do(store.client.lpush, key, "x")
    with pytest.raises(StoreFault, match="wrong kind"):
        store.call(0.0, REPORT)


def test_a_server_that_lost_its_scripts_gets_this_one_within_the_call(store: Played) -> None:
    store.call(0.0, REPORT)
    store.do(store.client.script_flush)
    assert store.call(0.2, REPORT._replace(run=store.run)).added


def test_each_restart_has_a_run_of_its_own_by_the_clock_of_the_store(store: Played) -> None:
    runs = set()
    for _ in range(3):
        store.do(store.client.flushall)
        first = store.do(lambda: store.exchange.call(REPORT))
        again = store.do(lambda run=first.run: store.exchange.call(REPORT._replace(run=run)))
        assert (first.added, again.added, again.run) == (False, True, first.run)
        assert again.totals[0].served == 5.0
        runs.add(first.run)
    assert len(runs) == 3


# ---- routers


def test_two_routers_count_what_the_other_one_served_and_a_frozen_store_costs_nothing(
    redis: EmbeddedValkey, redis_url: str
) -> None:
    asyncio.run(_two_routers(redis, redis_url))


async def _two_routers(redis: EmbeddedValkey, url: str) -> None:
    lines = Lines()
    sites = [Site("r0", {"a": 1.0}), Site("r1", {"a": 1.0})]
    clients: list[Redis] = [
        redis_client(url, timeout_s=PATIENCE_S, connections=1, socket_timeout_s=PATIENCE_S) for _ in sites
    ]
    calls = [
        Exchanging(
            ValkeyExchange(client, "default"), site.ledger, wants=tuple, charge=lambda used: None, log=lines.log,
            timeout_s=PATIENCE_S,
        )
        for client, site in zip(clients, sites, strict=True)
    ]  # fmt: skip

    async def settled() -> None:
        for _ in range(4):
            assert [await each.exchange() for each in calls] == [True, True]

    for site in sites:
        site.queue("a", 3)
        site.serve()
    await settled()
    before = _elsewhere(sites[1])
    assert [site.ledger.routers for site in sites] == [2, 2]
    sites[0].serve()
    os.kill(redis.pid, signal.SIGSTOP)
    try:
        calls[0]._timeout_s = 0.05
        assert not await calls[0].exchange()
    finally:
        os.kill(redis.pid, signal.SIGCONT)
    calls[0]._timeout_s = PATIENCE_S
    await settled()
    assert _elsewhere(sites[1]) == pytest.approx(before + 10.0), "sent twice, added and counted once"
    for client in clients:
        await client.aclose()
    lines.log.close()


def _elsewhere(site: Site) -> float:
    """What other routers served, as the last answer said."""
    seen = site.ledger._entries["a", "default"].seen
    return 0.0 if seen is None else seen.served
