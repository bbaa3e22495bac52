"""The arithmetic of a semantic cache's errors, and the question set itself."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.bench.search.semantic import (
    MAX_WRONG,
    Group,
    Lookup,
    Point,
    chosen,
    curve,
    look_up,
    read,
    result,
    upper_bound,
    verdict,
)  # fmt: skip
from loadtests.report.result import markdown
from services.retrieval.config import MIN_THRESHOLD, RetrievalSettings
from services.retrieval.minilm import DIMENSIONS, Floats

PAGE = Path(__file__).parents[3] / "docs" / "results" / "semantic.md"
ROW = re.compile(r"^\| (0\.\d\d) \| ([\d.]+)% \| \d+ \| [\d.]+% \| ([\d.]+)% \|$", re.MULTILINE)


def test_the_set_has_enough_groups_each_with_other_words_and_near_misses():
    groups = read()
    assert len(groups) >= 120
    for group in groups:
        assert len(group.same) >= 2, group.asked
        assert len(group.other) >= 2, group.asked
        assert len({group.asked, *group.same, *group.other}) == 1 + len(group.same) + len(group.other), group.asked


def test_no_question_stands_for_two_groups():
    own = [question for group in read() for question in (group.asked, *group.same)]
    assert sorted(own) == sorted(set(own))


def words(texts: Sequence[str]) -> Floats:
    """A text's direction is that of its numbers: "3 4" points to (3, 4)."""
    rows = np.zeros((len(texts), DIMENSIONS), np.float32)
    for row, text in zip(rows, texts, strict=True):
        row[:2] = [float(word) for word in text.split()]
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_a_lookup_is_right_only_if_its_own_group_is_nearest_and_it_is_no_near_miss():
    groups = [Group("1 0", same=["1 0.1", "0.1 1"], other=["1 0.2"]), Group("0 1", same=["0 2"], other=["1 0"])]
    found = {each.question: each for each in look_up(groups, words)}
    assert {question: (each.nearest, each.right) for question, each in found.items()} == {
        "1 0.1": ("1 0", True),
        "0.1 1": ("0 1", False),
        "1 0.2": ("1 0", False),
        "0 2": ("0 1", True),
        "1 0": ("0 1", False),
    }, "what is kept word for word is left out of its own look-up"


def lookups(*cosines: tuple[float, bool, bool]) -> list[Lookup]:
    return [Lookup("q", "n", cosine, right, near_miss) for cosine, right, near_miss in cosines]


def test_a_threshold_counts_what_reaches_it():
    found = lookups((0.95, True, False), (0.90, True, False), (0.92, False, False), (0.91, False, True))
    assert [(point.hits, point.wrong, point.hit_rate) for point in curve(found, [0.90, 0.92, 0.95])] == [
        (2, 2, 2 / 3),
        (1, 1, 1 / 3),
        (1, 0, 1 / 3),
    ]


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.booleans()), min_size=1))
def test_a_higher_threshold_never_finds_more_nor_errs_more(found: list[tuple[float, bool, bool]]):
    points = curve(lookups((0.5, True, False), *found))
    assert all(lower.hits >= higher.hits for lower, higher in itertools.pairwise(points))
    assert all(lower.wrong >= higher.wrong for lower, higher in itertools.pairwise(points))


@pytest.mark.parametrize(
    ("wrong", "of", "bound"), [(0, 299, 0.00997), (0, 100, 0.02951), (1, 100, 0.04656), (10, 100, 0.16372), (5, 5, 1.0)]
)
def test_the_bound_is_that_of_clopper_and_pearson(wrong: int, of: int, bound: float):
    """Values of the beta distribution's quantile, as tables have them."""
    assert upper_bound(wrong, of) == pytest.approx(bound, abs=2e-5)


def point(threshold: float, wrong: int, hits: int = 10) -> Point:
    return Point(threshold, paraphrases=300, near_misses=300, hits=hits, wrong=wrong)


def test_the_lowest_threshold_is_chosen_from_which_on_all_are_safe_by_the_bound_and_not_by_what_was_seen():
    assert chosen([point(0.7, 50), point(0.8, 1), point(0.9, 0)]) == point(0.8, 1)
    assert chosen([point(0.7, 0), point(0.8, 9), point(0.9, 0)]) == point(0.9, 0)
    assert point(0.8, 3).wrong_rate < MAX_WRONG < point(0.8, 3).wrong_at_most
    assert chosen([point(0.8, 3)]) is None


def test_the_page_says_plainly_whether_any_threshold_is_of_use():
    assert "off by default" in verdict(None)
    assert "off by default" in verdict(point(0.99, 0, hits=0))
    assert verdict(point(0.93, 1)).startswith("**0.93 is the lowest safe threshold:** 3.3% of the paraphrases")
    made = result([point(0.99, 0)], lookups((0.9, False, True)), {"a look-up": 70.4}, on="a model")
    text = markdown(made, command="", machine="here")
    assert "| 0.99 | 3.3% | 0 | 0.0% | 0.5% |" in text
    assert "| a look-up | 70 |" in text


def test_the_least_threshold_that_may_be_set_is_the_lowest_that_was_measured_to_be_safe():
    rows = [(float(row[1]), float(row[2]), float(row[3])) for row in ROW.finditer(PAGE.read_text(encoding="utf-8"))]
    assert len(rows) == 30
    unsafe = [threshold for threshold, _, at_most in rows if at_most > 100 * MAX_WRONG]
    assert min(threshold for threshold, _, _ in rows if threshold > max(unsafe)) == MIN_THRESHOLD
    found = next(hits for threshold, hits, _ in rows if threshold == MIN_THRESHOLD)
    default = RetrievalSettings.model_fields["semantic_threshold"].default
    assert default == (MIN_THRESHOLD if found > 0 else 0.0)
