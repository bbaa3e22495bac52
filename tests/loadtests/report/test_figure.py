"""A figure holds its target or misses it, and is told as people write it."""

from __future__ import annotations

import math

import pytest

from loadtests.report.figure import Figure, at_least, at_most, formatted


@pytest.mark.parametrize(
    ("figure", "held"),
    [
        (at_least("a", 0.97, 0.97), True),
        (at_least("a", 0.969, 0.97), False),
        (at_most("a", 5, 5), True),
        (at_most("a", 5.01, 5), False),
        (at_most("a", math.nan, 5), False),
        (Figure("a", 1), None),
    ],
)
def test_a_figure_holds_its_target_or_does_not(figure: Figure, held: bool | None) -> None:
    assert figure.held is held


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.9931, "%", "99.31 %"),
        (1234.4, "ms", "1,234 ms"),
        (3.456, "ms", "3.46 ms"),
        (0.0, "", "0"),
        (0.974, "", "0.97"),
    ],
)
def test_values_are_told_as_people_write_them(value: float, unit: str, text: str) -> None:
    assert formatted(value, unit) == text
