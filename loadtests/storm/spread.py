"""Latencies as a histogram whose buckets grow by 2 %: a quantile is off by at most that, and memory does not grow."""

from __future__ import annotations

import math
from collections import Counter

GROWTH = 1.02
LEAST_S, MOST_S = 0.0005, 120.0
_LOG = math.log(GROWTH)
_MOST = math.ceil(math.log(MOST_S / LEAST_S) / _LOG)


class Spread:
    """At most some 600 buckets, whatever it is given."""

    __slots__ = ("_buckets", "count")

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0

    def add(self, seconds: float) -> None:
        """One latency."""
        at = 0 if seconds <= LEAST_S else min(math.ceil(math.log(seconds / LEAST_S) / _LOG), _MOST)
        self._buckets[at] += 1
        self.count += 1

    def quantile_ms(self, share: float) -> float | None:
        """The latency that this share of all does not exceed, in milliseconds; None where there was none."""
        if not self.count:
            return None
        left = max(1, math.ceil(share * self.count))
        for at in sorted(self._buckets):
            left -= self._buckets[at]
            if left <= 0:
                break
        return round(LEAST_S * GROWTH**at * 1000, 1)
