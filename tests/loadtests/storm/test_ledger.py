"""The books of a run: nothing is lost or counted twice, and nothing grows with the load."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.storm.ledger import MOST_CODES, MOST_ROWS, Ended, Ending, Ledger
from loadtests.storm.spread import GROWTH, Spread
from services.contracts.storm import Counts

NAMES = [name for name in Counts.__struct_fields__ if name != "held_back"]
attempts = st.tuples(
    st.sampled_from(("anna", "ben")),
    st.floats(0, 500),
    st.sampled_from(Ending),
    st.text(max_size=3),
    st.floats(0, 200),
)


def total(rows: list[Counts], name: str) -> int:
    return sum(getattr(row, name) for row in rows)


@given(st.lists(attempts, max_size=60), st.integers(0, 60))
def test_sent_is_ended_and_open_in_every_view(tried: list[tuple[str, float, Ending, str, float]], ended: int):
    ledger = Ledger()
    for tenant, at_s, *_ in tried:
        ledger.sent(tenant, at_s, 0.0)
    for tenant, at_s, ending, code, latency_s in tried[:ended]:
        ledger.ended(tenant, at_s, Ended(ending, code, latency_s))
    assert ledger.open == len(tried) - min(ended, len(tried))
    whole = ledger.all.fill(Counts())
    assert whole.sent == total([whole], "sent") == len(tried)
    series, tenants = ledger.series(0.0), ledger.tenants()
    for name in NAMES:
        assert total(list(series), name) == total(list(tenants), name) == getattr(whole, name)
    assert ledger.refused.total() == whole.refused
    assert ledger.failed.total() == whole.failed
    assert len(series) <= MOST_ROWS
    assert len(ledger.refused) <= MOST_CODES


def test_a_thousand_invented_codes_are_counted_under_their_last():
    ledger = Ledger()
    for number in range(1000):
        ledger.sent("anna", 0.0, 0.0)
        ledger.ended("anna", 0.0, Ended(Ending.FAILED, f"code-{number}"))
    assert len(ledger.failed) == MOST_CODES
    assert ledger.failed.total() == 1000


def test_a_second_without_an_event_is_a_second_all_the_same():
    ledger = Ledger()
    ledger.sent("anna", 0.2, 0.0)
    ledger.heard(4.5, 7, 2)
    series = ledger.series(6.1)
    assert [second.s for second in series] == list(range(7))
    assert (series[4].waiting, series[4].level, series[5].waiting) == (7, 2, None)


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_quantile_is_right_within_a_bucket(values: list[float], share: float):
    spread = Spread()
    for value in values:
        spread.add(value)
    exact_ms = sorted(values)[max(1, math.ceil(share * len(values))) - 1] * 1000
    found_ms = spread.quantile_ms(share)
    assert found_ms is not None
    assert exact_ms / GROWTH - 0.1 <= found_ms <= exact_ms * GROWTH + 0.1


def test_no_answer_has_no_quantile():
    assert Spread().quantile_ms(0.5) is None


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_a_latency_beyond_the_buckets_is_counted_at_their_end(seconds: float):
    spread = Spread()
    spread.add(seconds)
    assert spread.quantile_ms(0.5) is not None
