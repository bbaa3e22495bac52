"""A burst may use all its slack; a line that stands for longer is kept short, and never below its target."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.admissioncheck import Admitted
from services.core.codel import BURST_S, STEP, WINDOW_S, CoDelLimiter
from services.core.request import Request
from tests.core.leases.rig import Site

TARGET_S, SLACK_S = 0.1, 0.8
FIRST_S = STEP**4 * SLACK_S
"""The limit after a burst: four windows of half a second have passed."""


def stand(queue: CoDelLimiter, from_s: float, until_s: float, backlog_s: float, *, target_s: float = TARGET_S) -> None:
    """Starts, ten a second, that each leave so much behind."""
    for tenth in range(round(from_s * 10), round(until_s * 10)):
        queue.sample(tenth / 10, backlog_s, target_s, SLACK_S)


def test_without_a_line_there_is_no_limit() -> None:
    queue = CoDelLimiter()
    assert queue.limit_s == inf
    stand(queue, 0, 20, 0.0)
    assert queue.limit_s == inf


def test_a_queue_may_stand_for_a_burst_and_is_then_limited_as_if_it_always_had_been() -> None:
    queue = CoDelLimiter()
    stand(queue, 0, BURST_S, 0.7)
    assert queue.limit_s == inf
    stand(queue, BURST_S, BURST_S + 0.1, 0.7)
    assert queue.limit_s == FIRST_S
    stand(queue, BURST_S + 0.1, BURST_S + 0.7, 0.7)
    assert queue.limit_s == STEP * FIRST_S


def test_where_answers_may_be_degraded_a_queue_may_stand_for_a_window() -> None:
    queue = CoDelLimiter()
    for tenth in range(5):
        queue.sample(tenth / 10, 0.5, TARGET_S, SLACK_S, 3)
    assert queue.limit_s == inf
    queue.sample(0.5, 0.5, TARGET_S, SLACK_S, 3)
    assert queue.limit_s == STEP * SLACK_S


def test_the_limit_is_never_below_the_target() -> None:
    queue = CoDelLimiter()
    stand(queue, 0, 60, 0.5)
    assert queue.limit_s == TARGET_S


def test_bursts_that_drain_are_let_through_however_often_they_come() -> None:
    queue = CoDelLimiter()
    for second in range(30):
        for tenth, backlog_s in enumerate([0.7, 0.6, 0.4, 0.2, 0.0] * 2):
            queue.sample(second + tenth / 10, backlog_s, TARGET_S, SLACK_S)
    assert queue.limit_s == inf


def test_one_empty_line_in_a_burst_is_enough() -> None:
    queue = CoDelLimiter()
    for tenth in range(100):
        queue.sample(tenth / 10, 0.0 if tenth % 19 == 3 else 0.7, TARGET_S, SLACK_S)
    assert queue.limit_s == inf


def test_a_burst_counts_from_its_own_beginning() -> None:
    for calm_s in range(1, 30):
        queue, begins_s = CoDelLimiter(), calm_s / 10
        stand(queue, 0, begins_s, 0.05)
        stand(queue, begins_s, begins_s + BURST_S - 0.1, 0.7)
        assert queue.limit_s == inf, "less than a burst"
        stand(queue, begins_s + BURST_S - 0.1, begins_s + BURST_S + 0.1, 0.7)
        assert queue.limit_s == FIRST_S


def test_while_a_limited_queue_stands_the_limit_falls_window_by_window_to_the_target() -> None:
    queue = CoDelLimiter()
    stand(queue, 0, 3, 0.5)
    stand(queue, 3, 4.6, 0.0)
    assert TARGET_S / STEP < queue.limit_s < SLACK_S
    limits: list[float] = []
    for tenth in range(46, 90):
        queue.sample(tenth / 10, 0.5, TARGET_S, SLACK_S)
        if limits[-1:] != [queue.limit_s]:
            limits.append(queue.limit_s)
    falling = limits[limits.index(max(limits)) :]
    assert len(falling) > 3
    assert falling[1:] == [max(TARGET_S, STEP * each) for each in falling[:-1]]
    assert falling[-1] == TARGET_S


def test_when_the_queue_no_longer_stands_the_limit_recovers_up_to_the_slack() -> None:
    queue = CoDelLimiter()
    stand(queue, 0, 3, 0.5)
    assert queue.limit_s < 0.2
    stand(queue, 3, 4.2, 0.0)
    assert 0.2 < queue.limit_s < SLACK_S
    stand(queue, 4.2, 8, 0.0)
    assert queue.limit_s == inf


def test_after_the_limit_has_gone_a_burst_may_use_the_whole_slack_again() -> None:
    queue = CoDelLimiter()
    stand(queue, 0, 3, 0.5)
    stand(queue, 3, 8, 0.0)
    assert queue.limit_s == inf
    stand(queue, 8, 8 + BURST_S - 0.1, 0.7)
    assert queue.limit_s == inf
    stand(queue, 8 + BURST_S - 0.1, 8 + BURST_S + 0.1, 0.7)
    assert queue.limit_s == FIRST_S


def test_a_limit_that_has_just_gone_is_not_set_again_before_a_burst_has_stood() -> None:
    queue = CoDelLimiter()
    stand(queue, 0, 3, 0.5)
    now = 3.0
    while queue.limit_s < inf:
        queue.sample(now, 0.0, TARGET_S, SLACK_S)
        now += 0.1
    stand(queue, round(now, 1), round(now, 1) + BURST_S - 0.2, 0.7)
    assert queue.limit_s == inf


def test_silence_is_as_good_as_an_empty_line_for_every_window_that_passed() -> None:
    queue = CoDelLimiter()
    stand(queue, 0, 3, 0.5)
    queue.sample(3.1, 0.0, TARGET_S, SLACK_S)
    queue.sample(60.0, 0.7, TARGET_S, SLACK_S)
    assert queue.limit_s == inf


def test_a_queue_that_is_met_after_a_silence_has_not_stood_through_it() -> None:
    queue = CoDelLimiter()
    stand(queue, 0, 1, 0.5)
    stand(queue, 30, 30 + BURST_S, 0.5)
    assert queue.limit_s == inf


def test_a_burst_is_at_least_as_long_as_a_target() -> None:
    queue = CoDelLimiter()
    stand(queue, 0, 4.9, 6.0, target_s=5.0)
    assert queue.limit_s == inf
    queue.sample(5.0, 6.0, 5.0, 20.0)
    assert queue.limit_s == 20.0 * STEP, "one window"


def test_a_target_beyond_the_slack_is_no_limit() -> None:
    queue = CoDelLimiter()
    stand(queue, 0, 10, 2.0, target_s=1.0)
    assert queue.limit_s == inf


def test_a_day_of_silence_is_counted_without_overflow() -> None:
    queue = CoDelLimiter()
    stand(queue, 0, 3, 0.5)
    queue.sample(3.1, 0.0, TARGET_S, SLACK_S)
    queue.sample(1e9, 0.0, TARGET_S, SLACK_S)
    assert queue.limit_s == inf
    assert repr(queue) == "<CoDelLimiter limit inf s>"


Samples = list[tuple[float, float, float, float]]
SAMPLES = st.lists(
    st.tuples(st.floats(0, 5 * WINDOW_S), st.floats(0, 10), st.floats(0.01, 3), st.floats(0, 10)), max_size=80
)


@given(SAMPLES)
def test_no_limit_is_set_unless_the_backlog_was_above_the_target_for_a_burst(samples: Samples) -> None:
    queue, now, calm_at = CoDelLimiter(), 0.0, 0.0
    for pause_s, backlog_s, target_s, slack_s in samples:
        now += pause_s
        was_free = queue.limit_s == inf
        queue.sample(now, backlog_s, target_s, slack_s)
        if was_free and queue.limit_s < inf:
            assert now - calm_at >= BURST_S, "it stood for a burst"
            assert backlog_s > target_s
            assert target_s <= queue.limit_s < slack_s
        if backlog_s <= target_s or not was_free:
            calm_at = now  # a limit that was just lifted begins anew, too


@given(SAMPLES)
def test_whatever_stands_the_limit_is_at_least_the_least_target(samples: Samples) -> None:
    queue, now = CoDelLimiter(), 0.0
    for pause_s, backlog_s, target_s, slack_s in samples:
        now += pause_s
        prefill_backlog_s = queue.limit_s
        queue.sample(now, backlog_s, target_s, slack_s)
        assert queue.limit_s >= min(target for _, _, target, _ in samples)
        if queue.limit_s < prefill_backlog_s:
            assert queue.limit_s >= target_s


def test_a_queue_that_is_one_of_several_counts_with_the_request_that_starts() -> None:
    """At a quarter of its pace a request is four times as long: one that is left stands, and none does not."""
    for elsewhere, left, requests in ((0.0, 1, 1.0), (0.75, 1, 1.75), (0.75, 0, 0.0)):
        made = Site("r0", {"a": 1.0})
        made.scheduler.capacity(0.0, 1)
        for name in range(left + 1):
            request = Request(f"a-{name}", "a", 0.0, 1e9, 20, 1)
            assert isinstance(made.scheduler.admit(0.0, request), Admitted)
        flow = request.flow
        flow.elsewhere = elsewhere
        seen = Heard()
        flow.stats.codel = seen  # type: ignore[assignment]
        made.scheduler.next(0.0)
        assert seen.backlogs_s == pytest.approx([requests * request.charge_tokens / 100.0]), "of 100 tokens a second"


def test_the_slots_of_all_routers_count_for_a_tenant_that_several_serve() -> None:
    for elsewhere, target in ((0.0, 4.0), (0.75, 1.0)):
        made = Site("r0", {"a": 1.0})
        made.pool_slots = 16
        made.scheduler.capacity(0.0, 1)
        request = Request("a", "a", 0.0, 1e9, 20, 1)
        made.scheduler.admit(0.0, request)
        request.flow.elsewhere, request.flow.stats.service_s = elsewhere, 1.0
        seen = Heard()
        request.flow.stats.codel = seen  # type: ignore[assignment]
        made.scheduler.next(0.0)
        assert seen.targets_s == [target]


class Heard(CoDelLimiter):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.backlogs_s: list[float] = []
        self.targets_s: list[float] = []

    def sample(self, now: float, backlog_s: float, target_s: float, slack_s: float, degrades: int = 0) -> None:
        self.backlogs_s.append(backlog_s)
        self.targets_s.append(target_s)
