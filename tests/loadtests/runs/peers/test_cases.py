"""The loads: what is asked is what the gateways are set up for, and what is read off them is what it is called."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadtests.cluster.meters import Meter
from loadtests.load.figures import Quantiles
from loadtests.load.ledger import GAVE_UP, LATE, ON_TIME, Ledger, Refusal, Row
from loadtests.runs.drill import Run
from loadtests.runs.peers.cases import CASES, OVER_PER_S, UNDER_PER_S, Case, gave_up, hinted, own_hints, p95, unheard
from tests.loadtests.runs.peers.made import Stopped, a_drill


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_deadlines_that_gateways_are_set_up_for_are_those_of_the_load(case: Case, tmp_path: Path) -> None:
    drill = a_drill(tmp_path)
    with pytest.raises(Stopped):
        asyncio.run(case.play(drill))
    asked = [tenant.deadline_ms for tenant in drill.asked]
    assert min(asked) == case.deadlines.shortest_ms
    assert max(asked) <= case.deadlines.longest_ms
    assert {tenant.name for tenant in drill.asked} == set(case.tenants)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_clients_hang_up_at_their_deadline(case: Case, tmp_path: Path) -> None:
    drill = a_drill(tmp_path)
    with pytest.raises(Stopped):
        asyncio.run(case.play(drill))
    assert all(tenant.waits_s * 1000 == tenant.deadline_ms for tenant in drill.asked)


@pytest.mark.parametrize(("name", "per_s"), [("under", UNDER_PER_S), ("over", OVER_PER_S)])
def test_two_loads_are_so_many_requests_a_second_whatever_the_capacity(name: str, per_s: int, tmp_path: Path) -> None:
    drill = a_drill(tmp_path)
    with pytest.raises(Stopped):
        asyncio.run(next(case for case in CASES if case.name == name).play(drill))
    assert [step.per_s for tenant in drill.asked for step in tenant.steps] == [per_s]


def a_run(ledger: Ledger, **more: Any) -> Run:
    return SimpleNamespace(ledger=ledger, **more)  # type: ignore[return-value]


def refused(ledger: Ledger, code: str, hint_ms: float | None, should_retry: bool = True) -> None:
    ledger.refusals.append(Refusal("a", 4.0, 0.001, code, should_retry, hint_ms))


def test_hints_are_expected_where_coming_back_could_help() -> None:
    ledger = Ledger()
    refused(ledger, "deadline_expired", None, should_retry=False)
    refused(ledger, "yield", 50.0)
    assert hinted(a_run(ledger)) == 1
    refused(ledger, "bare_503", None, should_retry=False)
    assert hinted(a_run(ledger)) == 0.5


def test_one_time_to_come_back_for_everybody_is_nobodys_own() -> None:
    ledger = Ledger()
    for hint_ms in (1000.0, 1000.0, 1000.0):
        refused(ledger, "bare_429", hint_ms)
    assert own_hints(a_run(ledger)) == 0
    refused(ledger, "bare_429", 130.0)
    assert own_hints(a_run(ledger)) == 0.25
    assert own_hints(a_run(Ledger())) == 0


def test_who_left_or_lost_the_connection_was_left_without_an_answer() -> None:
    endings = {ON_TIME: 5, GAVE_UP: 3, "failed:cut": 1, "refused:yield": 1}
    figures = SimpleNamespace(all=SimpleNamespace(endings=endings, arrivals=10))
    assert gave_up(a_run(Ledger(), figures=figures)) == 0.4


def test_work_that_nobody_got_is_what_was_written_less_what_was_received() -> None:
    ledger = Ledger()
    for ending in (ON_TIME, LATE, GAVE_UP):
        row = Row(1, "a", 0.0, 1000.0)
        row.tokens, row.ending = 8, ending
        ledger.rows.append(row)
    written = SimpleNamespace(meter=Meter(tokens=32.0))
    assert unheard(a_run(ledger, used=written)) == 0.5


def test_the_time_of_answers_that_never_came_is_no_number() -> None:
    assert math.isnan(p95(Quantiles()))
    assert p95(Quantiles(1, 2.0, 3.0, 4.0, 5.0)) == 3.0
