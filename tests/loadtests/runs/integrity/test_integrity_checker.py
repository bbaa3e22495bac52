"""The checker: what is accounted for, and what never may be."""

from __future__ import annotations

from collections import Counter

import pytest

from loadtests.judging.answers import Verdict
from loadtests.judging.rules import Logged, Seen
from loadtests.runs.integrity.checker import (
    AFTERMATH_S,
    GRACE_S,
    UNWRITTEN_S,
    Checked,
    Checker,
    End,
    Entry,
    Rule,
    Trouble,
    Worked,
)
from loadtests.runs.integrity.logs import RouterLog

STATUS = {Verdict.RIGHT: 200, Verdict.CUT: 200, Verdict.REFUSED: 429, Verdict.FOREIGN: 200, Verdict.WRONG: 200}
OUTCOME = {Verdict.RIGHT: "served", Verdict.REFUSED: "yield", Verdict.CUT: "upstream_failed"}


def entry(verdict: Verdict = Verdict.RIGHT, sent_s: float = 10.0, end_s: float = 10.5, **more) -> Entry:
    status = more.pop("status", STATUS.get(verdict, 0))
    seen = Seen(
        "a", sent_s, end_s, 2.0, verdict, status, verdict is not Verdict.DROPPED,
        hint_ms=more.pop("hint_ms", None), invited=more.pop("invited", False),
    )  # fmt: skip
    return Entry(seen, **more)


def book(*outcomes: str, status: int = 200, worker: str = "") -> RouterLog:
    return RouterLog({"a": [Logged(1, status, outcome, worker) for outcome in outcomes]} if outcomes else {})


def matching(one: Entry) -> RouterLog:
    """What the log says where all is well."""
    outcome = OUTCOME.get(one.seen.verdict)
    return book(outcome, status=one.seen.status) if outcome and not one.gave_up else book()


def killed(from_s: float, to_s: float) -> Trouble:
    return Trouble(from_s, to_s, wire=False, breaks=True, kills=True)


def checked(
    one: Entry, *troubles: Trouble, booked: RouterLog | None = None, still=lambda begin, end: 0.0, **more
) -> Checked:
    kills = more.pop("kills", ())
    return Checker(troubles, still, kills).check([one], matching(one) if booked is None else booked, **more)


def test_an_answer_that_is_right_in_time_and_written_down_is_all_that_is_wanted() -> None:
    found = checked(entry())
    assert found.clean
    assert found.ends == {End.RIGHT: 1, End.DOUBLED: 0}
    assert found.asked == 1


@pytest.mark.parametrize(("verdict", "end"), [(Verdict.FOREIGN, End.FOREIGN), (Verdict.WRONG, End.WRONG)])
def test_what_no_client_may_believe_is_never_clean(verdict: Verdict, end: End) -> None:
    found = checked(entry(verdict), booked=book("upstream_failed"))
    assert not found.clean
    assert [(what, id) for what, id, _ in found.kept] == [(end.value, "a")]


def test_a_request_without_any_end_is_lost_whatever_was_broken() -> None:
    found = checked(entry(Verdict.DROPPED, end_s=17.0, gave_up=True), killed(10, 12))
    assert found.ends[End.LOST] == 1


def test_a_broken_connection_is_accounted_for_by_a_router_that_died_and_by_nothing_else() -> None:
    broken = entry(Verdict.DROPPED, end_s=11.0)
    assert checked(broken, killed(10.9, 13)).ends[End.BROKEN] == 1
    assert checked(broken).ends[End.LOST] == 1
    assert checked(broken, killed(20, 22)).ends[End.LOST] == 1  # it died later
    assert checked(broken, killed(1, 10 - AFTERMATH_S - 0.1)).ends[End.LOST] == 1  # it was back long before


def test_a_client_that_finds_no_router_to_connect_to_is_counted_apart() -> None:
    refused = entry(Verdict.DROPPED, end_s=10.0, connected=False)
    assert checked(refused, killed(9, 12)).ends[End.UNREACHED] == 1
    assert checked(refused).ends[End.LOST] == 1


