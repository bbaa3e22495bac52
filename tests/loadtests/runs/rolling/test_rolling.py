"""How a run of rolling restarts counts what is lost."""

from __future__ import annotations

from loadtests.load.ledger import LATE, ON_TIME, Row
from loadtests.report.result import markdown
from loadtests.runs.judged import has_held
from loadtests.runs.rolling.__main__ import Counted, result


def ended(ending: str, *, hint_ms: float | None = None, stream: bool = False) -> Row:
    row = Row(1, "whole", 0.0, 1000.0)
    row.ending, row.hint_ms, row.stream = ending, hint_ms, stream
    return row


def held(counted: Counted) -> bool:
    return has_held(result(counted))


def test_what_is_neither_answered_nor_told_when_to_come_back_is_lost() -> None:
    counted = Counted(1, restarts=1)
    for row in (ended(ON_TIME), ended(LATE, stream=True), ended("refused:draining", hint_ms=500.0)):
        counted.record(row)
    assert (counted.sent, counted.answered, counted.streamed, counted.refused, held(counted)) == (3, 2, 1, 1, True)
    lost = ("refused:bare_503", "failed:closed", "failed:cut", "failed:connect", "failed:bad_status", "client_gave_up")
    for ending in lost:
        counted.record(ended(ending))
    assert (counted.lost.total(), sorted(counted.lost), held(counted)) == (6, sorted(lost), False)


def test_a_router_that_had_to_be_killed_is_told_and_so_is_a_run_without_a_request_or_too_few_restarts() -> None:
    assert held(Counted(1, restarts=1, answered=1))
    assert not held(Counted(1, restarts=1, answered=1, unclean=1))
    assert not held(Counted(1, restarts=1))
    assert not held(Counted(2, restarts=1, answered=1))


def test_the_page_tells_each_kind_of_loss() -> None:
    counted = Counted(50, restarts=50, sent=3, answered=2)
    counted.lost["failed:closed"] = 1
    page = markdown(result(counted), command="make rolling", machine="a machine")
    assert "Not held: 1 of 3 requests lost in 50 restarts." in page
    assert "| lost: failed:closed | 1 | ≤ 0 | **missed** |" in page
