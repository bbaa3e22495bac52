"""How far predicted waits are to be believed: every start reveals one.

The wait estimate is a mean under assumptions (the same tenants stay active, the same mix goes on). Its errors are
observed, so they are used:

    quantile(wait) = predicted + quantile of (actual - predicted) over the last WINDOW starts

That is split conformal prediction over a rolling window (Vovk, Gammerman and Shafer 2005): whatever is wrong with the
estimate, the share of waits below its q-quantile tends to q. The error is added. A factor on the prediction, which
Clockwork and others use, explodes where 0.1 ms was predicted and 5 ms were waited, and was worse on every mix that we
simulated: it refused the light tenant beside ten times larger requests for what it had not waited.

Kept per tenant, since a light tenant's waits are short and regular beside a heavy one's. Until a tenant has shown 20,
its class answers for it. An expiry teaches as well, with the wait so far: without, only those who made it would teach.

For admission the error is clamped: never below 0, or luck would make it brave; never above one service time and twice
the prediction, or one bad second could frighten it into admitting nothing, and it would learn nothing more. What is
*published* is not clamped, and its coverage is counted: of the waits predicted at q95, 95 % should have been shorter.
"""

from __future__ import annotations

from services.core.quantile import Rolling

WINDOW = 200
"""Of a tenant. Short enough to forget a burst."""
CLASS_WINDOW = 1000
"""Of a class, whose errors come in waves: it should look back on several."""
ENOUGH = 20
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
    """Errors of the last predictions. What a tenant's learns, its class's (the parent) learns too."""

    __slots__ = ("_errors", "coverage", "parent")

    def __init__(self, parent: Calibration | None = None) -> None:
        self.parent = parent
        self._errors = Rolling(CLASS_WINDOW if parent is None else WINDOW)
        self.coverage = Coverage()

    def learn(self, predicted_s: float, actual_s: float) -> None:
        """A request waited `actual_s`; at the door `predicted_s` had been expected."""
        if self.confident:
            self.coverage.total += 1
            for q in PUBLISHED:
                self.coverage.covered[q] += actual_s <= self.wait_s(predicted_s, q)
        self._errors.add(actual_s - predicted_s)
        if self.parent is not None:
            self.parent.learn(predicted_s, actual_s)

    @property
    def confident(self) -> bool:
        """Whether there is anything to answer with: its own errors, or its class's."""
        return len(self._errors) >= ENOUGH or (self.parent is not None and self.parent.confident)

    def wait_s(self, predicted_s: float, q: float) -> float:
        """The wait that a share q of such requests does not exceed, as far as is known."""
        return max(0.0, predicted_s + self.error_s(q))

    def cautious_s(self, predicted_s: float, service_s: float) -> float:
        """What admission counts with: the wait at q95, its error between 0 and service + 2 * predicted."""
        return predicted_s + min(max(0.0, self.error_s(0.95)), service_s + 2 * predicted_s)

    def error_s(self, q: float) -> float:
        """The error that a share q of predictions does not exceed; 0 while too few are known."""
        if len(self._errors) < ENOUGH:
            return self.parent.error_s(q) if self.parent is not None else 0.0
        # The next one is as likely to fall into any of the n + 1 gaps between n errors.
        return self._errors.quantile(min(1.0, q * (1.0 + 1.0 / len(self._errors)))) or 0.0

    def __repr__(self) -> str:
        shares = ", ".join(f"q{q * 100:g} {self.coverage.share(q) or 0:.1%}" for q in PUBLISHED)
        return f"<Calibration q95 error {self.error_s(0.95) * 1000:.0f} ms, covered {shares} of {self.coverage.total}>"
