"""Traffic with published burstiness: the gaps of a stream, and a population of clients."""

from __future__ import annotations

import statistics
from random import Random

import pytest

from loadtests.load.arrivals import asks, moments
from loadtests.load.describe import gap_cv
from loadtests.load.gaps import gaps, weibull_shape
from loadtests.load.plan import Plan, Step, Tenant
from loadtests.load.planfile import parse
from loadtests.load.population import shares

LAWS = [("gamma", 0.3), ("gamma", 2.0), ("gamma", 5.0), ("weibull", 0.3), ("weibull", 2.0), ("weibull", 5.0)]


@pytest.mark.parametrize(("arrivals", "cv"), [("poisson", 1.0), ("paced", 0.0), *LAWS])
def test_gaps_have_a_mean_of_one_and_the_variation_that_was_asked_for(arrivals: str, cv: float) -> None:
    draw = gaps(arrivals, cv, Random(3))
    drawn = [draw() for _ in range(100_000)]
    mean = statistics.fmean(drawn)
    assert mean == pytest.approx(1, rel=0.05)
    assert statistics.pstdev(drawn) / mean == pytest.approx(cv, rel=0.1)


@pytest.mark.parametrize("shape", [0.3, 1.0, 2.0])
def test_the_shape_of_a_weibull_is_found_from_its_variation(shape: float) -> None:
    known = {0.3: 5.408, 1.0: 1.0, 2.0: 0.5227}  # tables of the Weibull distribution
    assert weibull_shape(known[shape]) == pytest.approx(shape, rel=1e-3)


@pytest.mark.parametrize(("arrivals", "cv"), LAWS)
def test_a_run_begins_in_the_middle_of_a_stream_and_asks_no_more_than_its_rate(arrivals: str, cv: float) -> None:
    # Begun at an arrival, a stream has (cv ** 2 - 1) / 2 requests too many: 12 of 20 with a cv of 5.
    tenant = Tenant("a", (Step(0, 2),), arrivals=arrivals, cv=cv)
    counts = [len(list(moments(tenant, 10, Random(seed)))) for seed in range(1000)]
    assert statistics.fmean(counts) == pytest.approx(20, rel=0.15)


def test_bursts_are_seen_in_the_arrivals_of_a_plan() -> None:
    def cv_of(arrivals: str, cv: float) -> float:
        tenant = Tenant("a", (Step(0, 200),), arrivals=arrivals, cv=cv)
        return gap_cv([ask.at_s for ask in asks(Plan(seconds=100, tenants=(tenant,)))])

    assert cv_of("gamma", 3) == pytest.approx(3, rel=0.15)
    assert cv_of("weibull", 3) == pytest.approx(3, rel=0.15)
    assert cv_of("poisson", 1) == pytest.approx(1, rel=0.05)


def test_few_clients_ask_most_of_a_population() -> None:
    published = shares(2412, 1.6)
    assert 0.88 < sum(published[:29]) < 0.93  # 29 clients of 2,412 send 90 %: ServeGen
    assert shares(4, 0) == [0.25] * 4


def test_a_population_shares_the_rate_of_its_tenant_step_by_step() -> None:
    steps = [{"from_s": 0, "per_s": 30}, {"from_s": 5, "per_s": 60}]
    raw = {"name": "a", "steps": steps, "clients": 3, "skew": 1, "arrivals": "gamma", "cv": 2, "deadline_ms": 700}
    made = parse({"seconds": 10, "tenants": [raw]})
    assert [tenant.name for tenant in made.tenants] == ["a-1", "a-2", "a-3"]
    first, second, third = ([step.per_s for step in tenant.steps] for tenant in made.tenants)
    assert [sum(each) for each in zip(first, second, third, strict=True)] == pytest.approx([30, 60])
    assert first[0] / third[0] == pytest.approx(3)
    assert {(tenant.arrivals, tenant.cv, tenant.deadline_ms) for tenant in made.tenants} == {("gamma", 2, 700)}
    assert made.expected == pytest.approx(450)


def test_clients_of_a_population_have_bursts_of_their_own() -> None:
    made = parse({"seconds": 10, "tenants": [{"name": "a", "per_s": 40, "clients": 2, "arrivals": "gamma", "cv": 2}]})
    first, second = ([ask.at_s for ask in asks(made) if ask.tenant is tenant] for tenant in made.tenants)
    assert first != second
