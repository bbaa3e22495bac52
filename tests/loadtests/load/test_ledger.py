"""The ledger's promise, the figures read off it, and who asks again."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.load.figures import figures, on_time_between, quantile, quantiles
from loadtests.load.ledger import ENDINGS, GAVE_UP, LATE, ON_TIME, Ledger, Row
from loadtests.load.plan import Plan, Step, Tenant
from loadtests.load.retry import OBEYED_UP_TO_S, pause_s
from loadtests.load.show import lines
from loadtests.scenarios.model import Retries

PLAN = Plan(seconds=10, tenants=(Tenant("a", (Step(0, 1),)), Tenant("b", (Step(0, 1),))), warmup_s=3, cooldown_s=3)


def enter(
    ledger: Ledger,
    at_s: float,
    ending: str,
    *,
    tenant: str = "a",
    took_s: float = 0.1,
    late_s: float = 0.0,
    tokens: int = 4,
    hint_ms: float | None = 50,
) -> Row:
    row = Row(len(ledger.rows), tenant, at_s, 1000)
    row.sent_s = row.last_sent_s = at_s + late_s
    row.end_s, row.attempts, row.asked_tokens, row.tokens = at_s + took_s, 1, 4, tokens
    row.code, row.should_retry, row.hint_ms = ending.partition(":")[2], ending.startswith("refused"), hint_ms
    ledger.enter(row)
    ledger.tried(row, ending)
    ledger.close(row, ending)
    return row


def test_a_request_ends_exactly_once() -> None:
    ledger = Ledger()
    row = enter(ledger, 1, ON_TIME)
    with pytest.raises(RuntimeError, match="second time"):
        ledger.close(row, LATE)
    assert ledger.open == 0


def test_an_ending_outside_the_closed_set_is_refused() -> None:
    ledger = Ledger()
    row = Row(0, "a", 0, 1000)
    ledger.enter(row)
    with pytest.raises(RuntimeError, match="not an ending"):
        ledger.close(row, "refused:mystery")
    assert ledger.open == 1


@given(st.lists(st.tuples(st.floats(0, 10), st.sampled_from(sorted(ENDINGS))), max_size=60))
def test_every_request_of_the_window_is_counted_once(made: list[tuple[float, str]]) -> None:
    ledger = Ledger()
    for at_s, ending in made:
        enter(ledger, at_s, ending)
    found = figures(PLAN, ledger)
    inside = [ending for at_s, ending in made if 3 <= at_s < 7]
    assert sum(found.all.endings.values()) == found.all.arrivals == len(inside)
    assert found.all.goodput_per_s == inside.count(ON_TIME) / 4
    assert sum(found.tries.values()) == found.requests == len(made)


def test_only_arrivals_of_the_window_count_however_late_their_answer() -> None:
    ledger = Ledger()
    enter(ledger, 2.9, ON_TIME, took_s=0.9)
    enter(ledger, 6.9, ON_TIME, took_s=0.9)
    enter(ledger, 7.0, ON_TIME)
    assert figures(PLAN, ledger).all.arrivals == 1


def test_tenants_are_told_apart() -> None:
    ledger = Ledger()
    enter(ledger, 4, ON_TIME)
    enter(ledger, 4, "refused:yield", tenant="b", took_s=0.002)
    found = figures(PLAN, ledger)
    assert (found.tenants["a"].on_time, found.tenants["b"].on_time, found.all.on_time) == (1, 0, 0.5)
    assert (found.tenants["a"].refusals_ms.count, found.tenants["b"].refusals_ms.count) == (0, 1)
    assert found.tenants["b"].refusals_ms.p50 == pytest.approx(2)


def test_an_answer_later_than_its_deadline_and_the_way_back_was_sent_late() -> None:
    ledger = Ledger()
    enter(ledger, 4, LATE, took_s=1.04)
    assert figures(PLAN, ledger).late_answers == 0
    enter(ledger, 4, LATE, took_s=1.06)
    assert figures(PLAN, ledger).late_answers == 1


def test_the_generators_own_lateness_is_not_held_against_the_server() -> None:
    ledger = Ledger()
    enter(ledger, 4, LATE, took_s=1.3, late_s=0.4)
    assert figures(PLAN, ledger).late_answers == 0


def test_an_answer_that_the_client_was_slow_to_notice_was_not_late() -> None:
    ledger = Ledger()
    row = enter(ledger, 4, LATE, took_s=1.3)
    row.lag_s = 0.2
    assert figures(PLAN, ledger).late_answers == 1
    row.lag_s = 0.3
    assert figures(PLAN, ledger).late_answers == 0


def test_a_generator_that_is_late_too_often_makes_the_run_invalid_and_says_so() -> None:
    ledger = Ledger()
    for number in range(100):
        enter(ledger, number / 10, ON_TIME, late_s=0.03 if number < 6 else 0.0)
    found = figures(PLAN, ledger)
    assert not found.valid
    assert found.generator_late == 0.06
    assert "6.0%" in found.notes[0]


def test_who_gave_up_before_a_byte_had_left_is_told_apart() -> None:
    ledger = Ledger()
    enter(ledger, 1, GAVE_UP)
    assert figures(PLAN, ledger).notes == []
    enter(ledger, 1, GAVE_UP).sent_s = None
    enter(ledger, 1, "failed:connect").sent_s = None
    found = figures(PLAN, ledger)
    assert (found.unsent, found.valid) == (1, True)
    assert "1 of the requests never left" in found.notes[0]


def test_an_invited_retry_without_a_hint_is_found() -> None:
    ledger = Ledger()
    enter(ledger, 1, "refused:yield", hint_ms=None)
    enter(ledger, 1, "refused:yield", hint_ms=50)
    assert figures(PLAN, ledger).hintless == 1


def test_a_shorter_answer_than_asked_counts_as_cut() -> None:
    ledger = Ledger()
    enter(ledger, 4, ON_TIME, tokens=4)
    enter(ledger, 4, ON_TIME, tokens=2)
    found = figures(PLAN, ledger)
    assert found.all.cut == 0.5
    assert found.all.goodput_tokens_per_s == 6 / 4


def test_quantiles_are_the_nearest_rank() -> None:
    ordered = [float(value) for value in range(1, 101)]
    assert [quantile(ordered, q) for q in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert quantile([7.0], 0.5) == 7
    assert quantiles([]).count == 0
    assert quantiles([0.001, None]).p99 == 1


def test_a_timeline_is_made_of_intervals() -> None:
    ledger = Ledger()
    enter(ledger, 1, ON_TIME)
    enter(ledger, 1.5, GAVE_UP)
    enter(ledger, 2, ON_TIME)
    assert (on_time_between(ledger, 1, 2), on_time_between(ledger, 2, 3), on_time_between(ledger, 5, 6)) == (0.5, 1, 0)


@pytest.mark.parametrize(
    ("mode", "tried", "refused", "should_retry", "hint_ms", "pause"),
    [
        ("never", 1, True, True, 50.0, None),
        ("immediate", 1, True, False, None, 0.0),
        ("immediate", 3, False, False, None, 0.0),
        ("immediate", 4, True, True, 50.0, None),
        ("hint", 1, True, True, 50.0, 0.05),
        ("hint", 1, True, False, 50.0, None),
        ("hint", 1, True, True, None, None),
        ("hint", 1, False, True, 50.0, None),
        ("hint", 4, True, True, 50.0, None),
        ("hint", 1, True, True, OBEYED_UP_TO_S * 1000 + 1, None),
    ],
)
def test_who_asks_again_and_when(
    mode: Any, tried: int, refused: bool, should_retry: bool, hint_ms: float | None, pause: float | None
) -> None:
    retries = Retries(attempts=3, wait=mode)
    said = {"refused": refused, "should_retry": should_retry, "hint_ms": hint_ms}
    assert pause_s(retries, tried, **said, chance=Random(1)) == pause


def test_a_backoff_doubles_up_to_its_bound_and_looks_at_no_hint() -> None:
    retries = Retries(attempts=9, wait="backoff", base_s=1.0, at_most_s=4.0)

    def most(tried: int) -> float:
        waits = (
            pause_s(retries, tried, refused=False, should_retry=False, hint_ms=9.0, chance=Random(seed))
            for seed in range(200)
        )
        return max(wait or 0.0 for wait in waits)

    assert [most(tried) for tried in (1, 2, 9)] == pytest.approx([1.0, 2.0, 4.0], rel=0.1)
    assert pause_s(retries, 10, refused=True, should_retry=True, hint_ms=9.0, chance=Random(1)) is None


def test_of_many_tenants_the_busiest_are_shown() -> None:
    ledger = Ledger()
    plan = Plan(seconds=10, tenants=tuple(Tenant(f"t{n}", (Step(0, 1),)) for n in range(12)))
    for tenant in ("t7", "t7", "t11"):
        enter(ledger, 4, ON_TIME, tenant=tenant)
    said = list(lines(figures(plan, ledger)))
    named = [line.partition(":")[0] for line in said if "offered" in line]
    assert named[:3] == ["all", "t7", "t11"]
    assert "and 2 tenants more" in said
    alone = list(lines(figures(Plan(seconds=10, tenants=plan.tenants[:1]), ledger)))
    assert sum("offered" in line for line in alone) == 1
