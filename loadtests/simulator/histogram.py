"""Quantiles from logarithmic buckets that grow by 2 %: within 1 %, in a few hundred counters.

As the core's DDSketch (Masson et al., VLDB 2019), but without forgetting, and two histograms can be merged.
"""

from __future__ import annotations

import math

from loadtests.simulator.report import Quantiles

GROWTH = 1.02
_SCALE = 1.0 / math.log(GROWTH)
_SMALLEST = 1e-6  # smaller values count as 0
_ZERO = math.floor(math.log(_SMALLEST) * _SCALE)


class Histogram:
    """Counts of values of at least 0."""

    __slots__ = ("count", "counts", "largest", "total")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.count = 0
        self.total = 0.0
        self.largest = 0.0

    def add(self, value: float) -> None:
        bucket = math.floor(math.log(value) * _SCALE) if value > _SMALLEST else _ZERO
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.count += 1
        self.total += value
        if value > self.largest:
            self.largest = value

    def merge(self, other: Histogram) -> None:
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.count += other.count
        self.total += other.total
        self.largest = max(self.largest, other.largest)

    def quantile(self, q: float) -> float | None:
        """The q-quantile, 0 to 1; None without values."""
        if not self.count:
            return None
        left = q * self.count
        for bucket in sorted(self.counts):
            left -= self.counts[bucket]
            if left <= 0:
                return 0.0 if bucket == _ZERO else min(self.largest, GROWTH ** (bucket + 0.5))
        return self.largest

    def quantiles(self) -> Quantiles:
        if not self.count:
            return Quantiles()
        p50, p90, p95, p99 = (self.quantile(q) for q in (0.5, 0.9, 0.95, 0.99))
        return Quantiles(self.count, self.total / self.count, p50, p90, p95, p99, self.largest)

    def __repr__(self) -> str:
        return f"<Histogram of {self.count} values, p50 {self.quantile(0.5)}>"
