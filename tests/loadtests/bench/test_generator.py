"""The bench of the open-loop generator: its plans, its arithmetic. What it measures is not tested: machines differ."""

from __future__ import annotations

import tomllib

import pytest

from loadtests.bench.generator import ALIKE, DRAWN, PER_S, PLAN, sent
from loadtests.load.figures import figures
from loadtests.load.ledger import Ledger, Row
from loadtests.load.plan import Plan, Step, Tenant
from loadtests.load.planfile import parse


@pytest.mark.parametrize(("tenant", "tenants"), [(ALIKE, 1), (DRAWN, 100)])
def test_its_plans_ask_for_the_rate_that_is_measured(tenant: str, tenants: int) -> None:
    plan = parse(tomllib.loads(PLAN.format(seconds=3, warm_s=1, tenant=tenant)))
    assert len(plan.tenants) == tenants
    assert plan.expected == pytest.approx(3 * PER_S)


def test_a_core_is_charged_for_what_it_sent_and_what_left_late_is_told_as_a_share() -> None:
    ledger = Ledger()
    for number in range(100):
        row = Row(number, "a", number / 50, 1000.0)
        row.sent_s = row.intended_s + (0.05 if number < 6 else 0.0)
        ledger.enter(row)
        ending = "served_on_time" if number < 90 else "failed:connect"
        ledger.tried(row, ending)
        ledger.close(row, ending)
    plan = Plan(3.0, (Tenant("a", (Step(0, 50),)),), warmup_s=0, cooldown_s=0)
    of_core, later = sent("a", figures(plan, ledger), plan.seconds, 0.025)
    assert (of_core.value, of_core.held) == (4000, True)
    assert "10 not served" in of_core.note
    assert (later.shown, later.held) == ("6.00 %", False)
