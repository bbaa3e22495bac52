"""The wait that a newcomer must expect, what it is made of, and the test at the start."""

from __future__ import annotations

import itertools
from math import inf, isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.account import ClassSpec, QueueBounds, TenantSpec
from services.core.admission import grant
from services.core.discipline import FifoDiscipline, WaitPrediction
from services.core.drr import Drr
from services.core.estimator import Estimator
from services.core.ladder import LADDER, MAX_SIZES, LadderSizes
from services.core.request import Request, Stage

RATE = 400.0  # of four slots


class Line:
    """A scheduler with quantum 100, four slots that are taken, and the next one free in 0.5 s."""

    def __init__(self, *, slots: int = 4, quantum: float = 100.0, classes: tuple[ClassSpec, ...] = ()) -> None:
        self.drr = Drr(quantum=quantum, bounds=QueueBounds(10_000), classes=classes)
        self.pool = self.drr.pool("default")
        self.estimator = Estimator(work_per_slot_s=RATE / 4, prefill_s_per_token=0.001, s_per_token=0.01)
        self.estimator.resize(0.0, slots)
        self.ids = itertools.count(1)
        for _ in range(slots):
            running = self.request("ran", 9.0)
            running.stage = Stage.RUNNING
            self.estimator.start(0.0, running, 0.5)

    def request(self, tenant: str, deadline: float, **fields: bool) -> Request:
        return Request(next(self.ids), tenant, 0.0, deadline, prompt_tokens=10, max_tokens=10, **fields)

    def meet(self, tenant: str, *, weight: float = 1.0, class_name: str = "default") -> None:
        if tenant not in self.drr.tenants:
            self.drr.configure(TenantSpec(tenant, QueueBounds(10_000), weight, class_name))

    def wait(self, tenant: str, *costs: float, deadline: float = 10.0, ready: bool = True) -> list[Request]:
        self.meet(tenant)
        requests = []
        for cost in costs:
            request = self.request(tenant, deadline, ready=ready)
            request.charge_tokens, request.expires_at = cost, deadline
            assert self.drr.enqueue(0.0, request) is None
            requests.append(request)
        return requests

    def look(
        self, tenant: str, *, deadline: float = 10.0, now: float = 0.0, measured_rounds: bool = False
    ) -> WaitPrediction:
        self.meet(tenant)
        flow = self.drr.flow(self.pool, self.drr.tenants[tenant])
        return self.pool.discipline.predict_wait(now, flow, deadline, self.estimator, measured_rounds=measured_rounds)

    def ahead(self, tenant: str, deadline: float = 10.0) -> float:
        """Work of its own that a newcomer of this tenant stands behind."""
        return self.drr.flow(self.pool, self.drr.tenants[tenant]).work_before(deadline)

    def serve(self, count: int) -> list[Request]:
        started = [self.drr.next(0.0, "default") for _ in range(count)]
        assert None not in started
        return [request for request in started if request is not None]


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("measured", [False, True])
def test_sums_that_have_drifted_below_zero_are_no_wait_below_zero(in_order: bool, measured: bool) -> None:
    """One that is due before its own line, while a slot is free that could not be used in this step."""
    line = Line(slots=4)
    line.wait("a", 10.0)
    line.estimator.busy = 3
    if in_order:
        line.drr.serve_by(0.0, FifoDiscipline)
    line.pool.work = line.pool.round_work = -1e-12
    assert line.look("a", deadline=1.0, measured_rounds=measured).wait_s == 0.0


def test_while_a_slot_is_free_and_nobody_stands_in_line_there_is_no_wait() -> None:
    line = Line(slots=4)
    line.estimator.stop(0.0)
    view = line.look("a")
    assert (view.wait_s, view.idle) == (0.0, True)


def test_those_whose_retrieval_runs_will_want_the_free_slots_too() -> None:
    line = Line(slots=4)
    line.estimator.stop(0.0)
    line.estimator.stop(0.0)
    line.wait("a", 100.0, ready=False)
    assert line.look("b").idle  # one for each
    line.wait("a", 100.0, ready=False)
    assert not line.look("b").idle
    assert line.look("a").wait_s == pytest.approx(200 / RATE)


