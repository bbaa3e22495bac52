"""What is told of a Weir: true, bounded, ready for JSON, and without any effect on what it watches."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.core.account import ClassSpec, QueueBounds, TenantSpec
from services.core.admissioncheck import Admitted
from services.core.snapshot import busiest, take
from services.router.operating.state import Json
from tests.core.house import PREFILL_S, ROOMY, SERVICE_S, TOKEN_S, House
from tests.core.house import settings as chosen
from tests.core.looks import state


def busy_house(seed: int = 0, tenants: int = 5, until_s: float = 6.0, *, watch_every_s: float | None = None) -> House:
    """Two classes, three times what it can serve, some whose retrieval runs first."""
    house = House(slots=4, chosen=chosen(classes=(ClassSpec("default"), ClassSpec("gold", 3.0))))
    house.random.seed(seed)
    house.scheduler.configure(TenantSpec("tenant-0", QueueBounds(8, 1e6), class_name="gold"))

    def come() -> None:
        house.estimator.learn_prefill(50 * PREFILL_S * house.random.lognormvariate(0, 1), 50)  # or all would be equal
        house.estimator.learn_pace(TOKEN_S * house.random.lognormvariate(0, 1), 1)
        name = f"tenant-{house.random.randrange(tenants)}"
        fields = {"max_level": house.random.choice([0, 4]), "may_clamp": house.random.random() < 0.5}
        request = house.request(name, slack_s=2.0, ready=house.random.random() < 0.7, **fields)
        if isinstance(house.put(request), Admitted) and not request.ready:
            house.at(house.now + 0.05, lambda: (house.scheduler.ready(house.now, request), house.start()))

    house.every(SERVICE_S / 12, until_s, come)
    if watch_every_s is not None:
        house.every(watch_every_s, until_s, lambda: state(house.scheduler, house.now), jitter=False)
    house.run(until_s)
    return house


@given(st.integers(0, 2**32), st.sampled_from([0.05, 0.3]))
@settings(max_examples=15)
def test_a_house_that_is_watched_decides_as_one_that_is_not(seed: int, watch_every_s: float) -> None:
    watched, unwatched = busy_house(seed, until_s=4.0, watch_every_s=watch_every_s), busy_house(seed, until_s=4.0)
    for one, other in zip(watched.answers, unwatched.answers, strict=True):
        assert (one.tenant, one.stage, one.level, one.granted_tokens) == (
            other.tenant,
            other.stage,
            other.level,
            other.granted_tokens,
        )
        assert (one.started_at, one.expires_at, one.charge_tokens, one.predicted_wait_s) == (
            other.started_at,
            other.expires_at,
            other.charge_tokens,
            other.predicted_wait_s,
        )


def test_what_is_told_is_ready_for_json() -> None:
    for house in (House(slots=0, knows_itself=False), House(slots=1), busy_house()):
        told = state(house.scheduler, house.now)
        assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_those_with_most_in_line_are_told_and_the_others_are_summed() -> None:
    house = House(slots=1, chosen=chosen(standing_queue=False))
    for count, tenant in enumerate("abcdef"):
        for _ in range(count + 1):
            house.offer(tenant, slack_s=1000.0)
    told = state(house.scheduler, house.now, most=2)
    assert [tenant["id"] for tenant in told["tenants"]] == ["f", "e"]
    assert [tenant["waiting"]["requests"] for tenant in told["tenants"]] == [6, 5]
    assert (told["other_tenants"]["tenants"], told["other_tenants"]["running"]) == (4, 1)
    waiting = sum(tenant["waiting"]["requests"] for tenant in told["tenants"])
    assert waiting + told["other_tenants"]["waiting"]["requests"] == told["waiting"]["requests"] == 20
    assert told["pools"][0]["waiting"]["requests"] == 20
    everyone = state(house.scheduler, house.now)
    assert everyone["other_tenants"]["tenants"] == everyone["other_tenants"]["waiting"]["requests"] == 0


def test_what_is_told_does_not_grow_with_the_tenants() -> None:
    few, many = (busy_house(tenants=tenants) for tenants in (60, 600))
    lengths = [len(json.dumps(state(house.scheduler, house.now, most=10))) for house in (few, many)]
    assert len(many.scheduler.drr.tenants) > 2 * len(few.scheduler.drr.tenants)
    assert lengths[1] < 1.2 * lengths[0]


def lines(told: Json, tenant: str) -> list[Json]:
    (found,) = [each for each in told["tenants"] if each["id"] == tenant]
    return found["lines"]


def test_the_wait_that_is_told_is_what_a_newcomer_would_be_told() -> None:
    house = House(slots=1, chosen=chosen(standing_queue=False))
    house.warm("a")
    house.fill("b", waiting=4)
    house.offer("a", slack_s=1000.0)
    (line,) = lines(state(house.scheduler, house.now), "a")
    assert line["predicted_wait_s"] > 0
    assert house.offer("a", slack_s=1e6).predicted_wait_s == pytest.approx(line["predicted_wait_s"])
    assert line["share"] == 0.5
    assert line["answer_tokens"] == pytest.approx({"median": 20.0, "q90": 20.0, "samples": 25})
    assert line["service_s"] == pytest.approx(SERVICE_S)


def test_debt_and_position_are_told() -> None:
    house = House(slots=1, chosen=chosen(quantum_tokens=50.0, standing_queue=False))
    house.fill("b", prompt_tokens=80, answer=100)
    house.offer("a", slack_s=1000.0)
    house.offer("b", slack_s=1000.0)
    told = state(house.scheduler, house.now)
    (new,), (owing,) = lines(told, "a"), lines(told, "b")
    assert (new["position"], new["deficit_tokens"], new["debt_tokens"]) == ("new", 50.0, 0.0)
    assert owing["position"] in ("next", "later")
    assert owing["debt_tokens"] == owing["in_flight_tokens"] - 50.0 > 0


def test_levels_are_told_and_whether_an_operator_holds_them() -> None:
    house = busy_house()
    house.scheduler.hold_level("gold", 3)
    controller = house.scheduler.pools["default"].classes["default"].controller
    controller.level = 2
    (pool,) = state(house.scheduler, house.now)["pools"]
    default, gold = pool["classes"]
    assert (gold["name"], gold["level"], gold["held"]) == ("gold", 3, True)
    assert (default["level"], default["held"]) == (2, False)
    assert default["level_changes"] == controller.changes
    assert default["predictions"]["in_turn"]["waits"] > 20
    assert 0.5 < default["predictions"]["in_turn"]["q95"] <= 1
    assert (pool["slots"], pool["busy"]) == (4, 4)
    assert house.scheduler.settings.unconfigured.bounds == ROOMY


def test_a_tenant_that_asks_for_a_lower_class_has_a_line_in_each() -> None:
    house = House(slots=1, chosen=chosen(classes=(ClassSpec("default"), ClassSpec("batch", 0.5))))
    house.fill("b")
    for name in ("", "batch"):
        house.offer("a", slack_s=1000.0, class_name=name)
    assert [line["class"] for line in lines(state(house.scheduler, house.now), "a")] == ["default", "batch"]


def test_a_snapshot_stays_as_it_was_while_the_scheduler_goes_on() -> None:
    house = busy_house(until_s=2.0)
    seen = take(house.scheduler, house.now, busiest(house.scheduler, 10), heads=5, full=True)
    before = repr(seen)
    house.run(house.now + 5.0)
    assert repr(seen) == before
    later = take(house.scheduler, house.now, busiest(house.scheduler, 10), heads=5, full=True)
    assert later.tenants != seen.tenants


def test_without_full_nothing_is_forecast_and_no_sum_is_made_over_all_tenants() -> None:
    house = busy_house(until_s=2.0)
    seen = take(house.scheduler, house.now, busiest(house.scheduler, 10))
    assert seen.totals is None
    assert seen.tenants
    assert {flow.forecast for tenant in seen.tenants for flow in tenant.flows} == {None}
    assert {tenant.heads for tenant in seen.tenants} == {()}
