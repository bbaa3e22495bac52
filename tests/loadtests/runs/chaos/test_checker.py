"""The checker: what is accounted for, and what never may be."""

from __future__ import annotations

import pytest

from loadtests.runs.chaos.checker import AFTERMATH_S, GRACE_S, UNWRITTEN_S, Checked, Checker, End, Entry, Trouble
from loadtests.runs.nonces.judge import Verdict

SERVED = {"a": ["served"]}


def entry(verdict: Verdict | None = Verdict.RIGHT, sent_s: float = 10.0, end_s: float = 10.5, **more) -> Entry:
    return Entry("a", sent_s, end_s, 2.0, verdict, more.pop("wire", False), **more)


def killed(from_s: float, to_s: float) -> Trouble:
    return Trouble(from_s, to_s, wire=False, breaks=True, kills=True)


def checked(one: Entry, *troubles: Trouble, booked=SERVED, still=lambda begin, end: 0.0, unasked: int = 0) -> Checked:
    return Checker(troubles, still).check([one], booked, unasked)


def test_an_answer_that_is_right_in_time_and_written_down_is_all_that_is_wanted() -> None:
    found = checked(entry())
    assert found.clean
    assert found.ends == {End.RIGHT: 1, End.DOUBLED: 0}
    assert found.asked == 1


@pytest.mark.parametrize("verdict", [Verdict.FOREIGN, Verdict.WRONG])
def test_what_nobody_may_believe_is_never_clean(verdict: Verdict) -> None:
    found = checked(entry(verdict))
    assert not found.clean
    assert [(mark, one.id, outcomes) for mark, one, _, outcomes in found.kept] == [(verdict.value, "a", ["served"])]


def test_a_request_without_any_end_is_lost_whatever_was_broken() -> None:
    found = checked(entry(None, end_s=17.0), killed(10, 12), booked={})
    assert found.ends[End.LOST] == 1


def test_a_broken_connection_is_accounted_for_by_a_router_that_died_and_by_nothing_else() -> None:
    broken = entry(Verdict.DROPPED, end_s=11.0)
    assert checked(broken, killed(10.9, 13), booked={}).ends[End.BROKEN] == 1
    assert checked(broken, booked={}).ends[End.LOST] == 1
    assert checked(broken, killed(20, 22), booked={}).ends[End.LOST] == 1  # it died later
    assert checked(broken, killed(1, 10 - AFTERMATH_S - 0.1), booked={}).ends[End.LOST] == 1  # it was back long before


def test_who_finds_nobody_to_connect_to_is_counted_apart() -> None:
    refused = entry(Verdict.DROPPED, end_s=10.0, connected=False)
    assert checked(refused, killed(9, 12), booked={}).ends[End.UNREACHED] == 1
    assert checked(refused, booked={}).ends[End.LOST] == 1


def test_a_wire_that_is_cut_accounts_for_those_behind_it_alone() -> None:
    cut = Trouble(10, 11, wire=True, breaks=True)
    assert checked(entry(Verdict.DROPPED, wire=True), cut, booked={}).ends[End.BROKEN] == 1
    assert checked(entry(Verdict.DROPPED, wire=False), cut, booked={}).ends[End.LOST] == 1


def test_latency_breaks_nothing() -> None:
    slow = Trouble(10, 11, wire=True, breaks=False, delay_s=0.1)
    assert checked(entry(Verdict.DROPPED, wire=True), slow, booked={}).ends[End.LOST] == 1


def test_a_second_line_in_the_log_and_a_second_answer_on_the_wire_are_an_answer_too_many() -> None:
    assert checked(entry(), booked={"a": ["served", "served"]}).ends[End.DOUBLED] == 1
    assert checked(entry(), unasked=2).ends[End.DOUBLED] == 2
    assert not checked(entry(), unasked=1).clean


def test_over_later_than_the_grace_is_hung() -> None:
    assert checked(entry(end_s=12 + GRACE_S - 0.01)).hung == 0
    assert checked(entry(end_s=12 + GRACE_S + 0.01)).hung == 1


def test_what_the_client_noticed_late_and_what_the_machine_stood_still_is_taken_off() -> None:
    late = entry(end_s=12.6)
    assert checked(late).hung == 1
    assert checked(entry(end_s=12.6, noticed_late_s=0.4)).hung == 0
    assert checked(late, still=lambda begin, end: 0.4).hung == 0
    asked: list[tuple[float, float]] = []
    checked(late, still=lambda begin, end: asked.append((begin, end)) or 0.0)
    assert set(asked) == {(12.0, 12.6)}  # what was lost before the deadline made nothing late


def test_what_was_frozen_on_purpose_is_taken_off_for_as_long_as_it_was() -> None:
    frozen = Trouble(11, 12.5, wire=False, breaks=False, holds=True)
    assert checked(entry(end_s=12.6), frozen).hung == 0
    assert checked(entry(end_s=13.8), frozen).hung == 1  # 1.8 s late, and it was frozen for 1.5 s
    assert checked(entry(sent_s=12.4, end_s=14.8), frozen).hung == 1  # of which only the last 0.1 s


def test_an_answer_that_the_log_does_not_know_is_found_out_unless_the_router_died_just_then() -> None:
    assert checked(entry(), booked={}).unbooked == 1
    assert checked(entry(), killed(10.6, 12), booked={}).unbooked == 0
    assert checked(entry(), killed(10.5 + UNWRITTEN_S + 0.1, 14), booked={}).unbooked == 1
    assert checked(entry(), killed(1, 2), booked={}).unbooked == 1


def test_a_client_that_is_told_otherwise_than_the_log_is_found_out_but_not_behind_a_wire() -> None:
    assert checked(entry(), booked={"a": ["client_gone"]}).misbooked == 1
    assert checked(entry(Verdict.REFUSED), booked=SERVED).misbooked == 1
    assert checked(entry(Verdict.REFUSED), booked={"a": ["yield"]}).clean
    assert checked(entry(wire=True), booked={"a": ["client_gone"]}).misbooked == 0