def test_a_newcomer_waits_for_the_first_end_that_is_expected_though_nobody_stands_in_line() -> None:
    line = Line()
    view = line.look("a")
    assert (view.idle, view.new, view.share) == (False, True, 1.0)
    assert view.wait_s == pytest.approx(0.5)


def test_while_the_capacity_is_unknown_no_wait_is_predicted() -> None:
    line = Line()
    line.estimator.announced_per_slot_s = None
    line.estimator.resize(0.0, 4)
    line.wait("a", 1e6)
    assert line.look("a") == WaitPrediction(1.0, 0.0, False, False)


def test_a_tenant_waits_for_its_own_line_at_its_own_share_and_one_round_of_the_others() -> None:
    line = Line()
    line.wait("a", 60.0, 60.0)
    line.wait("b", 1000.0, 1000.0)
    line.wait("c", 30.0)
    view = line.look("a")
    assert line.ahead("a") == 120.0
    assert view.share == pytest.approx(1 / 3)
    assert view.wait_s == pytest.approx((120.0 * 3 + 100.0 + 30.0) / RATE + 0.5)


def test_never_for_more_than_all_that_waits() -> None:
    line = Line()
    line.wait("a", 60.0)
    line.wait("b", 10.0)
    assert line.look("a").wait_s == pytest.approx(70.0 / RATE + 0.5)


def test_only_those_with_an_earlier_deadline_stand_before_it_in_its_own_line() -> None:
    line = Line()
    line.wait("a", 40.0, deadline=5.0)
    line.wait("a", 500.0, deadline=20.0)
    assert line.ahead("a", deadline=10.0) == 40.0
    assert line.ahead("a", deadline=1.0) == 0.0
    assert line.ahead("a", deadline=30.0) == 540.0


def test_work_whose_retrieval_still_runs_stands_before_it_too() -> None:
    line = Line()
    line.wait("a", 40.0, ready=False)
    assert line.ahead("a") == 40.0


def test_weights_are_shares() -> None:
    line = Line(classes=(ClassSpec("gold", 3.0), ClassSpec("default", 1.0)))
    line.meet("g", class_name="gold", weight=2.0)
    line.meet("h", class_name="gold", weight=6.0)
    line.wait("g", 100.0)
    line.wait("h", 100.0)
    line.wait("d", 100.0)
    assert line.look("g").share == pytest.approx(0.75 * 0.25)
    assert line.look("h").share == pytest.approx(0.75 * 0.75)
    assert line.look("d").share == pytest.approx(0.25)


def test_a_newcomer_goes_ahead_of_those_who_wait_for_their_next_turn() -> None:
    line = Line()
    line.wait("heavy", *[100.0] * 50)
    line.serve(3)  # no longer new
    view = line.look("light")
    assert view.new
    assert view.wait_s == pytest.approx(0.5)


def test_a_newcomer_waits_for_those_who_are_new_as_well() -> None:
    line = Line()
    for tenant in "abcd":
        line.wait(tenant, 80.0)
    assert line.look("e").wait_s == pytest.approx(4 * 80.0 / RATE + 0.5)


def test_debt_is_waited_out_before_the_next_turn() -> None:
    line = Line()
    line.wait("a", 1000.0, 50.0)
    line.wait("b", *[100.0] * 50)
    line.serve(1)
    view = line.look("a")
    assert line.ahead("a") == 50.0
    assert view.wait_s == pytest.approx((2 * (50.0 + 900.0) + 100.0) / RATE + 0.5)
    assert not view.new


def test_the_wait_is_the_longer_of_what_waits_and_what_rounds_have_taken() -> None:
    line = Line(quantum=100.0)
    line.wait("a", *[100.0] * 12)
    line.wait("b", *[100.0] * 12)
    line.serve(20)
    short, long = line.look("a"), line.look("a", measured_rounds=True)
    assert long.wait_s >= short.wait_s
    for tenant in "cdefgh":  # others who come back in every round, and are not here now
        line.wait(tenant, 100.0)
    line.serve(6)
    for tenant in "cdefgh":
        line.wait(tenant, 100.0)
    line.serve(7)
    short, long = line.look("a"), line.look("a", measured_rounds=True)
    assert long.wait_s > short.wait_s


