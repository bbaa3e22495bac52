"""What the fire makes of what it measured: metrics, recoveries, figures, pages; and what its cases ask for."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from loadtests.cluster import books
from loadtests.cluster.cpu import Cpu
from loadtests.cluster.meters import Meter, parse
from loadtests.cluster.readings import Used
from loadtests.cluster.stand import Shape, Stand, tenants_yaml
from loadtests.load.arrivals import asks
from loadtests.load.capacity import Capacity
from loadtests.load.figures import Quantiles, figures
from loadtests.load.ledger import LATE, ON_TIME, Ledger, Row
from loadtests.load.plan import Plan, Tenant
from loadtests.report.figure import Figure, at_least, at_most, told
from loadtests.runs.drill import MOST_SECONDS, Drill, Run
from loadtests.runs.fire import report
from loadtests.runs.fire.cases import CASES, Case, honesty
from loadtests.runs.fire.report import Result
from loadtests.runs.fire.storms import back_after

METRICS = """\
# HELP weir_worker_step_seconds Time of one engine step
weir_worker_step_seconds_bucket{le="0.1"} 100.0
weir_worker_step_seconds_count 100.0
weir_worker_step_seconds_sum 2.0
weir_worker_batch_size_count 100.0
weir_worker_batch_size_sum 400.0
weir_worker_requests_total{outcome="served"} 90.0
weir_worker_requests_total{outcome="client_gone"} 10.0
weir_worker_requests_created{outcome="served"} 1.7e+09
weir_wasted_seconds_total{reason="client_gone"} 0.3
weir_wasted_seconds_total{reason="deadline_exceeded"} 0.1
"""


def test_a_workers_waste_is_a_share_of_its_slot_time() -> None:
    meter = parse(METRICS)
    assert (meter.slot_s, meter.wasted_s, meter.requests) == (8.0, 0.4, 100)
    assert meter.wasted == pytest.approx(0.05)


def test_meters_add_up_over_workers_and_are_told_apart_by_time() -> None:
    meter = parse(METRICS)
    assert (meter + meter).requests == 200
    assert (meter + meter - meter) == meter
    assert parse("").wasted == 0


ROUTER = """\
weir_requests_total{outcome="served",tenant="a"} 5.0
weir_requests_total{outcome="served",tenant="b"} 2.0
weir_requests_total{outcome="yield",tenant="a"} 40.0
weir_requests_created{outcome="yield",tenant="a"} 1.7e+09
weir_request_seconds_count{outcome="yield",tenant="a"} 40.0
"""


def test_router_and_client_agree_on_every_outcome_or_the_difference_is_told() -> None:
    router = books.of_router(ROUTER)
    client = books.of_client({ON_TIME: 6, LATE: 1, "refused:yield": 40})
    assert books.differences(Counter(), router, client) == {}
    assert books.differences(router, router, Counter()) == {}
    assert books.differences(Counter(), router, client + Counter({"draining": 2})) == {"draining": -2}
    assert books.differences(Counter(), router, client - Counter({"served": 1})) == {"served": 1}


def test_a_client_that_left_is_gone_at_the_router() -> None:
    assert books.of_client({"client_gave_up": 3, "failed:cut": 1}) == {"client_gone": 3, "failed:cut": 1}


def ledger_of(on_time: dict[float, bool]) -> Ledger:
    ledger = Ledger()
    for at_s, good in on_time.items():
        row = Row(len(ledger.rows), "a", at_s, 1000)
        row.sent_s = row.last_sent_s = at_s
        row.end_s, row.attempts = at_s + (0.1 if good else 1.01), 1
        ledger.enter(row)
        ending = ON_TIME if good else LATE
        ledger.tried(row, ending)
        ledger.close(row, ending)
    return ledger


def seconds(until: float, good: Any) -> dict[float, bool]:
    """One arrival every hundredth of a second."""
    return {index / 100: good(index / 100) for index in range(int(until * 100))}


def test_who_never_suffered_is_back_at_once() -> None:
    assert back_after(ledger_of(seconds(20, lambda at: True)), 12, 19, 0.9) == 0


def test_a_recovery_is_timed_to_the_last_bad_moment() -> None:
    found = back_after(ledger_of(seconds(20, lambda at: at < 12 or at > 13)), 12, 19, 0.9)
    assert 0.8 <= found <= 1.1
    relapse = back_after(ledger_of(seconds(20, lambda at: at < 12 or (at > 13 and not 15 < at < 15.5))), 12, 19, 0.9)
    assert 3.3 <= relapse <= 3.6


def test_who_never_comes_back_counts_to_the_end() -> None:
    assert back_after(ledger_of(seconds(20, lambda at: at < 12)), 12, 19, 0.9) == 7


@pytest.mark.parametrize(
    ("figure", "held"),
    [
        (at_least("a", 0.97, 0.97), True),
        (at_least("a", 0.969, 0.97), False),
        (at_most("a", 5, 5), True),
        (at_most("a", 5.01, 5), False),
        (at_most("a", math.nan, 5), False),
        (Figure("a", 1), None),
    ],
)
def test_a_figure_holds_its_target_or_does_not(figure: Figure, held: bool | None) -> None:
    assert figure.held is held


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.9931, "%", "99.31 %"),
        (1234.4, "ms", "1,234 ms"),
        (3.456, "ms", "3.46 ms"),
        (0.0, "", "0"),
        (0.974, "", "0.97"),
    ],
)
def test_values_are_told_as_people_write_them(value: float, unit: str, text: str) -> None:
    assert told(value, unit) == text


def test_a_tenants_file_has_no_key_in_it() -> None:
    text = tenants_yaml(["light", "heavy"])
    assert "fire-light" not in text
    assert text.count("sha256:") == 2


@dataclass
class Dry(Drill):
    """A drill whose loads are answered by nobody and on time."""

    plans: list[Plan] | None = None

    async def run(self, name: str, *tenants: Tenant, seconds: float, **more: Any) -> Run:
        assert seconds <= MOST_SECONDS
        plan = Plan(seconds=seconds, tenants=tenants, cooldown_s=more.get("cooldown_s", 3.0))
        ledger = Ledger()
        for number, ask in enumerate(asks(plan)):
            row = Row(number, ask.tenant.name, ask.at_s, ask.tenant.deadline_ms)
            row.sent_s = row.last_sent_s = ask.at_s
            row.end_s, row.attempts, row.tokens = ask.at_s + 0.08, 1, ask.answer_tokens
            ledger.enter(row)
            ledger.tried(row, ON_TIME)
            ledger.close(row, ON_TIME)
        requests = len(ledger.rows)
        meter = Meter(wasted_s=0.0, slot_s=10.0, requests=requests)
        used = Used(meter, Cpu(wall_s=seconds, router_s=1.0), {})
        run = Run(name, plan, ledger, figures(plan, ledger), used)
        self.runs.append(run)
        return run


SLOWER = 10  # as many rows prove as much


def dry(case: Case, tmp_path: Any) -> Dry:
    rate = case.shape.all_slots / case.shape.service_s / SLOWER
    service = Quantiles(1, case.shape.service_s * 1000)
    capacity = Capacity(rate, rate * case.shape.answer_tokens, service)
    return Dry(Stand(case.shape, tmp_path), capacity, lambda text: None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_is_bounded_and_asks_only_with_tenants_it_has_made(case: Case, tmp_path: Any) -> None:
    made = dry(case, tmp_path)
    found = asyncio.run(case.play(made))
    assert any(figure.target is not None for figure in found)
    for run in made.runs:
        assert {tenant.name for tenant in run.plan.tenants} <= set(case.tenants)
        assert all(tenant.key for tenant in run.plan.tenants)
        assert run.plan.expected * SLOWER < 60_000


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_server_that_answers_everything_at_once_holds_every_target(case: Case, tmp_path: Any) -> None:
    made = dry(case, tmp_path)
    found = [*asyncio.run(case.play(made)), *honesty(case, made.runs)]
    assert [figure.name for figure in found if figure.held is False] == []


def test_loads_are_multiples_of_the_capacity_in_tokens_whatever_the_size(tmp_path: Any) -> None:
    made = dry(CASES[0], tmp_path)
    usual, big = made.tenant("a", 2), made.tenant("b", 2, size=10)
    assert usual.steps[0].per_s == pytest.approx(2 * made.capacity.per_s)
    assert big.steps[0].per_s * big.answer_tokens.median == usual.steps[0].per_s * usual.answer_tokens.median


def test_dishonesty_is_found(tmp_path: Any) -> None:
    made = dry(CASES[0], tmp_path)
    plan = Plan(seconds=7, tenants=(made.tenant("a", 0.1),))
    ledger = Ledger()
    for number, (took_s, late_s, ending) in enumerate(
        [(2.0, 0.0, LATE), (0.1, 0.0, "refused:yield"), (0.1, 0.0, "failed:cut"), (0.1, 0.5, ON_TIME)]
    ):
        row = Row(number, "a", 4.0, 1000)
        row.sent_s = row.last_sent_s = 4.0 + late_s
        row.end_s, row.attempts = 4.0 + took_s, 1
        row.code, row.should_retry = "yield", ending.startswith("refused")
        ledger.enter(row)
        ledger.tried(row, ending)
        ledger.close(row, ending)
    run = Run("x", plan, ledger, figures(plan, ledger), Used(Meter(0.2, 10.0, 4), Cpu(1.0), {"yield": 1}))
    missed = [figure.name for figure in honesty(CASES[0], [run]) if figure.held is False]
    assert missed == [
        "answers sent after their deadline",
        "invited retries without a hint",
        "wasted worker time",
        "tries that failed",
        "tries that router and client count differently",
        "requests that the client itself sent late",
    ]


def test_the_page_tells_targets_values_and_what_could_not_be_played() -> None:
    good = Result(
        CASES[0], Capacity(200, 1600, Quantiles()), [at_least("goodput", 0.99, 0.97), at_most("p95", 500, 400)], []
    )
    bad = Result(CASES[1], None, [], [], "StandError: the router has ended")
    page = report.page([good, bad], command="make fire", machine="a machine", cores=2)
    assert "1 of 2 targets held. A figure without a target is for the record. 1 cases could not be played." in page
    assert "| goodput | 0.99 | ≥ 0.97 | held |" in page
    assert "| p95 | 500 | ≤ 400 | **missed** |" in page
    assert "Could not be played: StandError: the router has ended" in page


def test_a_shape_says_what_it_is() -> None:
    assert str(Shape()) == "2 workers x 8 slots x 80 ms"
    assert Shape(workers=1, slots=4, answer_tokens=10).service_s == pytest.approx(0.1)


def test_all_that_was_measured_can_be_written_as_json(tmp_path: Any) -> None:
    made = dry(CASES[0], tmp_path)
    found = asyncio.run(CASES[0].play(made))
    result = Result(CASES[0], made.capacity, found, made.runs)
    read = json.loads(json.dumps(result.as_dict()))
    assert [run["name"] for run in read["runs"]] == [run.name for run in made.runs]
    assert read["figures"][0]["name"] == found[0].name
