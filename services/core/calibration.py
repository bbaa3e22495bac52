"""Quantiles of the wait, from the errors of past predictions: docs/architecture/mechanisms/calibration.md.

    quantile(wait) = predicted + quantile of (actual - predicted) over the last WINDOW starts, at level l
    l := l + STEP * q          when the wait was longer than predicted at q
    l := l - STEP * (1 - q)    otherwise

The first line is split conformal prediction (Vovk, Gammerman and Shafer 2005), the others are adaptive conformal
inference (Gibbs and Candes, NeurIPS 2021): over T starts, coverage is within 2 / (STEP * T) of q while the level is not
at an end. Errors that keep growing are not covered.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.core.quantile import Rolling

WINDOW = 200
"""Starts of a tenant; short enough to forget a burst."""
CLASS_WINDOW = 1000
"""Starts of a class; long enough for several waves of errors."""
ENOUGH = 20
"""Starts from which a tenant's own errors are used, not its class's."""
REFRESH = 4
"""Samples between two updates of the published quantiles."""
STEP = 0.02
MAX_LEVEL = 1.5
"""The highest level."""
PUBLISHED = (0.5, 0.9, 0.95)
UP, DOWN = tuple(STEP * q for q in PUBLISHED), tuple(STEP * (q - 1.0) for q in PUBLISHED)
"""Change of a level after a wait longer than predicted, and after any other."""
NO_ERRORS = (0.0,) * len(PUBLISHED)


class Coverage:
    """The share of waits that were within the prediction, at each published quantile."""

    __slots__ = ("_first_at", "total")

    def __init__(self) -> None:
        self.total = 0
        self._first_at = [0] * (len(PUBLISHED) + 1)  # waits by the lowest quantile that was long enough; the last: none

    def count(self, actual_s: float, predicted_s: float, errors_s: Sequence[float]) -> None:
        """Count a wait, its prediction, and the errors at each quantile in ascending order, all in seconds."""
        self.total += 1
        place = 0
        if actual_s > 0.0:
            for error_s in errors_s:
                if actual_s <= predicted_s + error_s:
                    break
                place += 1
        self._first_at[place] += 1

    def share(self, q: float) -> float | None:
        """The share of actual waits at or below the prediction at q; None without waits."""
        covered = sum(self._first_at[: PUBLISHED.index(q) + 1])
        return covered / self.total if self.total else None


class WaitCalibration:
    """The errors of the last predictions of a tenant. Its class (the parent) gets the same samples."""

    __slots__ = ("_errors", "_levels", "_ordered_s", "_stale_in", "coverage", "errors_s", "parent")

    def __init__(self, parent: WaitCalibration | None = None) -> None:
        self.parent = parent
        self.coverage: Coverage = parent.coverage if parent is not None else Coverage()
        self._errors: Rolling | None = None  # made with the first sample: many tenants never start a request
        self.errors_s: Sequence[float] = NO_ERRORS
        """The errors at the published quantiles, up to REFRESH samples old; zeros while fewer than ENOUGH are known."""
        self._ordered_s: Sequence[float] = NO_ERRORS  # the same, ascending: levels may cross
        self._levels = PUBLISHED
        self._stale_in = ENOUGH

    def learn(self, predicted_s: float, actual_s: float) -> None:
        """Add a sample: a request waited `actual_s`, and `predicted_s` was predicted at admission."""
        error_s = actual_s - predicted_s
        source = self.answering
        if source is not None:
            self.coverage.count(actual_s, predicted_s, source._ordered_s)
            source._adapt(error_s)
        self._add(error_s)
        if self.parent is not None:
            self.parent._add(error_s)

    def _adapt(self, error_s: float) -> None:
        # Unrolled: this runs at every start.
        median_s, high_s, highest_s = self.errors_s
        median, high, highest = self._levels
        self._levels = (
            max(0.0, median + DOWN[0]) if error_s <= median_s else min(median + UP[0], MAX_LEVEL),
            max(0.0, high + DOWN[1]) if error_s <= high_s else min(high + UP[1], MAX_LEVEL),
            max(0.0, highest + DOWN[2]) if error_s <= highest_s else min(highest + UP[2], MAX_LEVEL),
        )

    def _add(self, error_s: float) -> None:
        if self._errors is None:
            self._errors = Rolling(CLASS_WINDOW if self.parent is None else WINDOW)
        self._errors.add(error_s)
        self._stale_in -= 1
        if self._stale_in <= 0:
            self._stale_in = REFRESH
            self.errors_s = [self._error_s(self._errors, level) for level in self._levels]
            self._ordered_s = sorted(self.errors_s)

    @staticmethod
    def _error_s(errors: Rolling, level: float) -> float:
        # A new error is equally likely to fall into any of the n + 1 gaps between n errors.
        error_s = errors.quantile(min(1.0, level * (1.0 + 1.0 / len(errors)))) or 0.0
        if level <= 1.0:
            return error_s
        return error_s + (level - 1.0) * (error_s - (errors.quantile(0.0) or 0.0))

    @property
    def answering(self) -> WaitCalibration | None:
        """The calibration that has enough samples: this one, its class's, or None."""
        if self.errors_s is not NO_ERRORS:
            return self
        return self.parent.answering if self.parent is not None else None

    def waits_s(self, predicted_s: float) -> list[float]:
        """The wait in seconds at each published quantile; the prediction itself while no errors are known."""
        source = self.answering
        errors_s = source._ordered_s if source is not None else NO_ERRORS
        return [max(0.0, predicted_s + error_s) for error_s in errors_s]

    def cautious_s(self, predicted_s: float, service_s: float) -> float:
        """The wait for admission: at q95, with an error between 0 and service + 2 * predicted.

        A negative error would admit too much after a lucky spell. Without an upper limit one bad second could stop all
        admissions, and with them all samples.
        """
        source = self.answering
        if source is None:
            return predicted_s
        return predicted_s + min(max(0.0, source.errors_s[-1]), service_s + 2 * predicted_s)

    def __repr__(self) -> str:
        shares = ", ".join(f"q{q * 100:g} {self.coverage.share(q) or 0:.1%}" for q in PUBLISHED)
        source = self.answering
        error_s = source.errors_s[-1] if source is not None else 0.0
        return f"<WaitCalibration q95 error {error_s * 1000:.0f} ms, covered {shares} of {self.coverage.total}>"
