"""The simulation as a whole: it repeats exactly, treats all policies alike, and loses no request."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from loadtests.simulator.accounts import Account, LedgerError, check
from loadtests.simulator.plan import Plan
from services.core.request import Request
from tests.loadtests.simulator.worlds import BASELINES, SLOTS, STEPS, ends, play, scenario, unmeasured

LENGTHS = {"kind": "log_normal", "median": 40, "p95": 200}
BUSY: dict[str, Any] = {
    "arrivals": {"kind": "poisson", "rate_per_s": 120},
    "completion_tokens": LENGTHS,
    "deadline_s": 1,
}


@pytest.mark.parametrize("policy", [*BASELINES, "weir"])
def test_the_same_seed_gives_the_same_report_and_another_seed_another(policy: str) -> None:
    world = scenario(BUSY, {"arrivals": {"kind": "gamma", "rate_per_s": 60, "cv": 2}}, duration_s=5)
    first, second, other = (unmeasured(each, policy) for each in (world, world, world.with_seed(2)))
    assert replace(first, real_s=0) == replace(second, real_s=0)
    assert first.series.offered != other.series.offered


def test_arrivals_are_the_same_for_every_policy() -> None:
    world = scenario(BUSY, {"count": 3, "arrivals": {"kind": "gamma", "rate_per_s": 60, "cv": 3}}, duration_s=3)

    def asked(policy: str) -> list[tuple[Any, ...]]:
        seen, _ = ends(world, policy)
        return sorted(
            (job.first_arrived_at, job.tenant, job.prompt_tokens, job.natural_tokens, job.deadline)
            for _, job, _ in seen
        )

    first = asked("fifo")
    assert len(first) > 100
    assert all(asked(policy) == first for policy in (*BASELINES[1:], "weir"))


def test_arrivals_do_not_depend_on_how_many_are_made_at_a_time() -> None:
    world = scenario(BUSY, {"arrivals": {"kind": "on_off", "rate_per_s": 60, "on_s": 0.5, "off_s": 1}})
    rates = {"t0": 120.0, "t1": 60.0}

    def made(steps: int) -> list[tuple[float, str, int]]:
        plan = Plan(world, rates, seed=1)
        jobs = [job for step in range(steps) for job in plan.until(10.0 * (step + 1) / steps)]
        return [(job.arrived_at, job.tenant, job.natural_tokens) for job in jobs]

    assert made(1) == made(7)


@pytest.mark.parametrize(
    ("arrivals", "rate"),
    [
        ({"kind": "poisson", "rate_per_s": 100}, 100),
        ({"kind": "gamma", "rate_per_s": 100, "cv": 3}, 100),
        ({"kind": "on_off", "rate_per_s": 100, "on_s": 1, "off_s": 3}, 100),
        ({"kind": "poisson", "rate_per_s": 100, "phases": [{"from_s": 50, "until_s": 100, "times": 5}]}, 200),
        ({"kind": "poisson", "rate_per_s": 100, "phases": [{"from_s": 0, "until_s": 100, "times": 0}]}, 75),
    ],
)
def test_arrivals_come_at_the_rate_that_was_asked_for(arrivals: dict[str, Any], rate: float) -> None:
    plan = Plan(scenario({"arrivals": arrivals, "count": 2}), {"t0": 100.0}, seed=3)
    jobs = plan.until(400.0)
    spread = 0.15 if arrivals["kind"] == "gamma" else 0.03
    assert len(jobs) / 400 == pytest.approx(rate if rate != 200 else 150, rel=spread)
    assert all(before.arrived_at <= after.arrived_at for before, after in pairwise(jobs))


def test_an_on_off_group_is_silent_while_it_is_off() -> None:
    plan = Plan(
        scenario({"arrivals": {"kind": "on_off", "rate_per_s": 50, "on_s": 1, "off_s": 3}}), {"t0": 50.0}, seed=1
    )
    assert all(job.arrived_at % 4.0 < 1.0 for job in plan.until(40.0))


# ---- the ledger


small = st.integers(1, 3)
arrivals = st.one_of(
    st.fixed_dictionaries({"kind": st.just("poisson"), "rate_per_s": st.floats(1, 200)}),
    st.fixed_dictionaries({"kind": st.just("gamma"), "rate_per_s": st.floats(1, 100), "cv": st.floats(0.5, 4)}),
    st.fixed_dictionaries(
        {"kind": st.just("on_off"), "rate_per_s": st.floats(1, 100), "on_s": st.just(0.3), "off_s": st.just(0.5)}
    ),
    st.fixed_dictionaries({"kind": st.just("closed"), "clients": st.integers(1, 20), "think_s": st.floats(0, 0.2)}),
)
retries = st.fixed_dictionaries(
    {
        "attempts": st.integers(0, 3),
        "wait": st.sampled_from(["immediate", "backoff", "hint", "never"]),
        "base_s": st.just(0.1),
        "keeps_deadline": st.booleans(),
    }
)
tenant = st.fixed_dictionaries(
    {
        "count": small,
        "arrivals": arrivals,
        "retries": retries,
        "deadline_s": st.sampled_from([0.05, 0.5, {"kind": "uniform", "low": 0.1, "high": 2}]),
        "max_tokens": st.integers(1, 200),
        "completion_tokens": st.sampled_from([1, 50, LENGTHS]),
    },
    optional={"client_timeout_s": st.sampled_from([0.02, 0.3, 5])},
)
failure = st.fixed_dictionaries(
    {
        "from_s": st.sampled_from([0.3, 0.5]),
        "until_s": st.sampled_from([0.7, 1.5, 3]),
        "kind": st.sampled_from(["down", "slow"]),
    }
)
worker = st.builds(
    lambda base, slots, more: {**base, "slots": slots, **more},
    st.sampled_from([SLOTS, STEPS]),
    st.integers(1, 6),
    st.fixed_dictionaries(
        {
            "count": small,
            "round_trip_ms": st.sampled_from([0, 3]),
            "lookahead": st.integers(0, 1),
            "failures": st.lists(failure, max_size=1),
        }
    ),
)


@settings(max_examples=60, phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink])
@given(
    tenants=st.lists(tenant, min_size=1, max_size=3),
    worker=worker,
    policy=st.sampled_from([*BASELINES, "weir"]),
    seed=st.integers(0, 1000),
)
def test_every_request_ends_exactly_once_whatever_happens(
    tenants: list[dict[str, Any]], worker: dict[str, Any], policy: str, seed: int
) -> None:
    world = scenario(*tenants, worker=worker, duration_s=2, warm_up_s=0.2, cool_down_s=0.2, seed=seed)
    seen, report = ends(world, policy)
    ledger = report.ledger
    assert ledger.ended == ledger.distinct <= ledger.attempts
    assert len(seen) >= ledger.distinct
    assert len({job.question for _, job, _ in seen}) == len(seen)
    assert sum(report.ledger.ended for report in report.tenants) == ledger.distinct
    assert 0 <= report.work.useful_s <= report.work.busy_s * (1 + 1e-9)
    assert report.answers_after_deadline == ledger.late


def test_a_request_that_never_ends_or_ends_twice_is_a_bug_and_says_so() -> None:
    account = Account()
    account.distinct = 2
    account.on_time = 1
    with pytest.raises(LedgerError, match="t0: 2 requests, but 1 ends"):
        check({"t0": account}, live=0)
    with pytest.raises(LedgerError, match="3 requests never ended"):
        check({}, live=3)


def test_a_job_has_every_field_of_a_request() -> None:
    _, (job,) = play([(0.0, 100, 10, 1.0)])
    missing = [name for name in Request.__slots__ if not hasattr(job, name)]
    assert missing == ["flow"]  # where it stands, which a scheduler writes when it lets it in


def test_only_what_arrives_in_the_counting_window_counts() -> None:
    world = scenario({"arrivals": {"kind": "poisson", "rate_per_s": 50}}, warm_up_s=2, cool_down_s=3)
    report = unmeasured(world)
    assert report.window_s == 5
    assert report.ledger.distinct == sum(report.series.offered[2:7])
    assert report.simulated_requests == sum(report.series.offered)
