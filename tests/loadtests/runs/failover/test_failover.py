"""How a run of killed routers tells what a kill hit."""

from __future__ import annotations

from loadtests.load.ledger import ON_TIME, Row
from loadtests.runs.failover.__main__ import result
from loadtests.runs.failover.judge import Judged, Kill
from loadtests.runs.judged import has_held


def row(tenant: str, ending: str, intended_s: float, end_s: float, attempts: int = 1) -> Row:
    made = Row(1, tenant, intended_s, 60_000.0)
    made.ending, made.end_s, made.attempts = ending, end_s, attempts
    return made


def judge(*rows: Row, open_at: int = 3) -> Judged:
    found = Judged([Kill(10.0, open_at)], frozenset({"plain"}), max_streams=200)
    for each in (row("plain", ON_TIME, 1.0, 2.0), *rows):
        found.record(each)
    return found


def test_what_was_open_at_a_killed_router_may_fail_and_plain_requests_are_saved_by_sending_them_again() -> None:
    found = judge(row("streams", "failed:cut", 5.0, 10.01), row("plain", ON_TIME, 9.9, 10.5, attempts=2))
    assert (found.hit, found.saved, found.unsaved, found.stray) == ({0: 2}, 1, [], [])
    assert has_held(result(found))


def test_a_failure_without_a_kill_is_a_stray() -> None:
    for stray in (row("streams", "failed:cut", 1.0, 5.0), row("streams", "failed:cut", 15.0, 16.0)):
        found = judge(stray)
        assert found.stray == ["failed:cut"]
        assert not has_held(result(found))


def test_a_plain_request_that_is_hit_twice_is_not_saved() -> None:
    found = judge(row("plain", "failed:closed", 9.9, 10.2, attempts=2))
    assert not has_held(result(found))
    assert [figure.note for figure in found.figures() if figure.name == "sent again, and not answered"] == [
        "failed:closed after 2 attempts, 0.200 s after the kill"
    ]


def test_more_than_were_open_at_the_router_is_too_many() -> None:
    hit = [row("streams", "failed:cut", 5.0, 10.01) for _ in range(12)]
    assert not has_held(result(judge(*hit)))


def test_a_failure_more_than_a_second_after_the_kill_is_late() -> None:
    found = judge(row("streams", "failed:connect", 10.3, 11.4))
    assert found.whole_after_s > 1.0
    assert not has_held(result(found))


def test_fewer_than_two_hundred_streams_do_not_show_it() -> None:
    found = judge()
    found.max_streams = 199
    assert not has_held(result(found))
