"""Hints: in range, monotone, and spread."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.reservations import LATEST_S, MAX_PER_TENANT_S, SOONEST_S, RetryReservations

work = st.floats(0.1, 1e4)
rates = st.floats(1, 1e5)
refusals = st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1e6), work, st.floats(0, 1e5)), min_size=1, max_size=60)


def never() -> float:
    return 0.0


@given(refusals, rates, st.integers(0, 2**32))
def test_a_hint_is_always_in_range(refusals: list[tuple[float, float, float, float]], rate: float, seed: int) -> None:
    book, now, chance = RetryReservations(), 0.0, random.Random(seed)
    for pause, queued, size, _ in refusals:
        now += pause
        assert SOONEST_S <= book.hint(now, queued, size, rate, chance.random) <= LATEST_S


@given(refusals, rates)
def test_more_queued_work_never_gives_a_shorter_hint(
    refusals: list[tuple[float, float, float, float]], rate: float
) -> None:
    """Two books with the same refusals; behind one of them there is always more work."""
    less, more, now = RetryReservations(), RetryReservations(), 1000.0
    for pause, queued, size, extra in refusals:
        now += pause
        shorter = less.hint(now, queued, size, rate, never)
        assert more.hint(now, queued + extra, size, rate, never) >= shorter - 1e-9


@given(st.floats(0, 1e5), st.lists(work, min_size=1, max_size=300), rates, st.integers(0, 2**32))
def test_a_refused_crowd_comes_back_at_half_the_capacity_at_most(
    queued: float, sizes: list[float], rate: float, seed: int
) -> None:
    """By any time t after it was refused, at most 0.5 * rate * t of its work is back, and one request's."""
    book, chance = RetryReservations(), random.Random(seed)
    back = sorted((book.hint(0.0, queued, size, rate, chance.random), size) for size in sizes)
    in_time = [(t, size) for t, size in back if t < LATEST_S / 1.2]  # later ones share the end of the book
    for n, (t, _) in enumerate(in_time):
        assert sum(size for _, size in in_time[: n + 1]) <= 0.5 * rate * t * (1 + 1e-9) + max(sizes)


@given(refusals, rates)
def test_the_bound_holds_for_a_crowd_that_is_refused_little_by_little(
    refusals: list[tuple[float, float, float, float]], rate: float
) -> None:
    book, now, slots = RetryReservations(), 0.0, []
    for pause, queued, size, _ in refusals:
        now += pause
        slot = now + book.hint(now, queued, size, rate, never)
        slots.append((slot, min(slot + size / (0.5 * rate), now + LATEST_S / 1.2)))
    for (_, done), (following, _) in pairwise(slots):
        assert following >= done - 1e-6


def test_a_crowd_of_equals_comes_back_one_by_one() -> None:
    book = RetryReservations()
    hints = [book.hint(10.0, 500, 10, 1000, never) for _ in range(5)]
    assert hints == pytest.approx([1.0, 1.02, 1.04, 1.06, 1.08])


def test_those_who_obey_find_the_queue_gone_and_build_no_new_one() -> None:
    """200 refusals while 2 s of work are queued. Nobody else comes: the backlog only falls until it is one request."""
    rate, size, backlog, book, chance = 1000.0, 20.0, 2000.0, RetryReservations(), random.Random(7)
    returns = sorted(book.hint(0.0, backlog, size, rate, chance.random) for _ in range(200))
    clock, found = 0.0, []
    for t in returns:
        backlog = max(0.0, backlog - rate * (t - clock))
        found.append(backlog)
        backlog, clock = backlog + size, t
    assert max(found) <= 5 * size
    assert sum(found) / len(found) <= size


def test_a_book_empties_with_time() -> None:
    book = RetryReservations()
    for _ in range(50):
        book.hint(0.0, 0, 100, 1000, never)
    assert book._free_at == pytest.approx(10.05)
    assert book.hint(6.0, 0, 100, 1000, never) == pytest.approx(4.05)
    assert book.hint(20.0, 0, 100, 1000, never) == pytest.approx(SOONEST_S)


def test_when_the_book_is_full_the_rest_is_spread_over_its_last_seconds() -> None:
    book, chance = RetryReservations(), random.Random(3)
    hints = [book.hint(0.0, 0, 100, 100, chance.random) for _ in range(1000)]
    late = [hint for hint in hints if hint >= 25]
    assert len(late) > 900
    assert max(late) - min(late) > 4.5
    assert all(180 < sum(a <= hint < a + 1 for hint in late) < 240 for a in (25, 26, 27, 28, 29))


def test_a_tenant_that_floods_the_book_of_all_keeps_half_of_it_free_for_the_others() -> None:
    book, flood, other, chance = RetryReservations(), RetryReservations(), RetryReservations(), random.Random(5)
    hints = [book.hint(0.0, 0, 100, 1000, chance.random, flood) for _ in range(1000)]
    assert sum(hint <= 1.2 * MAX_PER_TENANT_S for hint in hints) == 62  # of 0.2 s each
    assert min(hint for hint in hints if hint > 1.2 * MAX_PER_TENANT_S) >= 25
    assert book.hint(0.0, 0, 100, 1000, never, other) <= MAX_PER_TENANT_S + SOONEST_S


@given(st.lists(st.tuples(st.floats(0, 2), work), min_size=1, max_size=200), rates)
def test_however_long_one_tenant_floods_it_alone_never_fills_more_than_half(
    refusals: list[tuple[float, float]], rate: float
) -> None:
    book, flood, now = RetryReservations(), RetryReservations(), 0.0
    for pause, size in refusals:
        now += pause
        book.hint(now, 0, size, rate, never, flood)
        most_s = max(MAX_PER_TENANT_S, max(size for _, size in refusals) / (0.5 * rate)) + SOONEST_S
        assert book._free_at - now <= most_s + 1e-6


def test_with_no_capacity_everyone_comes_back_late_and_nothing_is_booked() -> None:
    book, chance = RetryReservations(), random.Random(3)
    assert all(25 <= book.hint(5.0, 100, 10, 0.0, chance.random) <= 30 for _ in range(100))
    assert book.hint(5.0, 0, 10, 1000, never) == pytest.approx(SOONEST_S)


def test_a_moment_of_almost_no_capacity_does_not_fill_the_book_for_hours() -> None:
    book = RetryReservations()
    book.hint(0.0, 0, 1000, 0.01, never)
    assert book.hint(30.0, 0, 10, 1000, never) == pytest.approx(SOONEST_S)


def test_a_queue_without_end_is_no_error() -> None:
    assert RetryReservations().hint(0.0, math.inf, 1, 1, never) == pytest.approx(25)


def test_its_repr_tells_its_state() -> None:
    book = RetryReservations()
    book.hint(1.0, 0, 100, 1000, never)
    assert repr(book) == "<RetryReservations free at 1.25, 1 hinted>"
