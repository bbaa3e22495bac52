"""The bench of the open-loop generator: its plans, its arithmetic. What it measures is not tested: machines differ."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from loadtests.bench.generator import ALIKE, DRAWN, PER_S, PLAN, _figures
from loadtests.load.planfile import parse


@pytest.mark.parametrize(("tenant", "tenants"), [(ALIKE, 1), (DRAWN, 100)])
def test_its_plans_ask_for_the_rate_that_is_measured(tenant: str, tenants: int) -> None:
    plan = parse(tomllib.loads(PLAN.format(seconds=3, warm_s=1, tenant=tenant)))
    assert len(plan.tenants) == tenants
    assert plan.expected == pytest.approx(3 * PER_S)


def test_a_core_is_charged_for_what_it_sent_and_lateness_is_in_percent() -> None:
    late = {"p50": 0.1, "p99": 3.0, "most": 40.0}
    figures = {"tries": {"served_on_time": 9000, "failed:connect": 1000}, "generator_ms": late, "generator_late": 0.06}
    told: dict[str, Any] = {"seconds": 3, "generator_cpu_s": 2.5, "figures": figures}
    sent, later = _figures("a", told)
    assert (sent.value, sent.held) == (4000, True)
    assert "1000 not served" in sent.note
    assert (later.value, later.held) == (6, False)
