"""Fit of the simulated engine's latency model to measured steps.

    duration = a + b * n + c * prefill_tokens        (ms; n: sequences in the step)

Weighted least squares over the median duration of each kind of step (n, prefill_tokens), weighted by 1 / duration, so
that relative errors count. Medians ignore the few steps that were disturbed. No coefficient may be negative: with three
unknowns, trying every subset of them finds the best such fit (Lawson and Hanson, 1974, find it by search). A misleading
fit is refused: too few kinds, durations that fall with more work, or a large residual.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

MIN_SAMPLES = 3  # of one kind, so that the median ignores one disturbed step
MIN_KINDS = 4
MAX_RESIDUAL = 0.5
MAX_DECLINE = 0.1  # share of a typical step, over the whole range of n or prefill_tokens

Kind = tuple[int, int]
"""Sequences in a step, and prompt tokens that it prefilled."""


class CannotFit(Exception):
    """The measurements do not determine a fit. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Point:
    """The median duration of a kind of step."""

    batch_size: int
    prefill_tokens: int
    duration_ms: float

    @property
    def _row(self) -> tuple[float, float, float]:
        return 1.0, float(self.batch_size), float(self.prefill_tokens)

    def expected_ms(self, coefficients: Sequence[float]) -> float:
        return sum(factor * value for factor, value in zip(coefficients, self._row, strict=True))

    def weighed(self) -> tuple[float, ...]:
        """Its row of the equations and its right side, divided by its duration."""
        return tuple(value / self.duration_ms for value in (*self._row, self.duration_ms))


@dataclass(frozen=True, slots=True)
class Fit:
    """The coefficients a, b and c, and how well they fit."""

    step_ms: float
    per_sequence_ms: float
    prefill_ms_per_token: float
    kinds: int
    r_squared: float
    worst_residual: float
    """The largest relative error of a point."""


def typical(samples_ms: Mapping[Kind, Sequence[float]]) -> list[Point]:
    """A point for each kind of step with at least MIN_SAMPLES samples."""
    seen = {kind: durations for kind, durations in samples_ms.items() if len(durations) >= MIN_SAMPLES}
    return [Point(*kind, median(durations)) for kind, durations in sorted(seen.items())]


def fit(points: Sequence[Point]) -> Fit:
    """The best fit. Raises CannotFit."""
    _check(points)
    several = len({point.batch_size for point in points}) > 1
    unknowns = (0, 1, 2) if several else (0, 2)  # one batch size: b cannot be told from a
    rows = [point.weighed() for point in points]
    _check_growth(points, _solve(rows, unknowns) or (0.0, 0.0, 0.0))
    coefficients = _least_squares(rows, unknowns)
    worst, r_squared = _quality(points, coefficients)
    if worst > MAX_RESIDUAL:
        raise CannotFit(
            f"the best line is off by {worst:.0%} at its worst: the engine's step time is not linear, "
            "or another process used the machine. Run it again on an idle machine."
        )
    return Fit(*coefficients, kinds=len(points), r_squared=r_squared, worst_residual=worst)


def _check(points: Sequence[Point]) -> None:
    if any(not 0 < point.duration_ms < math.inf for point in points):
        raise CannotFit("a step took no time, or never ended: this engine is not to be measured")
    if len(points) < MIN_KINDS or len({point.prefill_tokens for point in points}) < 2:
        raise CannotFit(
            f"only {len(points)} kinds of steps were seen {MIN_SAMPLES} times or more, and {MIN_KINDS} are needed, "
            "with prompts of several lengths. Give the engine more slots or context, or ask for more repeats."
        )


def _check_growth(points: Sequence[Point], free: Sequence[float]) -> None:
    """More work must not have taken less time, apart from noise."""
    typical_ms = median(point.duration_ms for point in points)
    highest = (0, max(point.batch_size for point in points), max(point.prefill_tokens for point in points))
    for each, count, what in zip(free[1:], highest[1:], ("running sequence", "prompt token"), strict=True):
        if each * count < -MAX_DECLINE * typical_ms:
            raise CannotFit(
                f"each {what} made steps {-each:.3g} ms shorter: another process used the machine. "
                "Run it again on an idle machine."
            )


def _least_squares(rows: Sequence[Sequence[float]], unknowns: Sequence[int]) -> tuple[float, float, float]:
    """The best coefficients that are all at least 0."""
    best, lowest = (0.0, 0.0, 0.0), math.inf
    for count in range(1, len(unknowns) + 1):
        for free in itertools.combinations(unknowns, count):
            found = _solve(rows, free)
            if found is None or min(found) < 0:
                continue
            missed = sum((sum(map(float.__mul__, found, row)) - row[3]) ** 2 for row in rows)
            if missed < lowest:
                best, lowest = found, missed
    return best


def _solve(rows: Sequence[Sequence[float]], free: Sequence[int]) -> tuple[float, float, float] | None:
    """Least squares over the `free` unknowns, the others 0, by the normal equations. None if they are singular."""
    matrix = [[sum(row[i] * row[j] for row in rows) for j in (*free, 3)] for i in free]
    size = len(free)
    for place in range(size):
        pivot = max(range(place, size), key=lambda row: abs(matrix[row][place]))
        matrix[place], matrix[pivot] = matrix[pivot], matrix[place]
        if abs(matrix[place][place]) < 1e-300:
            return None
        for row in range(size):
            if row != place:
                factor = matrix[row][place] / matrix[place][place]
                matrix[row] = [value - factor * above for value, above in zip(matrix[row], matrix[place], strict=True)]
    found = [0.0, 0.0, 0.0]
    for place, unknown in enumerate(free):
        found[unknown] = matrix[place][size] / matrix[place][place]
    return found[0], found[1], found[2]


def _quality(points: Sequence[Point], coefficients: Sequence[float]) -> tuple[float, float]:
    """The largest relative error, and R squared: the share of the variance that the fit explains."""
    misses = [point.expected_ms(coefficients) - point.duration_ms for point in points]
    worst = max(abs(miss) / point.duration_ms for miss, point in zip(misses, points, strict=True))
    mean_ms = fmean(point.duration_ms for point in points)
    variance = sum((point.duration_ms - mean_ms) ** 2 for point in points)
    return worst, 1 - sum(miss**2 for miss in misses) / variance if variance else 1.0
