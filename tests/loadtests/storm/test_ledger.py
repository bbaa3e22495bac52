"""The books of a run: nothing is lost or counted twice, and nothing grows with the load."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.load.ledger import ENDINGS, HELD_BACK, ON_TIME, Row
from loadtests.storm.ledger import MAX_CODES, MAX_ROWS, Books, ending_of
from services.contracts.storm import Counts, TenantCounts

NAMES = [name for name in Counts.__struct_fields__ if name != "held_back"]
tries = st.tuples(
    st.sampled_from(("anna", "ben")),
    st.floats(0, 500),
    st.sampled_from(sorted(ENDINGS - {HELD_BACK})),
    st.text(max_size=3),
    st.sampled_from((0, 200, 429, 503, 504)),
)


def begun(books: Books, tenant: str, at_s: float) -> Row:
    row = Row(0, tenant, at_s, 1000.0)
    books.enter(row)
    books.began(row, at_s)
    return row


def ended(books: Books, row: Row, outcome: str, code: str = "", status: int = 429) -> None:
    row.code, row.status, row.end_s = code, status, row.intended_s + 0.5
    books.tried(row, outcome)
    books.close(row, outcome)


@given(st.lists(tries, max_size=60), st.integers(0, 60))
def test_sent_is_ended_and_under_way_in_every_view(tried: list[tuple[str, float, str, str, int]], over: int) -> None:
    books = Books()
    rows = [begun(books, tenant, at_s) for tenant, at_s, *_ in tried]
    for row, (_, _, outcome, code, status) in zip(rows[:over], tried, strict=False):
        ended(books, row, outcome, code, status)
    assert books.under_way == books.open == len(tried) - min(over, len(tried))
    whole = books.all.fill(TenantCounts(id="all"))
    assert whole.sent == len(tried) == books.people[0]
    for views in (books.series(0.0), books.tenants()):
        assert len(views) <= MAX_ROWS
        for name in NAMES:
            assert sum(getattr(view, name) for view in views) == getattr(whole, name)
    for kind in ("refused", "failed"):
        assert len(books.all.codes[kind]) <= MAX_CODES
    assert sum(tenant.answered for tenant in books.tenants()) == books.people[1] == whole.on_time


def test_a_thousand_invented_codes_are_counted_under_their_last() -> None:
    books = Books()
    for number in range(1000):
        ended(books, begun(books, "anna", 0.0), "failed:bad_status", f"code-{number}")
    assert len(books.all.codes["refused"]) == MAX_CODES
    assert books.all.codes["refused"].total() == 1000


def test_a_second_without_an_event_is_a_second_all_the_same() -> None:
    books = Books()
    begun(books, "anna", 0.2)
    books.router_state(4.5, 7, 2)
    series = books.series(6.1)
    assert [second.s for second in series] == list(range(7))
    assert (series[4].waiting, series[4].level, series[5].waiting) == (7, 2, None)


def test_what_was_held_back_was_not_sent_and_is_under_way_no_more() -> None:
    books = Books()
    row = Row(0, "anna", 1.0, 1000.0)
    books.enter(row)
    books.close(row, HELD_BACK)
    (tenant,) = books.tenants()
    assert (tenant.held_back, tenant.sent, tenant.asked, books.under_way, books.open) == (1, 0, 1, 0, 0)


def test_latency_is_that_of_answers_within_a_hundredth_and_none_without_any() -> None:
    books = Books()
    for at in range(1, 101):
        row = begun(books, "anna", at / 10)
        row.status, row.end_s = 200, row.intended_s + at / 100
        books.tried(row, ON_TIME)
    ended(books, begun(books, "ben", 3.0), "refused:yield")
    anna, ben = books.tenants()
    assert anna.p50_ms == pytest.approx(500, rel=0.01)
    assert anna.p95_ms == pytest.approx(950, rel=0.01)
    assert ben.p50_ms is None


@pytest.mark.parametrize(
    ("outcome", "status", "ending"),
    [
        ("served_late", 200, ("late", "")),
        ("client_gave_up", 0, ("gone", "")),
        ("refused:yield", 429, ("refused", "said")),
        ("refused:upstream_failed", 502, ("failed", "said")),
        ("failed:bad_status", 503, ("refused", "said")),
        ("failed:bad_status", 418, ("failed", "said")),
        ("failed:cut", 429, ("failed", "connection_lost")),  # a code of a try before this one is none of its own
        ("failed:connect", 0, ("failed", "no_connection")),
    ],
)
def test_an_ending_is_what_the_client_saw(outcome: str, status: int, ending: tuple[str, str]) -> None:
    row = Row(0, "anna", 0.0, 1000.0)
    row.status, row.code = status, "said"
    assert ending_of(row, outcome) == ending
