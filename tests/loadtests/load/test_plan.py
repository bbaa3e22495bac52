"""What a plan may say, and what is made of it."""

from __future__ import annotations

import itertools
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.load.arrivals import Ask, asks, moments, token_counts
from loadtests.load.plan import MAX_TOKENS, Plan, Step, Tenant
from loadtests.load.planfile import load, parse
from loadtests.scenarios.distributions import Distribution, Exponential, LogNormal, constant

PLANS = Path(__file__).parents[3] / "loadtests" / "load" / "plans"


def raw(**changes: Any) -> dict[str, Any]:
    return {"seconds": 10, "tenants": [{"name": "a", "per_s": 5}], **changes}


def tenant(**changes: Any) -> dict[str, Any]:
    return raw(tenants=[{"name": "a", "per_s": 5, **changes}])


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_committed_plan_can_be_loaded(path: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("t_s,client,input_tokens,output_tokens\n0,a,10,10\n1,b,20,20\n")
    assert load(path, trace if "trace = {" in path.read_text() else None).expected > 0


def test_a_plain_rate_is_one_step_from_the_start() -> None:
    assert parse(raw()).tenants[0].steps == (Step(0, 5),)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (raw(seconds=0), "seconds"),
        (raw(seconds=True), "seconds"),
        (raw(seconds=4, warmup_s=3, cooldown_s=3), "cooldown_s"),
        (raw(route="/v1/x"), "route"),
        (raw(tenants=[]), "number of tenants"),
        (raw(tenants=[{"name": "a", "per_s": 1}] * 2), "same name"),
        (raw(speed=1), "speed"),
        (raw(tenants=[{"name": "a", "steps": [{"from_s": 0, "per_s": 20_000}]}], seconds=1800), "number of requests"),
        (raw(route="generate", tenants=[{"name": "a", "per_s": 1, "stream": 0.5}]), "stream"),
        (tenant(name="a b"), "name"),
        (tenant(colour="red"), "colour"),
        (tenant(per_s=-1), "per_s"),
        (tenant(per_s=float("nan")), "per_s"),
        (tenant(arrivals="bursty"), "arrivals"),
        (tenant(arrivals="recorded"), "recorded"),
        (tenant(arrivals="gamma", cv=0), "cv"),
        (tenant(arrivals="gamma", cv=21), "cv"),
        (tenant(cv=2), "cv is for arrivals that are gamma or weibull"),
        (tenant(clients=0), "clients"),
        (tenant(clients=1001), "clients"),
        (tenant(clients=2.5), "clients"),
        (tenant(clients=2, skew=-1), "skew"),
        (tenant(recorded=[]), "recorded: unknown"),
        (tenant(answer_tokens={"kind": "pareto", "mean": 10}), "answer_tokens"),
        (tenant(answer_tokens={"kind": "exponential", "mean": 10, "p95": 1}), "p95"),
        (tenant(deadline_per_token_ms=-1), "deadline_per_token_ms"),
        (tenant(deadline_ms=0), "deadline_ms"),
        (tenant(stream=1.5), "stream"),
        (tenant(retries={"wait": "always"}), "wait"),
        (tenant(retries={"wait": "hint", "attempts": 11}), "attempts"),
        (tenant(answer_tokens=0), "answer_tokens"),
        (tenant(prompt_tokens=40_000), "prompt_tokens"),
        (tenant(answer_tokens={"kind": "log_normal", "p95": 1}), "median"),
        (tenant(key="two words"), "key"),
        (tenant(key="a\r\nb"), "key"),
        ({"tenants": [{"name": "a", "per_s": 1}]}, "seconds"),
        (raw(tenants=[{"name": "a"}]), "steps"),
    ],
)
def test_a_plan_that_cannot_be_used_says_what_is_wrong(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        parse(wrong)


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("seconds = = 3")
    with pytest.raises(ValueError, match=r"broken\.toml"):
        load(path)


def times(arrivals: str, *steps: tuple[float, float], seconds: float = 10, seed: int = 1) -> list[float]:
    made = Tenant("a", tuple(Step(*step) for step in steps), arrivals=arrivals, cv=3 if arrivals == "gamma" else 1)
    return list(moments(made, seconds, random.Random(seed)))


def test_paced_arrivals_keep_their_distance() -> None:
    gaps = {round(b - a, 9) for a, b in itertools.pairwise(times("paced", (0, 20)))}
    assert gaps == {0.05}


def test_a_step_changes_the_rate_at_its_moment() -> None:
    found = times("paced", (0, 10), (4, 0), (6, 100))
    counts = [sum(begin <= at < end for at in found) for begin, end in ((0, 4), (4, 6), (6, 10))]
    assert counts[1] == 0
    assert abs(counts[0] - 40) <= 1
    assert abs(counts[2] - 400) <= 1


@pytest.mark.parametrize("arrivals", ["poisson", "paced", "gamma"])
def test_a_step_that_changes_nothing_moves_no_arrival(arrivals: str) -> None:
    steps = [(second, 30.0) for second in range(10)]
    assert times(arrivals, *steps) == pytest.approx(times(arrivals, (0, 30.0)))


def test_poisson_arrivals_have_the_rate_and_the_spread_of_poisson() -> None:
    found = times("poisson", (0, 200), seconds=100)
    counts = [sum(second <= at < second + 1 for at in found) for second in range(100)]
    assert abs(len(found) - 20_000) < 4 * 20_000**0.5
    assert 0.7 < statistics.variance(counts) / statistics.fmean(counts) < 1.4


@given(
    rates=st.lists(st.tuples(st.floats(0, 9), st.floats(0, 200)), min_size=1, max_size=5),
    arrivals=st.sampled_from(["poisson", "paced"]),
    seed=st.integers(0, 99),
)
def test_arrivals_are_in_order_and_within_the_run(rates: list[tuple[float, float]], arrivals: str, seed: int) -> None:
    found = times(arrivals, *sorted(rates, key=lambda rate: rate[0]), seed=seed)
    assert found == sorted(found)
    assert all(min(rate[0] for rate in rates) <= at < 10 for at in found)


def test_one_more_tenant_changes_nobody_elses_arrivals() -> None:
    def of_a(plan: Plan) -> list[Ask]:
        return [ask for ask in asks(plan) if ask.tenant.name == "a"]

    alone = parse(raw())
    beside = parse(raw(tenants=[{"name": "b", "per_s": 50}, {"name": "a", "per_s": 5}]))
    assert of_a(alone) == of_a(beside) != []


def test_the_same_plan_gives_the_same_requests_and_another_seed_others() -> None:
    first = list(asks(parse(raw())))
    assert first == list(asks(parse(raw())))
    assert first != list(asks(parse(raw(seed=2))))


def test_the_share_of_impatient_clients_changes_no_arrival() -> None:
    sizes = {"per_s": 50, "answer_tokens": {"kind": "uniform", "low": 1, "high": 99}}
    usual = parse(tenant(**sizes, retries={"attempts": 1, "wait": "hint"}))
    found = list(asks(parse(tenant(**sizes, retries={"attempts": 1, "wait": "hint", "impatient": 0.4}))))
    assert [(ask.at_s, ask.answer_tokens) for ask in found] == [(ask.at_s, ask.answer_tokens) for ask in asks(usual)]
    assert sum(ask.impatient for ask in found) / len(found) == pytest.approx(0.4, abs=0.1)


def test_all_tenants_requests_come_merged_in_time() -> None:
    plan = parse(raw(tenants=[{"name": "a", "per_s": 30}, {"name": "b", "per_s": 30, "arrivals": "paced"}]))
    found = [ask.at_s for ask in asks(plan)]
    assert found == sorted(found)


def drawn(size: Distribution, count: int = 4000) -> list[int]:
    draw = token_counts(size, random.Random(7))
    return [draw() for _ in range(count)]


def test_a_fixed_size_is_exact_and_a_lognormal_one_has_its_median_and_its_bound() -> None:
    assert {*drawn(constant(40), 10)} == {40}
    found = drawn(LogNormal(kind="log_normal", median=100, p95=518, max=400))
    assert 90 < statistics.median(found) < 110
    assert max(found) == 400
    assert min(found) >= 1


def test_an_exponential_size_has_its_median_and_its_bound() -> None:
    size = Exponential(kind="exponential", mean=144, max=700)
    found = drawn(size)
    assert statistics.median(found) == pytest.approx(size.median, rel=0.05)
    assert 130 < statistics.fmean(found) < 158  # a little less for the bound
    assert 1 <= min(found) < 5
    assert max(found) == 700


def test_no_size_is_beyond_what_a_request_may_have() -> None:
    assert max(drawn(LogNormal(kind="log_normal", median=30_000, p95=90_000), 100)) == MAX_TOKENS


def test_a_longer_answer_may_have_a_later_deadline() -> None:
    (made,) = parse(tenant(deadline_ms=1000, deadline_per_token_ms=40)).tenants
    assert [Ask(0, made, 1, tokens, False).deadline_ms for tokens in (1, 100, 9999)] == [1040, 5000, 120_000]
    assert Ask(0, made, 1, 100, False).waits_s == 10
    (made,) = parse(tenant(deadline_ms=1000, deadline_per_token_ms=40, client_timeout_ms=300)).tenants
    assert Ask(0, made, 1, 100, False).waits_s == 0.3
