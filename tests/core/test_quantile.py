"""Sketches against exact quantiles."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.core.quantile import Rolling, Sketch

SHARES = (0.0, 0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 1.0)
DRAWS: dict[str, Callable[[random.Random], float]] = {
    "uniform": lambda r: r.uniform(0.01, 100),
    "exponential": lambda r: r.expovariate(0.2) + 0.001,
    "log-normal over five decades": lambda r: r.lognormvariate(4, 2),
    "Pareto without a mean": lambda r: min(r.paretovariate(0.9), 1e6),
    "two far modes": lambda r: r.gauss(10, 1) if r.random() < 0.9 else r.gauss(9000, 30),
    "few whole lengths": lambda r: float(r.choice((1, 16, 64, 65, 512))),
    "errors of either sign": lambda r: r.gauss(0, 50),
    "mostly nothing": lambda r: 0.0 if r.random() < 0.7 else r.uniform(1, 2),
}
streams = st.builds(
    lambda seed, name, n: [DRAWS[name](rng) for rng in [random.Random(seed)] for _ in range(n)],
    st.integers(0, 2**32),
    st.sampled_from(sorted(DRAWS)),
    st.integers(1, 600),
)


def exact(values: list[float], q: float, half_life: float = math.inf) -> float:
    """The smallest value that a share q of the weight does not exceed, the newest weighing 1."""
    weighed = sorted((value, 2.0 ** (-age / half_life)) for age, value in enumerate(reversed(values)))
    passed = list(accumulate(weight for _, weight in weighed))
    return weighed[min(bisect_left(passed, (q - 1e-9) * passed[-1]), len(weighed) - 1)][0]


def near(answer: float | None, low: float, high: float, sketch: Sketch) -> bool:
    """Whether the answer is within the sketch's error of something between low and high."""
    assert answer is not None
    slack = 1e-9 + (sketch.min_value if min(abs(low), abs(high)) <= sketch.min_value else 0.0)
    return low - sketch.alpha * abs(low) - slack <= answer <= high + sketch.alpha * abs(high) + slack


@given(streams | st.lists(st.floats(-1e7, 1e7), min_size=1), st.sampled_from((0.005, 0.01, 0.05, 0.2)))
def test_every_quantile_is_within_the_stated_relative_error(values: list[float], alpha: float) -> None:
    sketch = Sketch(alpha, refresh=0)
    for value in values:
        sketch.add(value)
    for q in SHARES:
        truth = exact(values, q)
        assert near(sketch.quantile(q), truth, truth, sketch), (q, truth, sketch)


@given(streams, st.sampled_from((1, 3, 20, 200)))
def test_it_is_as_near_while_it_forgets(values: list[float], half_life: int) -> None:
    """The exact quantiles are those of samples that weigh half as much every `half_life` samples."""
    sketch = Sketch(0.01, half_life=half_life, refresh=0)
    for value in values:
        sketch.add(value)
    for q in SHARES[1:-1]:  # the very ends are what scaling down may forget
        low, high = exact(values, q - 1e-4, half_life), exact(values, q + 1e-4, half_life)
        assert near(sketch.quantile(q), low, high, sketch), (q, low, high, sketch)


@given(streams, st.sampled_from((math.inf, 50.0)))
def test_the_mean_is_exact(values: list[float], half_life: float) -> None:
    sketch = Sketch(half_life=half_life)
    for value in values:
        sketch.add(value)
    weights = [2.0 ** (-age / half_life) for age in range(len(values))]
    mean = math.fsum(w * v for w, v in zip(weights, reversed(values), strict=True)) / math.fsum(weights)
    assert sketch.mean == pytest.approx(mean, rel=1e-6, abs=1e-6)
    assert sketch.weight == pytest.approx(math.fsum(weights), rel=1e-4)


def test_equal_samples_are_answered_exactly() -> None:
    sketch = Sketch(0.05, half_life=50)
    for _ in range(1000):
        sketch.add(64)
    assert [sketch.quantile(q) for q in SHARES] == pytest.approx([64] * len(SHARES), rel=1e-12)


def test_after_a_change_the_new_samples_outweigh_the_old_in_one_half_life() -> None:
    sketch = Sketch(0.01, half_life=100, refresh=0)
    for value, n in ((10.0, 5000), (1000.0, 90)):
        for _ in range(n):
            sketch.add(value)
    assert sketch.quantile(0.5) == pytest.approx(10)
    for _ in range(20):
        sketch.add(1000.0)
    assert sketch.quantile(0.5) == pytest.approx(1000)
    assert sketch.weight == pytest.approx(1 / (1 - 2 ** (-1 / 100)))


