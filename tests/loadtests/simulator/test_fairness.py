"""The fairness figures on services that were written down, and the histogram that all quantiles come from."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.simulator.accounts import Account
from loadtests.simulator.clients import Tenant
from loadtests.simulator.fairness import Gaps, Jain, index, max_min, summary
from loadtests.simulator.histogram import Histogram
from loadtests.simulator.plan import Plan
from loadtests.simulator.policies.fifo import Fifo
from loadtests.simulator.simulation import Simulation
from services.core.cost import Weights
from tests.loadtests.simulator.worlds import scenario, unmeasured


def tenants(count: int) -> list[Tenant]:
    (group,) = scenario({}).tenants
    return [Tenant(f"t{place}", group, Account(), 0, False) for place in range(count)]


def test_the_gap_grows_only_while_both_are_backlogged() -> None:
    gaps = Gaps(tenants(2))
    gaps.backlogged(0)
    gaps.served(0, 100)  # alone: nobody is wronged
    gaps.backlogged(1)
    gaps.served(0, 10)
    gaps.served(0, 10)
    gaps.served(1, 5)
    assert gaps.largest == 20
    gaps.idle(1)
    gaps.served(0, 1000)
    assert gaps.largest == 20


def test_the_gap_is_over_any_interval_not_only_from_its_beginning() -> None:
    gaps = Gaps(tenants(2))
    gaps.backlogged(0)
    gaps.backlogged(1)
    for watch, cost in [(0, 30), (1, 80), (0, 10)]:
        gaps.served(watch, cost)
    assert gaps.largest == 80  # from +30 to -50
    assert gaps.pair == (0, 1)


def test_only_the_first_sixteen_are_watched() -> None:
    everyone = tenants(20)
    Gaps(everyone)
    assert [tenant.watch for tenant in everyone] == [*range(16), -1, -1, -1, -1]


def test_max_min_shares_satisfy_the_small_first_and_share_the_rest_by_weight() -> None:
    assert max_min([10, 100, 100], [1, 1, 1], 110) == [10, 50, 50]
    assert max_min([10, 100, 100], [1, 1, 3], 110) == [10, 25, 75]
    assert max_min([10, 20], [1, 1], 100) == [10, 20]


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=8), st.floats(0.1, 500))
def test_max_min_gives_no_more_than_there_is_nor_than_was_asked(asked: list[float], total: float) -> None:
    shares = max_min(asked, [1.0] * len(asked), total)
    assert sum(shares) == pytest.approx(min(total, sum(asked)))
    assert all(share <= ask * (1 + 1e-9) for share, ask in zip(shares, asked, strict=True))


def test_jains_index_is_one_for_equals_and_one_nth_for_a_monopoly() -> None:
    assert index([3, 3, 3]) == 1
    assert index([1, 0, 0, 0]) == 0.25


def test_who_asks_for_little_and_gets_it_is_treated_fairly() -> None:
    small, big, other = everyone = tenants(3)
    jain = Jain(everyone)
    for tenant, asked, served in [(small, 10, 10), (big, 500, 45), (other, 500, 45)]:
        tenant.asked_cost, tenant.served_cost = asked, served
    jain.close()
    assert summary(Gaps(everyone), jain).jain_min == pytest.approx(1.0)
    assert small.asked_cost == 0


def test_a_scheduler_that_shares_work_has_a_smaller_gap_than_one_that_shares_turns() -> None:
    flood = {"arrivals": {"kind": "poisson", "rate_per_s": 100}, "deadline_s": 1000}
    world = scenario(flood | {"completion_tokens": 20}, flood | {"completion_tokens": 200}, duration_s=70)
    turns, tokens = (unmeasured(world, policy).fairness for policy in ("round_robin_ttl", "vtc"))
    assert tokens.gap_cost is not None
    assert turns.gap_cost is not None
    assert tokens.gap_cost < 10 * tokens.largest_cost < turns.gap_cost
    assert tokens.jain_min is not None
    assert turns.jain_min is not None
    assert tokens.jain_min > 0.99 > turns.jain_min


@pytest.mark.parametrize(("duration_s", "cool_down_s", "windows"), [(30, 0, 1), (60, 0, 1), (120, 0, 2), (130, 10, 2)])
def test_each_whole_minute_that_counts_has_an_index(duration_s: float, cool_down_s: float, windows: int) -> None:
    world = scenario({"count": 2}, duration_s=duration_s, cool_down_s=cool_down_s)
    simulation = Simulation(world, Plan(world, {"t0": 5.0}, seed=1), Fifo(), Weights(), seed=1)
    simulation.run_until(world.duration_s)
    assert len(simulation.jain.indexes) == windows


@given(st.lists(st.floats(1e-5, 1e6), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_is_within_one_percent_of_a_sample_that_is_one(values: list[float], q: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[max(0, -int(-q * len(values) // 1) - 1)]
    summary = histogram.quantile(q)
    assert summary is not None
    assert min(abs(summary / each - 1) for each in values) <= 0.0101 + 1e-9
    assert summary == pytest.approx(exact, rel=0.0202)


def test_histograms_add_up() -> None:
    chance = random.Random(1)
    one, other, both = Histogram(), Histogram(), Histogram()
    for histogram in (one, other):
        for _ in range(100):
            value = chance.expovariate(1)
            histogram.add(value)
            both.add(value)
    one.merge(other)
    assert one.counts == both.counts
    assert (one.count, one.largest) == (200, both.largest)
    assert Histogram().quantile(0.5) is None