def test_a_wire_that_is_cut_accounts_for_those_behind_it_alone() -> None:
    cut = Trouble(10, 11, wire=True, breaks=True)
    assert checked(entry(Verdict.DROPPED, wire=True), cut).ends[End.BROKEN] == 1
    assert checked(entry(Verdict.DROPPED, wire=False), cut).ends[End.LOST] == 1


def test_latency_breaks_nothing() -> None:
    slow = Trouble(10, 11, wire=True, breaks=False, delay_s=0.1)
    assert checked(entry(Verdict.DROPPED, wire=True), slow).ends[End.LOST] == 1


def test_a_second_line_in_the_log_and_a_second_answer_on_the_wire_are_an_answer_too_many() -> None:
    assert checked(entry(), booked=book("served", "served")).ends[End.DOUBLED] == 1
    assert checked(entry(), unasked=2).ends[End.DOUBLED] == 2
    assert not checked(entry(), unasked=1).clean


def test_a_refusal_before_a_worker_had_the_request_is_told_from_a_failure_afterwards() -> None:
    assert checked(entry(Verdict.REFUSED)).ends[End.REFUSED] == 1
    assert checked(entry(Verdict.REFUSED, status=502)).ends[End.FAILED] == 1


def test_over_later_than_the_grace_is_hung() -> None:
    assert checked(entry(end_s=12 + GRACE_S - 0.01)).broken[Rule.HUNG] == 0
    assert checked(entry(end_s=12 + GRACE_S + 0.01)).broken[Rule.HUNG] == 1


def test_what_the_client_noticed_late_and_what_the_machine_stood_still_is_taken_off() -> None:
    late = entry(end_s=12.6)
    assert checked(late).broken[Rule.HUNG] == 1
    assert checked(entry(end_s=12.6, noticed_late_s=0.4)).clean
    assert checked(late, still=lambda begin, end: 0.4).clean
    asked: list[tuple[float, float]] = []
    checked(late, still=lambda begin, end: asked.append((begin, end)) or 0.0)
    assert set(asked) == {(12.0, 12.6)}  # what was lost before the deadline made nothing late


def test_what_was_frozen_on_purpose_is_taken_off_for_as_long_as_it_was() -> None:
    frozen = Trouble(11, 12.5, wire=False, breaks=False, holds=True)
    assert checked(entry(end_s=12.6), frozen).clean
    assert checked(entry(end_s=13.8), frozen).broken[Rule.HUNG] == 1  # 1.8 s late, and it was frozen for 1.5 s
    assert checked(entry(sent_s=12.4, end_s=14.8), frozen).broken[Rule.HUNG] == 1  # of which only the last 0.1 s


@pytest.mark.parametrize("verdict", [Verdict.RIGHT, Verdict.REFUSED])
def test_an_answer_that_the_log_does_not_know_is_found_out_unless_the_router_died_just_then(verdict: Verdict) -> None:
    def unbooked(*troubles: Trouble) -> int:
        return checked(entry(verdict), *troubles, booked=book()).broken[Rule.UNLOGGED]

    assert unbooked() == 1
    assert unbooked(killed(10.6, 12)) == 0
    assert unbooked(killed(10.5 + UNWRITTEN_S + 0.1, 14)) == 1
    assert unbooked(killed(1, 2)) == 1
    assert unbooked(Trouble(10.6, 12, wire=False, breaks=False, holds=True)) == 1  # what is frozen forgets nothing


def test_a_client_that_is_told_otherwise_than_the_log_is_found_out_but_not_behind_a_wire() -> None:
    def misbooked(one: Entry, *outcomes: str, status: int = 200) -> int:
        return checked(one, booked=book(*outcomes, status=status)).broken[Rule.MISLOGGED]

    assert misbooked(entry(), "client_gone") == 1
    assert misbooked(entry(), "served", status=429) == 1
    assert misbooked(entry(Verdict.REFUSED), "served", status=429) == 1
    assert misbooked(entry(Verdict.REFUSED), "yield", status=429) == 0
    assert misbooked(entry(wire=True), "client_gone") == 0


