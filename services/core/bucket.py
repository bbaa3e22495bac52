"""A token bucket that keeps one number, as the generic cell rate algorithm does (GCRA, ITU-T I.371).

    full_at                             when the bucket will be full if nothing is taken
    tokens(now)  = burst - max(0, full_at - now) * rate
    take n       : full_at = max(full_at, now) + n / rate       if n <= tokens(now)

No timer fills the bucket. Bound: what is taken in any t seconds, less what is given back, is at most burst + rate * t.
After `wait_s` the same take succeeds if nothing was taken in between.
"""

from __future__ import annotations

import math

_ROUNDING = 1e-9
"""Share of the burst that may be missing: times are floats."""


class Bucket:
    """Takes at once or not at all. `n` is in the unit of the rate: requests, tokens, bytes.

    Raises ValueError unless rate and burst are above 0 and finite.
    """

    __slots__ = ("_full_at", "burst", "rate_per_s")

    def __init__(self, rate_per_s: float, burst: float) -> None:
        if not 0 < rate_per_s < math.inf:
            raise ValueError(f"rate_per_s must be above 0 and finite, got {rate_per_s}")
        if not 0 < burst < math.inf:
            raise ValueError(f"burst must be above 0 and finite, got {burst}")
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._full_at = -math.inf

    def tokens(self, now: float) -> float:
        """What can be taken now."""
        return self.burst - max(0.0, self._full_at - now) * self.rate_per_s

    def try_take(self, now: float, n: float = 1.0) -> bool:
        """Take `n` and return True, or take nothing and return False. Raises ValueError if `n` is negative."""
        if n < 0:
            raise ValueError(f"n must be at least 0, got {n}")
        if n > self.tokens(now) + self.burst * _ROUNDING:
            return False
        self._full_at = max(self._full_at, now) + n / self.rate_per_s
        assert now <= self._full_at < math.inf, f"{n} were taken at {now:g}: {self!r}"
        return True

    def wait_s(self, now: float, n: float = 1.0) -> float:
        """Seconds until `n` can be taken if nothing else is taken; infinite for more than the burst."""
        if n > self.burst:
            return math.inf
        return max(0.0, (n - self.tokens(now)) / self.rate_per_s)

    def give_back(self, now: float, n: float) -> None:
        """Return unused tokens. A full bucket stays full. Raises ValueError if `n` is negative."""
        if n < 0:
            raise ValueError(f"n must be at least 0, got {n}")
        self._full_at = max(self._full_at, now) - n / self.rate_per_s

    def __repr__(self) -> str:
        return f"<Bucket {self.rate_per_s:g}/s, burst {self.burst:g}, full at {self._full_at:g}>"
