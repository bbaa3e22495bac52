"""How requests end: what a fault of their own router or worker explains, and what nothing does."""

from __future__ import annotations

import pytest

from loadtests.judging.answers import Verdict
from loadtests.judging.rules import Logged
from loadtests.runs.integrity.logs import RouterLog
from loadtests.runs.many.deck import Fault, What
from loadtests.runs.many.ends import AFTERMATH_S, End, ends, figures
from loadtests.runs.many.record import Entry, Observed, Span
from loadtests.runs.many.sizes import DEADLINE_S, GRACE_S
from tests.loadtests.runs.many.made_up import (
    ROUTER,
    STORE_FROZEN,
    WORKER,
    cut,
    entry,
    killed,
    logged,
    observed,
    unplugged,
)


def end_of(run: Observed) -> End:
    counts = ends(run).counts
    (end,) = [end for end, count in counts.items() if count]
    return end


def missed(run: Observed, wanted: int = 1) -> list[str]:
    return [figure.name for figure in figures(ends(run), run, wanted) if figure.held is False]


@pytest.mark.parametrize(
    ("one", "end"),
    [
        (entry(), End.RIGHT),
        (entry(Verdict.REFUSED), End.REFUSED),
        (entry(Verdict.REFUSED, status=504, code="deadline_exceeded"), End.EXPIRED),
        (entry(Verdict.CUT, status=200, code="deadline_exceeded"), End.EXPIRED),
        (entry(Verdict.REFUSED, status=503, code="no_capacity"), End.UNSERVED),
    ],
)
def test_an_answer_and_a_rejection_are_ends_that_need_no_fault(one: Entry, end: End) -> None:
    assert end_of(observed(one)) is end
    assert missed(observed(one)) == []


BROKEN = (
    entry(Verdict.DROPPED),
    entry(Verdict.CUT),
    entry(Verdict.REFUSED, status=502, code="upstream_failed"),
    entry(Verdict.DROPPED, gave_up=True),
)


@pytest.mark.parametrize("one", BROKEN)
def test_what_broke_without_a_fault_is_lost(one: Entry) -> None:
    assert end_of(observed(one)) is End.LOST
    assert missed(observed(one)) == [End.LOST.value]


@pytest.mark.parametrize("one", BROKEN)
def test_what_broke_under_a_fault_of_its_router_or_worker_is_hit(one: Entry) -> None:
    assert end_of(observed(one, spans=[killed(10.5, 13)])) is End.HIT
    assert end_of(observed(one, spans=[killed(5, 10 - AFTERMATH_S + 0.1)])) is End.HIT
    assert end_of(observed(one, spans=[cut(10.5, 12)], received=["a"])) is End.HIT


@pytest.mark.parametrize(
    "span",
    [
        killed(10.5, 13, router="router-1"),
        killed(20, 22),
        killed(1, 10 - AFTERMATH_S - 0.1),
        cut(10.5, 12, worker="worker-9"),
        Span(Fault(What.STORE_FROZEN), 9, 12),
    ],
)
def test_a_fault_of_others_or_at_another_time_explains_nothing(span: Span) -> None:
    run = observed(entry(Verdict.DROPPED), spans=[span], received=["a"])
    assert end_of(run) is End.LOST


def test_the_routers_log_knows_the_worker_where_the_workers_own_does_not() -> None:
    for worker, end in (("worker-9", End.HIT), (WORKER, End.LOST)):
        routers = {ROUTER: logged("upstream_failed", worker=worker)}
        run = observed(entry(Verdict.CUT), spans=[cut(10.5, 12, worker="worker-9")], routers=routers)
        assert end_of(run) is end


@pytest.mark.parametrize(("verdict", "end"), [(Verdict.FOREIGN, End.FOREIGN), (Verdict.WRONG, End.WRONG)])
def test_no_fault_explains_anothers_answer_or_a_wrong_one(verdict: Verdict, end: End) -> None:
    run = observed(entry(verdict), spans=[killed(9, 12)])
    assert end_of(run) is end
    assert missed(run) == [end.value]


def test_a_request_that_its_router_ended_twice_and_an_answer_without_a_request_are_doubled() -> None:
    assert end_of(observed(entry(), routers={ROUTER: logged("served", "served")})) is End.DOUBLED
    run = observed(unasked=1)
    assert end_of(run) is End.DOUBLED
    assert End.DOUBLED.value in missed(run)


