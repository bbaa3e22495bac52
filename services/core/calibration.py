"""How far predicted waits are to be believed: every start reveals one.

The wait estimate is a mean under assumptions (the same tenants stay active, the same mix goes on). Its errors are
observed, so they are used:

    quantile(wait) = predicted + quantile of (actual - predicted) over the last WINDOW starts, at level l
    l := l + STEP * q          when the wait was longer than predicted at q
    l := l - STEP * (1 - q)    when it was not

The first line is split conformal prediction over a rolling window (Vovk, Gammerman and Shafer 2005), which is exact
while errors are exchangeable. Those of a queue come in waves. The other two are adaptive conformal inference (Gibbs and
Candes, NeurIPS 2021): over T starts the share below tends to q, within 2 / (STEP * T), whatever the errors do, as long
as the level is not at its end. Where they promise infinity, above level 1, this reaches beyond the largest error of the
window, by (l - 1) times their spread, up to level MOST: a window shorter than a wave sees only one half of it. Errors
that grow faster than that are not covered.

Levels move apart from each other and could cross, so what is published is put in order.

The error is added. A factor on the prediction, which Clockwork and others use, explodes where 0.1 ms was predicted and
5 ms were waited: at equal coverage it told the light tenant beside ten times larger requests half as much again. Where
lengths are unknown and waits vary over decades the factor is the better one (decision 017 has the table).

Kept per tenant, since a light tenant's waits are short and regular beside a heavy one's. Until a tenant has shown 20,
its class answers for it. An expiry teaches as well, with the wait so far: without, only those who made it would teach.

For admission the error is clamped: never below 0, or luck would make it brave; never above one service time and twice
the prediction, or one bad second could frighten it into admitting nothing, and it would learn nothing more. What is
*published* is not clamped, and its coverage is counted: of the waits predicted at q95, 95 % should have been shorter.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.core.quantile import Rolling

WINDOW = 200
"""Of a tenant. Short enough to forget a burst."""
CLASS_WINDOW = 1000
"""Of a class, whose errors come in waves: it should look back on several."""
ENOUGH = 20
REFRESH = 4
"""Samples between two looks at the quantiles."""
STEP = 0.02
MOST = 1.5
PUBLISHED = (0.5, 0.9, 0.95)
STEPS = tuple((STEP * q, STEP * (q - 1.0)) for q in PUBLISHED)
"""Of a level, after a wait that was longer than predicted, and after one that was not."""
NO_ERRORS = (0.0,) * len(PUBLISHED)


class Coverage:
    """Of predictions at each published quantile, how many turned out long enough."""

    __slots__ = ("_first_at", "total")

    def __init__(self) -> None:
        self.total = 0
        self._first_at = [0] * (len(PUBLISHED) + 1)  # the lowest quantile that was long enough; the last: none was

    def count(self, actual_s: float, predicted_s: float, errors_s: Sequence[float]) -> None:
        """A wait, what had been predicted for it, and the errors at each quantile, in order."""
        self.total += 1
        place = 0
        if actual_s > 0.0:
            for error_s in errors_s:
                if actual_s <= predicted_s + error_s:
                    break
                place += 1
        self._first_at[place] += 1

    def share(self, q: float) -> float | None:
        """The share of actual waits at or below the prediction at q; None without any."""
        covered = sum(self._first_at[: PUBLISHED.index(q) + 1])
        return covered / self.total if self.total else None


class WaitCalibration:
    """Errors of the last predictions. What a tenant's learns, its class's (the parent) learns too."""

    __slots__ = ("_errors", "_levels", "_ordered_s", "_stale_in", "coverage", "errors_s", "parent")

    def __init__(self, parent: WaitCalibration | None = None) -> None:
        self.parent = parent
        self.coverage: Coverage = parent.coverage if parent is not None else Coverage()
        self._errors: Rolling | None = None  # made with the first: many tenants never start anything
        self.errors_s: Sequence[float] = NO_ERRORS
        """The errors at the published quantiles, up to REFRESH samples old; zeros while too few are known."""
        self._ordered_s: Sequence[float] = NO_ERRORS  # the same, ascending: levels may cross
        self._levels = PUBLISHED
        self._stale_in = ENOUGH

    def learn(self, predicted_s: float, actual_s: float) -> None:
        """A request waited `actual_s`; at the door `predicted_s` had been expected."""
        error_s = actual_s - predicted_s
        who = self.answering
        if who is not None:
            self.coverage.count(actual_s, predicted_s, who._ordered_s)
            who._adapt(error_s)
        self._add(error_s)
        if self.parent is not None:
            self.parent._add(error_s)

    def _adapt(self, error_s: float) -> None:
        # Written out, not looped over: every start comes through here.
        median_s, high_s, highest_s = self.errors_s
        median, high, highest = self._levels
        median += STEPS[0][error_s <= median_s]
        high += STEPS[1][error_s <= high_s]
        highest += STEPS[2][error_s <= highest_s]
        self._levels = (
            median if 0.0 <= median <= MOST else max(0.0, min(median, MOST)),
            high if 0.0 <= high <= MOST else max(0.0, min(high, MOST)),
            highest if 0.0 <= highest <= MOST else max(0.0, min(highest, MOST)),
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
        # The next one is as likely to fall into any of the n + 1 gaps between n errors.
        error_s = errors.quantile(min(1.0, level * (1.0 + 1.0 / len(errors)))) or 0.0
        if level <= 1.0:
            return error_s
        return error_s + (level - 1.0) * (error_s - (errors.quantile(0.0) or 0.0))

    @property
    def answering(self) -> WaitCalibration | None:
        """Who has seen enough to answer: it, its class, or nobody yet."""
        if self.errors_s is not NO_ERRORS:
            return self
        return self.parent.answering if self.parent is not None else None

    def waits_s(self, predicted_s: float) -> list[float]:
        """The wait at each of the published quantiles, as far as is known."""
        who = self.answering
        errors_s = who._ordered_s if who is not None else NO_ERRORS
        return [max(0.0, predicted_s + error_s) for error_s in errors_s]

    def cautious_s(self, predicted_s: float, service_s: float) -> float:
        """What admission counts with: the wait at q95, its error between 0 and service + 2 * predicted."""
        who = self.answering
        if who is None:
            return predicted_s
        return predicted_s + min(max(0.0, who.errors_s[-1]), service_s + 2 * predicted_s)

    def __repr__(self) -> str:
        shares = ", ".join(f"q{q * 100:g} {self.coverage.share(q) or 0:.1%}" for q in PUBLISHED)
        who = self.answering
        error_s = who.errors_s[-1] if who is not None else 0.0
        return f"<WaitCalibration q95 error {error_s * 1000:.0f} ms, covered {shares} of {self.coverage.total}>"
