"""What is kept of a load: every request in one place of the table, and no figure that flatters."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.load.ledger import ENDINGS, GAVE_UP, LATE, ON_TIME
from loadtests.runs.matrix import reading
from loadtests.runs.matrix.cell import Second
from tests.loadtests.runs.matrix.made import asked, load, setup


@pytest.mark.parametrize("ending", sorted(ENDINGS))
def test_every_ending_is_on_time_or_refused_or_failed_and_only_one_of_them(ending: str) -> None:
    assert [ending == ON_TIME, reading.refused(ending), reading.failed(ending)].count(True) == 1


def test_the_shares_of_a_row_add_up(tmp_path: Path) -> None:
    endings = [ON_TIME, "refused:yield", "refused:deadline_expired", "refused:deadline_exceeded", "failed:cut", GAVE_UP]
    row = reading.row("x", setup(tmp_path), load(*(asked(n, each) for n, each in enumerate(endings))), 2.0)
    assert row.on_time + row.refused + row.failed == pytest.approx(1)
    assert row.refused == pytest.approx(2 / 6)
    assert row.dropped == row.exceeded == pytest.approx(1 / 6)
    assert row.failed == pytest.approx(3 / 6)


def test_who_was_let_in_and_not_answered_is_in_the_percentiles(tmp_path: Path) -> None:
    rows = [asked(n, ON_TIME, took_s=0.1) for n in range(90)]
    rows += [asked(100 + n, "refused:deadline_expired", took_s=1.0) for n in range(10)]
    rows += [asked(200 + n, "refused:yield", took_s=0.001) for n in range(900)]
    row = reading.row("x", setup(tmp_path), load(*rows), 2.0)
    assert row.p50_ms == pytest.approx(100)
    assert row.p95_ms == pytest.approx(1000)


def test_tokens_of_late_and_cut_answers_were_written_in_vain(tmp_path: Path) -> None:
    run = load(asked(0, ON_TIME), asked(1, LATE), asked(2, "failed:cut"), tokens_written=32)
    assert reading.in_vain(run) == pytest.approx(0.75)
    assert reading.in_vain(load(asked(0, ON_TIME))) == 0  # nobody says how many were written


def test_what_arrives_outside_the_window_does_not_count(tmp_path: Path) -> None:
    run = load(asked(0, ON_TIME, at_s=1.0), asked(1, LATE, at_s=5.0), asked(2, ON_TIME, at_s=9.0))
    assert reading.row("x", setup(tmp_path), run, 1.0).on_time == 0
    assert reading.row("x", setup(tmp_path), run, 1.0, (0.0, 2.0)).on_time == 1


def test_fairness_is_what_was_got_over_what_was_due() -> None:
    one_and_two = [asked(0, ON_TIME, tenant="a"), *(asked(n, ON_TIME, tenant="b") for n in (1, 2))]
    fair = [*one_and_two, asked(3, "refused:yield", tenant="b")]
    assert reading.fairness(fair) == pytest.approx(1)  # a asked for less, and got it: nobody was wronged
    one_has_all = [asked(0, ON_TIME, tenant="a"), asked(1, "refused:yield", tenant="b")]
    assert reading.fairness(one_has_all) == pytest.approx(0.5)
    assert reading.fairness([asked(0, ON_TIME)]) is None
    by_weight = [asked(n, ON_TIME, tenant="a") for n in range(4)] + [asked(9, ON_TIME, tenant="b")]
    by_weight += [asked(10 + n, "refused:yield", tenant=name) for name in "ab" for n in range(5)]
    assert reading.fairness(by_weight, {"a": 4.0}) == pytest.approx(1)
    assert reading.fairness(by_weight) == pytest.approx(0.735, abs=0.001)


def test_a_tenant_was_served_what_was_answered_late_or_not(tmp_path: Path) -> None:
    run = load(asked(0, ON_TIME), asked(1, LATE), asked(2, "failed:cut"), asked(3, "refused:yield"))
    assert [tenant.tokens for tenant in reading.row("x", setup(tmp_path), run, 1.0).tenants] == [16]


def test_a_second_counts_what_was_sent_and_what_ended_in_it() -> None:
    run = load(asked(0, ON_TIME, at_s=1.9, took_s=0.2), asked(1, "refused:yield", at_s=1.5, took_s=0.1), asked(2, LATE))
    found = reading.seconds(run)
    assert found[1] == Second(2, 0, 1, 0)
    assert found[2] == Second(0, 1, 0, 0)
    assert found[5] == Second(1, 0, 0, 1)
    assert len(found) == 11


def test_a_smaller_answer_is_worth_what_its_level_is_and_passages_are_those_that_came(tmp_path: Path) -> None:
    rows = [asked(n, ON_TIME) for n in range(4)] + [asked(9, "refused:yield")]
    for each, level, source in zip(rows, (0, 1, 1, 4, 0), ("db", "cache", "none", "skipped", ""), strict=True):
        each.level, each.source = level, source
    row = reading.row("x", setup(tmp_path), load(*rows), 1.0, quality=(1.0, 0.9, 0.5))
    assert row.worth_per_s * 4 == pytest.approx(1.0 + 0.9 + 0.9 + 0.5)  # the window has four seconds
    assert (row.with_passages, row.mean_level) == (0.5, 1.5)
