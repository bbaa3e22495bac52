"""What is told of a run: as a page, and, where something was wrong, all that is known of it."""

from __future__ import annotations

from loadtests.runs.chaos import report
from loadtests.runs.chaos.checker import Checker, Entry
from loadtests.runs.chaos.deck import ROUTER, WORKER, Card, What
from loadtests.runs.chaos.havoc import Span
from loadtests.runs.chaos.run import Result, Wanted
from loadtests.runs.nonces.judge import Verdict

SPANS = [Span(Card(WORKER, What.FREEZE), "worker-1", 9.5, 12.5), Span(Card(ROUTER, What.KILL), "router", 50, 52)]


def result(*entries: Entry, left: float = 0.0, faults: int = 2) -> Result:
    booked = {entry.id: ["served"] for entry in entries}
    checked = Checker([]).check(entries, booked)
    wanted = Wanted(requests=len(entries), faults=faults)
    return Result(wanted, checked, SPANS, left, [], [], 60.0, 1.5, 0.01, {"bad": b"somebody else's"})


GOOD = Entry("good", 10.0, 10.5, 2.0, Verdict.RIGHT, wire=False)
LATE = Entry("late", 10.0, 12.6, 2.0, Verdict.RIGHT, wire=False)
BAD = Entry("bad", 10.0, 10.5, 2.0, Verdict.FOREIGN, wire=True)


def test_a_good_run_says_so_in_a_line_and_names_nobody() -> None:
    good = result(GOOD)
    assert good.held
    *_, last = report.lines(good)
    assert last == "1 requests, 2 faults: 0 lost, 0 answered twice, 0 foreign, 0 wrong, 0 hung. Held."
    assert "good" not in "\n".join(report.lines(good))


def test_of_what_was_wrong_all_is_told_that_is_known() -> None:
    told = "\n".join(report.lines(result(GOOD, LATE, BAD)))
    assert "hung: late, sent straight: right after 2.600 s, 600 ms late; in the log: served" in told
    assert "SIGSTOP, SIGCONT of worker-1 from -0.50 s to +2.50 s" in told
    assert "of router" not in told  # it died long after
    assert "foreign: bad, sent by way of the wire: foreign" in told
    assert "somebody else's" in told
    assert told.endswith("1 foreign, 0 wrong, 1 hung. Not held.")


def test_a_place_that_is_kept_or_a_fault_that_was_not_done_does_not_hold() -> None:
    assert not result(GOOD, left=1).held
    assert not result(GOOD, faults=3).held


def test_the_page_counts_every_fault_by_part_and_kind() -> None:
    page = report.page(result(GOOD), command="make chaos", machine="a machine")
    assert "| router | 1 |" in page
    assert "| worker |  | 1 |" in page
    assert "**1 requests, 2 faults: 0 lost" in page
