"""How a run of rolling restarts counts what is lost."""

from __future__ import annotations

from loadtests.load.ledger import LATE, ON_TIME, Row
from loadtests.runs.rolling import report
from loadtests.runs.rolling.run import Result


def ended(ending: str, *, hint_ms: float | None = None, stream: bool = False) -> Row:
    row = Row(1, "whole", 0.0, 1000.0)
    row.ending, row.hint_ms, row.stream = ending, hint_ms, stream
    return row


def test_what_is_neither_answered_nor_told_when_to_come_back_is_lost() -> None:
    result = Result(restarts=1)
    for row in (ended(ON_TIME), ended(LATE, stream=True), ended("refused:draining", hint_ms=500.0)):
        result.hear(row)
    assert (result.sent, result.answered, result.streamed, result.refused, result.held) == (3, 2, 1, 1, True)
    lost = ("refused:bare_503", "failed:closed", "failed:cut", "failed:connect", "failed:bad_status", "client_gave_up")
    for ending in lost:
        result.hear(ended(ending))
    assert (result.lost.total(), sorted(result.lost), result.held) == (6, sorted(lost), False)


def test_a_router_that_had_to_be_killed_is_told_and_so_is_a_run_without_a_request() -> None:
    assert not Result(restarts=1, answered=1, unclean=1).held
    assert not Result(restarts=1).held
    assert not Result(answered=1).held


def test_the_page_tells_each_kind_of_loss() -> None:
    result = Result(restarts=50, sent=3, answered=2)
    result.lost["failed:closed"] = 1
    page = report.page(result, command="make rolling", machine="a machine")
    assert "Not held: 1 of 3 requests lost in 50 restarts." in page
    assert "| lost: failed:closed | 1 | 0 |" in page
