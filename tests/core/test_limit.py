"""The hard cap: never above it, never below zero, and never waiting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.limit import InflightCap


@given(cap=st.integers(1, 20), steps=st.lists(st.booleans(), max_size=200))
def test_inflight_never_leaves_its_bounds_and_every_refusal_is_counted(cap: int, steps: list[bool]) -> None:
    limit = InflightCap(cap)
    held = refused = 0
    for take in steps:
        if take:
            took = limit.try_take()
            assert took == (held < cap)
            held += took
            refused += not took
        elif held:
            limit.give_back()
            held -= 1
        assert 0 <= limit.inflight == held <= cap
    assert limit.refused_total == refused


def test_a_place_given_back_twice_is_a_bug_and_says_so() -> None:
    limit = InflightCap(1)
    assert limit.try_take()
    limit.give_back()
    with pytest.raises(RuntimeError, match="twice"):
        limit.give_back()


def test_a_cap_below_one_is_refused_at_construction() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        InflightCap(0)


def test_its_repr_tells_its_state() -> None:
    limit = InflightCap(2)
    limit.try_take()
    assert repr(limit) == "<InflightCap 1/2, refused 0>"
