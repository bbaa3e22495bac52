"""Shares in calm: what is fair, how far a tenant is from it, and a light tenant's deadlines."""

from __future__ import annotations

import pytest

from loadtests.judging.answers import Verdict
from loadtests.judging.rules import Logged
from loadtests.runs.integrity.logs import RouterLog
from loadtests.runs.many.record import Job, Observed
from loadtests.runs.many.shares import figures, late_of, max_min, shares_in, shares_of_waiting
from loadtests.runs.many.sizes import DEADLINE_S
from tests.loadtests.runs.many.made_up import CALM, ROUTER, WORKER, entry, observed

WEIGHTS = {"gold": 4.0, "tin": 1.0, "light": 1.0}


def calm(gold: int, tin: int, light: int = 10) -> Observed:
    """A stretch in which these requests started. Each tenant but the light one asked for 400, and waited throughout."""
    asked = {"gold": 400, "tin": 400, "light": 10}
    at_s = CALM.from_s + 1
    ends_s = {"gold": CALM.to_s, "tin": CALM.to_s, "light": at_s + 1}
    entries = [
        entry(id=f"{name}-{number}", tenant=name, sent_s=CALM.from_s, ended_s=ends_s[name])
        for name, count in asked.items()
        for number in range(count)
    ]
    got = {"gold": gold, "tin": tin, "light": light}
    jobs = [Job(WORKER, name, at_s, at_s, at_s + 1) for name, count in got.items() for _ in range(count)]
    return observed(*entries, jobs=jobs)


def missed(run: Observed) -> list[str]:
    return [figure.name for figure in figures(run, WEIGHTS, judged=True) if figure.held is False]


def test_who_asks_for_less_than_its_part_gets_that_and_the_others_divide_the_rest_by_weight() -> None:
    assert max_min(100, {"a": 1000, "b": 1000}, {"a": 4, "b": 1}) == {"a": 80, "b": 20}
    assert max_min(100, {"a": 1000, "b": 1000, "c": 10}, {"a": 4, "b": 1, "c": 1}) == {"a": 72, "b": 18, "c": 10}
    assert max_min(100, {"a": 20, "b": 15, "c": 500}, {"a": 1, "b": 1, "c": 1}) == {"a": 20, "b": 15, "c": 65}
    assert max_min(100, {"a": 1, "b": 2}, {"a": 1, "b": 1}) == {"a": 1, "b": 2}
    assert max_min(0, {}, {"a": 1}) == {"a": 0}


def test_a_share_within_five_percent_is_held_and_one_beyond_is_not() -> None:
    names = [
        "error of a share in a calm stretch, the largest",
        "error of a share among tenants that waited all the time, the largest",
    ]
    assert missed(calm(gold=320, tin=80)) == []
    assert missed(calm(gold=317, tin=83)) == []  # 3.75 % of 80
    assert missed(calm(gold=315, tin=85)) == names


def test_only_starts_inside_the_stretch_count_and_a_light_tenant_has_no_share_to_miss() -> None:
    run = calm(gold=320, tin=80)
    before = [Job(WORKER, "tin", 1.0, CALM.from_s - 0.001, CALM.from_s + 1)] * 50
    never = [Job(WORKER, "tin", CALM.from_s + 1)] * 50
    run.workers[0].jobs += before + never
    gold, tin, light = shares_in(CALM, run, WEIGHTS)
    assert (gold.got, tin.got, light.got) == (320, 80, 10)
    assert [share.is_above for share in (gold, tin, light)] == [True, True, False]


def test_nothing_served_in_calm_is_no_fair_share() -> None:
    assert "error of a share in a calm stretch, the largest" in missed(calm(gold=0, tin=0, light=0))


@pytest.mark.parametrize("bad", [{"verdict": Verdict.REFUSED}, {"ended_s": CALM.from_s + 1 + DEADLINE_S + 0.1}])
def test_a_light_tenant_is_on_time_in_ninety_nine_of_a_hundred(bad: dict[str, object]) -> None:
    run = calm(gold=320, tin=80)
    usual = {"tenant": "light", "sent_s": CALM.from_s + 1, "ended_s": CALM.from_s + 2}
    light, late = entry(**usual), entry(**{**usual, **bad})
    rest = [one for one in run.entries if one.tenant != "light"]
    run.entries = [*rest, *[light] * 99, late]
    assert "light tenant on time in calm" not in missed(run)
    run.entries = [*rest, *[light] * 98, late, late]
    assert "light tenant on time in calm" in missed(run)


def test_in_a_short_run_shares_are_for_the_record() -> None:
    short = list(figures(calm(gold=100, tin=300), WEIGHTS, judged=False))
    assert all(figure.held is None for figure in short)


def crowded(**more: object) -> Observed:
    """Gold and tin have a request waiting all the time, light has not; 60 starts are gold's, and 20 are tin's."""
    begin, end = CALM.from_s - 1, CALM.to_s + 1
    entries = [entry(id=name, tenant=name, sent_s=begin, ended_s=end) for name in ("gold", "tin")]
    jobs = [
        Job(WORKER, name, CALM.from_s + 1, CALM.from_s + 1, CALM.from_s + 1)
        for name, count in {"gold": 60, "tin": 20, "light": 30}.items()
        for _ in range(count)
    ]
    return observed(*entries, jobs=jobs, **more)


def test_tenants_that_wait_all_the_time_are_compared_with_one_another_alone() -> None:
    gold, tin = shares_of_waiting(CALM, crowded(), WEIGHTS)
    assert (gold.tenant, gold.got, gold.fair) == ("gold", 60, 64.0)
    assert (tin.tenant, tin.got, tin.fair) == ("tin", 20, 16.0)
    name = "error of a share among tenants that waited all the time, the largest"
    (figure,) = [each for each in figures(crowded(), WEIGHTS, judged=True) if each.name == name]
    assert (figure.value, figure.note) == (pytest.approx(0.25), "tin in calm 1: 20 of 16.0")


def test_a_tenant_that_had_nothing_waiting_for_a_second_is_not_compared() -> None:
    run = crowded()
    first, second = CALM.from_s + 9, CALM.from_s + 10
    gold, _ = run.entries
    run.entries = [
        gold,
        entry(id="b", tenant="tin", sent_s=CALM.from_s - 1, ended_s=first),
        entry(id="c", tenant="tin", sent_s=second, ended_s=CALM.to_s + 1),
    ]
    assert [(share.tenant, share.error) for share in shares_of_waiting(CALM, run, WEIGHTS)] == [("gold", 0.0)]


def test_a_request_that_a_worker_has_does_not_wait() -> None:
    run = crowded()
    run.workers[0].jobs.append(Job(WORKER, "tin", CALM.from_s - 1, CALM.from_s - 1, CALM.to_s + 1))
    assert [share.tenant for share in shares_of_waiting(CALM, run, WEIGHTS)] == ["gold"]


def test_each_request_of_the_light_tenant_that_was_not_on_time_is_listed_with_its_router_and_its_end() -> None:
    run = calm(gold=320, tin=80)
    sent = CALM.from_s + 2
    late = entry(Verdict.REFUSED, tenant="light", sent_s=sent, ended_s=sent + 0.5, id="a", code="deadline_infeasible")
    run.entries = [*run.entries, late]
    run.routers = {ROUTER: RouterLog({"a": [Logged(1, 429, "deadline_infeasible", "", 0.5)]})}
    assert list(late_of(run)) == [
        f"a at {ROUTER}, 2.0 s after the start of calm 1: {Verdict.REFUSED}, status 429 deadline_infeasible, "
        "after 0.50 s; logged: deadline_infeasible after 0.50 s"
    ]
