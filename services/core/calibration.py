"""How far the predicted waits are to be believed: every start reveals one.

The wait estimate is a mean under assumptions (the same tenants stay active, the same mix goes on). Its errors are
observed, so they are used: the quantile of what was measured against what was predicted turns a mean into a quantile.

    predicted >= half a service time:   quantile(wait) = quantile of (actual / predicted) * predicted
    below it:                           quantile(wait) = predicted + quantile of (actual - predicted)

A ratio serves long waits, whose error grows with them. For short ones it explodes (0.1 ms predicted, 5 ms waited) and
would refuse the light tenant, whose predictions are the short ones. An expiry teaches as well, with the wait so far:
leaving it out would teach from those that made it only.

The idea is that of conformal prediction over a rolling window (Vovk et al. 2005). For admission the factor is clamped
to [1, 3]: never braver than the mean, and never so frightened by one bad second that nothing is admitted and nothing
learned. What is *published* is not clamped, and its coverage is counted: of the waits that were predicted at q95, 95 %
should have been shorter.
"""

from __future__ import annotations

from services.core.quantile import Rolling

WINDOW = 200
ENOUGH = 20
LEAST_FACTOR, MOST_FACTOR = 1.0, 3.0
PUBLISHED = (0.5, 0.9, 0.95)


class Coverage:
    """Of predictions at each published quantile, how many turned out long enough."""

    __slots__ = ("covered", "total")

    def __init__(self) -> None:
        self.total = 0
        self.covered = dict.fromkeys(PUBLISHED, 0)

    def share(self, q: float) -> float | None:
        """The share of actual waits at or below the prediction at q; None without any."""
        return self.covered[q] / self.total if self.total else None


class Calibration:
    """Errors of the last 200 predictions of each kind, of one class."""

    __slots__ = ("_errors", "_ratios", "coverage")

    def __init__(self) -> None:
        self._ratios = Rolling(WINDOW)
        self._errors = Rolling(WINDOW)
        self.coverage = Coverage()

    def learn(self, predicted_s: float, actual_s: float, service_s: float) -> None:
        """A request waited `actual_s`; at the door `predicted_s` had been expected."""
        long = predicted_s >= 0.5 * service_s
        if len(self._ratios if long else self._errors) >= ENOUGH:
            self.coverage.total += 1
            for q in PUBLISHED:
                self.coverage.covered[q] += actual_s <= self.wait_s(predicted_s, service_s, q)
        if long:
            self._ratios.add(actual_s / predicted_s if predicted_s > 0 else 1.0)
        else:
            self._errors.add(actual_s - predicted_s)

    def wait_s(self, predicted_s: float, service_s: float, q: float) -> float:
        """The wait that a share q of such requests does not exceed, as far as is known."""
        if predicted_s >= 0.5 * service_s:
            return predicted_s * (self._known(self._ratios, q) or 1.0)
        return max(0.0, predicted_s + (self._known(self._errors, q) or 0.0))

    def cautious_s(self, predicted_s: float, service_s: float) -> float:
        """What admission counts with: the wait at q95, with its factor clamped."""
        if predicted_s >= 0.5 * service_s:
            return predicted_s * self.kappa
        return predicted_s + min(max(0.0, self._known(self._errors, 0.95) or 0.0), service_s)

    @property
    def kappa(self) -> float:
        """The factor on long waits at q95, between 1 and 3."""
        return min(max(self._known(self._ratios, 0.95) or LEAST_FACTOR, LEAST_FACTOR), MOST_FACTOR)

    @staticmethod
    def _known(samples: Rolling, q: float) -> float | None:
        return samples.quantile(q) if len(samples) >= ENOUGH else None

    def __repr__(self) -> str:
        shares = ", ".join(f"q{q * 100:g} {self.coverage.share(q) or 0:.1%}" for q in PUBLISHED)
        return f"<Calibration kappa {self.kappa:.2f}, covered {shares} of {self.coverage.total}>"