@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.floats(1, 1e4), st.floats(-5, 30), st.booleans()), max_size=40),
    st.integers(0, 20),
    st.sampled_from("abcdef"),
    st.floats(-5, 40),
    st.booleans(),
)
def test_whatever_waits_the_wait_is_finite_and_never_below_zero(
    put: list[tuple[str, float, float, bool]], serve: int, tenant: str, deadline: float, measured: bool
) -> None:
    line = Line()
    for who, cost, due, ready in put:
        line.wait(who, cost, deadline=due, ready=ready)
    for _ in range(serve):
        if request := line.drr.next(0.0, "default"):
            line.drr.settle(0.0, request, request.charge_tokens / 2)
    view = line.look(tenant, deadline=deadline, measured_rounds=measured)
    assert isfinite(view.wait_s)
    assert view.wait_s >= 0
    assert 0 < view.share <= 1


def test_sizes_shrink_with_the_level_and_never_below_one_token_of_an_answer() -> None:
    sizes = LadderSizes(LADDER)
    contexts, answers = sizes.contexts(1000), sizes.answers(2)
    assert contexts[0] == 1000
    assert contexts[-1] == 0  # there is no retrieval
    assert list(contexts) == sorted(contexts, reverse=True)
    assert list(answers) == sorted(answers, reverse=True)
    assert answers[0] == 2
    assert answers[-1] == 1


def test_what_has_been_looked_up_is_bounded_and_stays_right() -> None:
    sizes = LadderSizes(LADDER)
    for asked in range(3 * MAX_SIZES):
        assert sizes.answers(asked)[1:] == tuple(level.answer_tokens(asked) for level in LADDER[1:])
        assert sizes.contexts(asked)[1:] == tuple(level.context_tokens(asked) for level in LADDER[1:])
    assert len(sizes._answers) <= MAX_SIZES
    assert len(sizes._contexts) <= MAX_SIZES


def granted(slack_s: float, *, asked: int = 100, probable: float = 50.0, may_clamp: bool = False) -> int:
    estimator = Estimator(prefill_s_per_token=0.001, s_per_token=0.01)
    request = Request(1, "a", 0.0, slack_s, prompt_tokens=100, max_tokens=asked, may_clamp=may_clamp)
    return grant(request, 100, asked, probable, slack_s, estimator)


def test_one_that_may_not_be_cut_starts_if_its_probable_answer_fits_and_then_in_full() -> None:
    assert granted(0.1 + 0.49 + 0.001) == 100
    assert granted(0.1 + 0.49 - 0.001) == 0


def test_one_that_may_be_cut_is_given_what_fits() -> None:
    assert granted(0.1 + 0.305, may_clamp=True) == 30
    assert granted(0.1 + 5.0, may_clamp=True) == 100
    assert granted(0.1 + 0.009, may_clamp=True) == 0


def test_nothing_starts_after_its_deadline() -> None:
    assert granted(-0.001, probable=0.0, may_clamp=True) == 0
    assert granted(-0.001, probable=0.0) == 0


@given(st.floats(-1, 20), st.integers(1, 1000), st.floats(0, 1000), st.booleans())
def test_nothing_is_granted_beyond_what_was_asked(slack_s: float, asked: int, probable: float, may_clamp: bool) -> None:
    assert 0 <= granted(slack_s, asked=asked, probable=probable, may_clamp=may_clamp) <= asked


def test_without_any_measure_of_time_all_is_granted_until_the_deadline() -> None:
    request = Request(1, "a", 0.0, 1.0, prompt_tokens=100, max_tokens=77, may_clamp=True)
    assert grant(request, 100, 77, 50.0, 0.001, Estimator()) == 77
    assert grant(request, 100, 77, 50.0, inf, Estimator()) == 77