def test_an_end_long_after_the_deadline_is_hung_unless_its_own_router_or_the_machine_stood_still() -> None:
    due = 10.0 + DEADLINE_S + GRACE_S
    hung = "hung: ended over 250 ms after the deadline"
    assert missed(observed(entry(ended_s=due))) == []
    late = entry(ended_s=due + 0.1)
    assert missed(observed(late)) == [hung]
    assert missed(observed(late, spans=[killed(11, due)])) == []
    assert missed(observed(late, spans=[cut(11, due)])) == [hung]  # a router that runs keeps deadlines
    assert missed(observed(late, still=lambda begin, end: 0.2)) == []
    assert missed(observed(entry(ended_s=due + 0.1, noticed_late_s=0.2))) == []
    far = entry(ended_s=due + AFTERMATH_S + 5)
    assert missed(observed(far, spans=[killed(11, 13)])) == [hung]


def test_a_request_that_was_sent_while_the_cable_of_its_router_was_out_has_its_deadline_from_its_arrival() -> None:
    hung = "hung: ended over 250 ms after the deadline"
    out = unplugged(9.5, 11)
    last = 11 + AFTERMATH_S + DEADLINE_S + GRACE_S
    assert missed(observed(entry(ended_s=last), spans=[out])) == []
    assert missed(observed(entry(ended_s=last + 0.1), spans=[out])) == [hung]
    for other in (unplugged(9.5, 11, router="router-1"), unplugged(10.1, 11.6), killed(9.5, 11), cut(9.5, 11)):
        assert missed(observed(entry(ended_s=last), spans=[other])) == [hung]  # it came at once


def test_no_router_holds_a_request_past_its_deadline_by_its_own_log_unless_it_was_stopped() -> None:
    due = DEADLINE_S + GRACE_S

    def logs(seconds: float) -> dict[str, RouterLog]:
        return {ROUTER: RouterLog({"a": [Logged(1, 504, "deadline_exceeded", "", seconds)]})}

    for spans, held_s, times in (
        ((), due, 0),
        ((), due + 0.1, 1),
        ((unplugged(9.5, 11),), due, 0),
        ((unplugged(9.5, 11),), due + 0.1, 1),
        ((killed(9.5, 11),), due + 0.1, 0),
        ((killed(9.5, 11, router="router-1"),), due + 0.1, 1),
    ):
        assert ends(observed(entry(), spans=spans, routers=logs(held_s))).hung == times
    assert ends(observed(entry(), routers=logs(due + 0.1), still=lambda begin, end: 0.2)).hung == 0


def test_requests_whose_deadline_counts_from_a_later_arrival_are_counted() -> None:
    run = observed(entry(), entry(id="b", sent_s=20, ended_s=21), spans=[unplugged(9.5, 11)])
    (figure,) = [one for one in figures(ends(run), run, 1) if one.name.startswith("requests sent while")]
    assert figure.value == 1


def test_with_a_frozen_store_no_request_fails_whatever_explains_it() -> None:
    sent = STORE_FROZEN.from_s + 1
    name = "failed while the store was frozen for 60 s"
    for one in (entry(sent_s=sent, ended_s=sent + 1), entry(Verdict.REFUSED, sent_s=sent, ended_s=sent + 1)):
        assert missed(observed(one)) == []
    unserved = entry(Verdict.REFUSED, sent_s=sent, ended_s=sent + 1, status=503, code="no_capacity")
    assert missed(observed(unserved)) == [name]
    broken = entry(Verdict.DROPPED, sent_s=sent, ended_s=sent + 1)
    assert missed(observed(broken, spans=[killed(sent, sent + 1)])) == [name]


def test_too_few_requests_errors_in_logs_held_requests_and_ended_processes_are_missed_targets() -> None:
    assert missed(observed(entry()), wanted=2) == ["requests sent, each with a nonce"]
    assert missed(observed(entry(), held=1.0)) == ["requests that routers still held at the end"]
    assert missed(observed(entry(), ended=["router-0"])) == ["processes that ended by themselves"]
    failing = RouterLog({"a": [Logged(1, 200, "served", "")]}, errors=["an ask failed"])
    name = "errors of their own in the logs of routers and workers"
    assert missed(observed(entry(), routers={ROUTER: failing})) == [name]


def test_a_breach_is_told_with_what_happened_meanwhile() -> None:
    (told,) = ends(observed(entry(Verdict.DROPPED), spans=[killed(9, 9.5, router="router-1")])).kept
    assert told.startswith("lost: no end, or a failure without a fault: a of gold at router-0, dropped")
    assert "router killed and restarted, router-1 from -1.00 s to -0.50 s" in told