def test_an_invitation_without_a_usable_hint_is_found_out() -> None:
    assert checked(entry(Verdict.REFUSED, invited=True)).broken[Rule.UNHINTED] == 1
    assert checked(entry(Verdict.REFUSED, invited=True, hint_ms=40_000)).broken[Rule.UNHINTED] == 1
    assert checked(entry(Verdict.REFUSED, invited=True, hint_ms=500)).clean


def worked(received: dict[str, list[str]], *, counted: int = 0, retries: int = 0, starts: int = 1) -> Worked:
    return Worked(received, ["worker-0"], Counter({"served": counted} if counted else {}), retries, starts, 10.0)


def test_an_answer_that_its_worker_does_not_know_is_found_out_unless_the_worker_died_just_then() -> None:
    said = book("served", worker="worker-0")
    kill = ("worker-0", killed(10.6, 12))
    assert checked(entry(), booked=said, worked=worked({"a": ["worker-0"]})).clean
    assert checked(entry(), booked=said, worked=worked({})).broken[Rule.UNKNOWN] == 1
    assert checked(entry(), booked=said, worked=worked({}), kills=[kill]).clean
    assert checked(entry(), booked=said, worked=worked({}), kills=[("worker-1", kill[1])]).broken[Rule.UNKNOWN] == 1
    earlier = ("worker-0", killed(10.1, 10.4))  # the router passed the answer on when the worker was back
    assert checked(entry(), booked=said, worked=worked({}), kills=[earlier]).clean
    long_before = ("worker-0", killed(8, 9.9))
    assert checked(entry(), booked=said, worked=worked({}), kills=[long_before]).broken[Rule.UNKNOWN] == 1
    assert checked(entry(), booked=book("served", worker="evil-weir"), worked=worked({})).clean  # it keeps no log


def test_workers_receive_a_request_twice_at_most_and_twice_only_by_a_retry_that_was_counted() -> None:
    one, two, three = (["worker-0"] * count for count in (1, 2, 3))
    assert checked(entry(), worked=worked({"a": one})).clean
    assert checked(entry(), worked=worked({"a": two}, retries=1)).clean
    assert checked(entry(), worked=worked({"a": two})).broken[Rule.RECEIVED] == 1
    assert checked(entry(), worked=worked({"a": two}, starts=2)).clean  # an earlier life may have counted it
    assert checked(entry(), worked=worked({"a": three}, retries=2)).broken[Rule.RECEIVED] == 1
    assert checked(entry(), worked=worked({"a": one}, retries=1000)).broken[Rule.RECEIVED] == 1


def test_log_and_metrics_have_to_count_alike() -> None:
    assert checked(entry(), worked=worked({}, counted=1)).broken[Rule.MISCOUNTED] == 1


def test_what_a_workers_kill_lets_a_client_see_before_the_first_token_is_found_out() -> None:
    kill = ("worker-1", killed(10.2, 11))

    def seen(one: Entry, *, alone: bool = True, still=lambda begin, end: 0.0) -> int:
        return checked(one, kills=[kill], alone=alone, still=still).broken[Rule.AFTER_KILL]

    assert seen(entry(Verdict.REFUSED, status=502)) == 1
    assert seen(entry(Verdict.REFUSED, status=502), alone=False) == 0
    assert seen(entry(Verdict.REFUSED, 13.0, 14.0, status=502)) == 0  # long after
    assert seen(entry(Verdict.REFUSED, status=429)) == 0  # no worker had it
    assert seen(entry(Verdict.CUT)) == 1
    assert seen(entry(Verdict.CUT, spoke=True)) == 0
    assert seen(entry(Verdict.REFUSED, status=504)) == 1
    assert seen(entry(Verdict.REFUSED, status=504), still=lambda begin, end: 0.5) == 0


def test_the_calm_after_the_last_fault_has_to_be_served() -> None:
    good, bad = entry().seen, entry(Verdict.REFUSED).seen
    assert checked(entry(), tail=[good] * 99 + [bad]).clean
    assert checked(entry(), tail=[good] * 90 + [bad] * 10).broken[Rule.UNCALM] == 1
