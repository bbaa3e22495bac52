"""One ranking out of several: nothing is lost, agreement counts, and equals have an order."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from services.retrieval.fusion import fuse

rankings = st.lists(st.integers(0, 30), unique=True, max_size=20)


@given(rankings, rankings)
def test_everything_that_was_found_is_there_once(near: list[int], worded: list[int]) -> None:
    fused = fuse(near, worded)
    assert sorted(fused) == sorted({*near, *worded})


@given(rankings)
def test_one_ranking_alone_stays_what_it_was(ranking: list[int]) -> None:
    assert fuse(ranking) == fuse(ranking, []) == fuse([], ranking) == fuse(ranking, ranking) == ranking


@given(rankings, rankings, st.integers(1, 19))
def test_what_moves_up_in_one_ranking_never_moves_down(near: list[int], worded: list[int], place: int) -> None:
    if place >= len(near):
        return
    item, better = near[place], near.copy()
    better[place - 1], better[place] = better[place], better[place - 1]
    assert fuse(better, worded).index(item) <= fuse(near, worded).index(item)


def test_both_rankings_agreeing_outweighs_the_first_place_in_one() -> None:
    assert fuse(["one", "both"], ["other", "both"]) == ["both", "one", "other"]


def test_equals_stand_in_the_order_of_the_first_ranking() -> None:
    near, worded = list("abcd"), list("wxyz")
    assert fuse(near, worded) == list("awbxcydz")
    assert fuse(near, list("badc")) == list("abcd")
    for _ in range(5):
        random.shuffle(mixed := [*near, *worded])
        assert fuse(mixed[:4], mixed[4:])[:2] == [mixed[0], mixed[4]]
