"""The bench of the console: what it makes is what a router makes, and its page says what it measured."""

from __future__ import annotations

import asyncio

from loadtests.bench.console import _entries_us, _frame, _NoJournal, result
from loadtests.report.figure import Figure
from loadtests.report.result import markdown
from services.router.telemetry.journal import Journal


def test_its_frame_is_as_large_as_it_says() -> None:
    made_ms, encoded_ms, size = asyncio.run(_frame())
    assert made_ms > encoded_ms > 0
    assert 15_000 < size < 100_000


def test_the_records_that_are_timed_are_kept_by_the_one_journal_and_not_by_the_other() -> None:
    kept, not_kept = Journal(), _NoJournal()
    assert _entries_us(kept) > 0
    assert _entries_us(not_kept) > 0
    assert kept.decided > 0
    assert not_kept.decided == 0


def test_the_page_shows_every_figure_with_its_target() -> None:
    figures = [Figure("50 viewers", 1.44, "% of a core", 5, at_least=False, note="quiet")]
    told = markdown(result(figures, 4.0), command="python -m loadtests.bench console", machine="a machine")
    assert "| 50 viewers | 1.44 % of a core | ≤ 5.00 % of a core | held | quiet |" in told
    assert "`python -m loadtests.bench console`, on a machine." in told
