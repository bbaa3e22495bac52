"""What a plan would send."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.load.describe import describe, gap_cv, lines
from loadtests.load.plan import Plan, Step, Tenant
from loadtests.load.planfile import parse


def test_a_recording_is_described_as_it_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = [(0, "a", 10, 1), (0.1, "a", 20, 2), (0.2, "b", 30, 3), (7.5, "a", 40, 400)]
    path.write_text("t_s,client,input_tokens,output_tokens\n" + "".join(f"{a},{b},{c},{d}\n" for a, b, c, d in rows))
    tenant = {"name": "t", "deadline_ms": 100, "deadline_per_token_ms": 1, "trace": {"path": path, "by_client": True}}
    found = describe(parse({"seconds": 10, "tenants": [tenant]}))
    assert (found.requests, found.per_s, found.busiest_second, found.empty_seconds) == (4, 0.4, 3, 0.8)
    assert found.busiest_over_mean == pytest.approx(7.5)
    assert (found.prompt_tokens.p50, found.prompt_tokens.max, found.answer_tokens.total) == (20, 40, 406)
    assert found.deadline_ms == (101, 500)
    assert found.tenants == {"t-a": 3, "t-b": 1}
    said = "\n".join(lines(found))
    assert "4 requests, 0.40/s" in said
    assert "80% of the seconds are empty" in said


def test_the_variation_of_gaps_is_that_of_the_gaps() -> None:
    assert gap_cv([0, 1, 2, 3]) == 0
    assert gap_cv([0, 0, 2]) == 1
    assert gap_cv([]) == gap_cv([1]) == gap_cv([1, 1]) == 0


def test_many_tenants_are_shown_in_part() -> None:
    raw = {"name": "a", "per_s": 100, "clients": 30}
    said = list(lines(describe(parse({"seconds": 10, "tenants": [raw]}))))
    assert said[-1] == "  and 20 more"


def test_a_plan_that_sends_nothing_is_a_fault() -> None:
    with pytest.raises(ValueError, match="sends nothing"):
        describe(Plan(seconds=10, tenants=(Tenant("a", (Step(0, 0),)),)))
