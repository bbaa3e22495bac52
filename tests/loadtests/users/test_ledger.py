"""The ledger forgets no outcome, and does not grow with the number of requests."""

from __future__ import annotations

from collections import Counter

from loadtests.users.ledger import MAX_OUTCOMES, Ledger, Row, percentile

SERVED = Row("before", "people", "/ask", "served", "")
REFUSED = SERVED._replace(kind="refused", detail="yield")


def test_every_outcome_is_counted_in_bounded_memory():
    ledger = Ledger()
    for took_ms in range(20_000):
        ledger.record(SERVED, began_s=took_ms / 1000, took_ms=took_ms)
    ledger.record(REFUSED, began_s=3.2, took_ms=3)
    assert (ledger.total, ledger.count("served"), ledger.count("refused")) == (20_001, 20_000, 1)
    assert sum(len(times) for times in ledger._times_ms.values()) < 400
    assert dict(ledger.seconds())[3] == Counter(served=1000, refused=1)


def test_a_server_that_invents_codes_does_not_fill_the_books():
    ledger = Ledger()
    for number in range(10 * MAX_OUTCOMES):
        ledger.record(SERVED._replace(kind="failed", detail=f"418 teapot_{number}"), 0, 1)
    assert len(ledger.rows()) <= MAX_OUTCOMES + 1
    assert ledger.count("failed") == 10 * MAX_OUTCOMES
    assert "failed: other" in {row.outcome for row, _ in ledger.rows()}


def test_the_times_of_some_rows_are_told_together():
    ledger = Ledger()
    for took_ms, row in ((10, SERVED), (20, SERVED._replace(surface="chat")), (1, REFUSED)):
        ledger.record(row, 0, took_ms)
    served = ledger.times(lambda row: row.kind == "served")
    assert (served.count, served.percentile_ms(0.5), served.percentile_ms(1)) == (2, 10, 20)
    assert ledger.times(lambda row: row.kind == "lost").percentile_ms(0.5) is None


def test_the_first_words_of_streams_are_books_of_their_own():
    ledger = Ledger()
    ledger.first_token("before", "people", 40)
    assert ledger.first_words("before", "people").percentile_ms(0.5) == 40
    assert ledger.first_words("after", "people").count == 0
    assert ledger.total == 0


def test_a_percentile_is_the_least_time_that_covers_the_share():
    times = Counter({10: 50, 20: 45, 300: 5})
    assert [percentile(times, q) for q in (0.5, 0.51, 0.95, 0.96, 1.0)] == [10, 20, 20, 300, 300]
