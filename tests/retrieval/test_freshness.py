"""When a cached result is due: spread over keys, early for the popular, and never by more than is meant."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.retrieval.cache import CacheKey
from services.retrieval.freshness import BETA, MIN_TTL_SHARE, due_early, ttl_jitter

SECONDS = st.floats(1e-6, 1e6)
DRAW = st.floats(0, 1, exclude_min=True)


@given(st.text(max_size=20), st.binary(max_size=40))
def test_a_key_gets_a_share_of_its_life_and_never_more_than_all_of_it(query: str, secret: bytes) -> None:
    digest = CacheKey("demo", query, "model-1").digest(secret)
    assert MIN_TTL_SHARE <= ttl_jitter(digest) <= 1


def test_what_was_stored_together_expires_evenly_over_a_fifth_of_its_life() -> None:
    shares = [ttl_jitter(CacheKey("demo", f"query {number}", "m").digest(b"")) for number in range(2000)]
    tenths = [
        sum(MIN_TTL_SHARE + i / 50 <= share < MIN_TTL_SHARE + (i + 1) / 50 for share in shares) for i in range(10)
    ]
    assert min(tenths) > 140, "of 200 in each tenth"
    assert max(tenths) < 260


@given(SECONDS, SECONDS, DRAW)
def test_a_reader_is_early_exactly_as_often_as_the_formula_says(remaining_s: float, cost_s: float, draw: float) -> None:
    chance = math.exp(-remaining_s / (BETA * cost_s))
    if draw < chance * (1 - 1e-9):
        assert due_early(remaining_s, cost_s, draw)
    if draw > chance * (1 + 1e-9):
        assert not due_early(remaining_s, cost_s, draw)


@given(SECONDS, SECONDS, SECONDS, DRAW)
def test_less_time_left_or_a_dearer_search_never_makes_a_refresh_less_likely(
    remaining_s: float, cost_s: float, more_s: float, draw: float
) -> None:
    if due_early(remaining_s + more_s, cost_s, draw):
        assert due_early(remaining_s, cost_s, draw)
    if due_early(remaining_s, cost_s, draw):
        assert due_early(remaining_s, cost_s + more_s, draw)


@given(SECONDS, DRAW, st.sampled_from([0.0, -1.0, math.nan]))
def test_what_cost_nothing_or_nothing_sensible_is_never_refreshed_early(
    remaining_s: float, draw: float, cost_s: float
) -> None:
    assert not due_early(remaining_s, cost_s, draw)


@pytest.mark.parametrize(("readers_per_s", "least", "most"), [(1000, 0.99, 1.0), (0.2, 0.0, 0.05)])
def test_a_popular_entry_is_refreshed_before_it_expires_and_a_rare_one_is_left_to_expire(
    readers_per_s: float, least: float, most: float
) -> None:
    """A search of 10 ms, a life of 300 s, readers at even steps: how often somebody was early."""
    chance = random.Random(1)
    early = sum(
        any(
            due_early(300 - (reader + 0.5) / readers_per_s, 0.01, 1 - chance.random())
            for reader in range(max(0, int(299 * readers_per_s)), int(300 * readers_per_s))
        )
        for _ in range(200)
    )
    assert least <= early / 200 <= most