@given(streams, st.sets(st.integers(0, 600)), st.sampled_from((math.inf, 3.0, 200.0)))
def test_when_it_is_asked_changes_nothing_of_what_it_holds(
    values: list[float], asks: set[int], half_life: float
) -> None:
    """Samples are sorted in when somebody asks, or when enough have come: it must not matter which."""
    asked, unasked = Sketch(half_life=half_life), Sketch(half_life=half_life)
    for at, value in enumerate(values):
        for sketch in (asked, unasked):
            sketch.add(value)
            if at % 7 == 0:
                sketch.forget()
        if at in asks:
            asked.buckets()
    assert asked.buckets() == unasked.buckets()
    assert (asked.mean, asked.weight, asked.count) == (unasked.mean, unasked.weight, len(values))


@given(st.lists(st.floats(-1e12, 1e12) | st.floats(-1e-9, 1e-9), max_size=2000))
@settings(max_examples=30)
def test_its_buckets_are_bounded_whatever_comes(values: list[float]) -> None:
    sketch = Sketch(0.2, min_value=1e-3, max_value=1e6)
    for value in [*values, math.inf, -math.inf]:
        sketch.add(value)
    assert len(sketch.buckets()) <= 2 * math.log(1e6 / 1e-3) / math.log1p(0.2) + 3
    assert sketch.quantile(1.0) == pytest.approx(1e6)
    assert sketch.quantile(0.0) == pytest.approx(-1e6)


def test_old_buckets_are_let_go() -> None:
    sketch = Sketch(0.01, half_life=2)
    for k in range(10_000):
        sketch.add(1.01**k if k < 1000 else 5.0)
    assert len(sketch.buckets()) == 1


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.integers(0, 40))
def test_an_answer_is_never_staler_than_it_says(values: list[float], refresh: int) -> None:
    sketch = Sketch(0.01, refresh=refresh)
    answers: list[float | None] = []
    for n, value in enumerate(values, start=1):
        sketch.add(value)
        fresh = Sketch(0.01, refresh=0)
        for earlier in values[:n]:
            fresh.add(earlier)
        answers.append(fresh.quantile(0.9))
        behind = min(refresh, n // 8)
        assert sketch.quantile(0.9) in answers[n - 1 - behind :]


def test_empty_it_says_none() -> None:
    assert Sketch().quantile(0.5) is None
    assert Sketch().mean is None
    assert "empty" in repr(Sketch())
    assert Rolling(3).quantile(0.5) is None


def test_nan_is_refused_and_leaves_no_trace() -> None:
    sketch, rolling = Sketch(), Rolling(3)
    with pytest.raises(ValueError, match="nan"):
        sketch.add(math.nan)
    with pytest.raises(ValueError, match="nan"):
        rolling.add(math.nan)
    assert (sketch.count, sketch.weight, len(rolling)) == (0, 0, 0)


@pytest.mark.parametrize(
    "arguments",
    [{"alpha": 0}, {"alpha": 1}, {"half_life": 0}, {"min_value": 0}, {"min_value": 2, "max_value": 1}, {"refresh": -1}],
)
def test_a_sketch_that_cannot_be_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Sketch(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("q", [-0.1, 1.1])
def test_a_share_is_from_0_to_1(q: float) -> None:
    with pytest.raises(ValueError, match="q must be"):
        Sketch().quantile(q)
    with pytest.raises(ValueError, match="q must be"):
        Rolling(1).quantile(q)


@given(st.lists(st.floats(allow_nan=False) | st.sampled_from((0.0, -0.0, 1.0)), min_size=1), st.integers(1, 20))
def test_a_rolling_window_is_exact(values: list[float], window: int) -> None:
    rolling = Rolling(window)
    for n, value in enumerate(values, start=1):
        rolling.add(value)
        last = values[max(0, n - window) : n]
        assert len(rolling) == len(last)
        for q in SHARES:
            assert rolling.quantile(q) == exact(last, q)


def test_a_window_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="window"):
        Rolling(0)


def test_their_repr_tells_what_they_saw() -> None:
    sketch, rolling = Sketch(), Rolling(5)
    for value in (1.0, 2.0, 3.0):
        sketch.add(value)
        rolling.add(value)
    assert repr(sketch) == "<Sketch median 2, q95 3, within 1%, 3 samples in 3 buckets>"
    assert repr(rolling) == "<Rolling median 2.0, 3/5 samples>"
