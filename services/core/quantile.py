"""Quantiles of a stream: a sketch with a stated error and forgetting, and an exact window.

`Sketch` is DDSketch (Masson, Rim, Lee: "DDSketch: a fast and fully-mergeable quantile sketch with relative-error
guarantees", VLDB 2019): it counts samples in buckets whose borders grow geometrically, and bounds the error in value,
not in rank, as long tails need.

    bucket i holds the values in (min_value * g^(i-1), min_value * g^i],      i = ceil(log_g(value / min_value)),

Bound: let x be the q-quantile, the smallest sample that a share q of the weight does not exceed. Then
`|quantile(q) - x| <= alpha * |x|` for `min_value < |x| <= max_value`. Smaller values count as 0, larger ones as
`max_value`. At most `2 * ln(max_value / min_value) / ln(1 + alpha) + 3` buckets; empty ones take no
memory.

Two differences from the paper. A bucket answers with the mean of its samples, so equal samples and the mean are exact;
hence g = 1 + alpha instead of (1 + alpha) / (1 - alpha), and twice as many buckets. And a sample weighs half after
`half_life` more: the weight of *new* samples grows, and all weights are scaled down once in 64 half-lives.

Samples are put into buckets 64 at a time, or before a read: in order, so the result is the same, at a third of the
cost.
`Rolling` is exact over the last `window` samples: a sorted list beside the order of arrival.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import ceil, fsum, inf, log, log1p

_HEAVIEST: float = 2.0**64
"""The weight of a new sample at which all weights are scaled down: rare, and far from overflow."""
_FORGOTTEN = 1e-6
"""Buckets below this weight (a new sample weighs 1) are dropped when weights are scaled down."""
_MAX_PENDING = 64
_ROUNDING = 1e-9
"""Tolerance of a share of the weight: weights are sums of floats."""


class Sketch:
    """Quantiles within a relative error of `alpha`. `quantile` may be up to `refresh` samples behind (or 1 in 8).

    Raises ValueError unless 0 < alpha < 1, half_life >= 1, 0 < min_value < max_value < inf and refresh >= 0.
    """

    __slots__ = (
        "_answers",
        "_buckets",
        "_fresh_until",
        "_growth",
        "_inverse_log_g",
        "_passed",
        "_pending",
        "_scale",
        "_sum",
        "_total",
        "_values",
        "alpha",
        "count",
        "half_life",
        "max_value",
        "min_value",
        "refresh",
    )

    def __init__(
        self,
        alpha: float = 0.01,
        *,
        half_life: float = inf,
        min_value: float = 1e-4,
        max_value: float = 1e7,
        refresh: int = 16,
    ) -> None:
        if not 0 < alpha < 1:
            raise ValueError(f"alpha must be between 0 and 1, got {alpha}")
        if not half_life >= 1:
            raise ValueError(f"half_life must be at least 1 sample, got {half_life}")
        if not 0 < min_value < max_value < inf:
            raise ValueError(f"min_value must be above 0 and below max_value, got {min_value} and {max_value}")
        if refresh < 0:
            raise ValueError(f"refresh must be at least 0 samples, got {refresh}")
        self.alpha = alpha
        self.half_life = half_life
        self.min_value = min_value
        self.max_value = max_value
        self.refresh = refresh
        self.count = 0
        """Samples ever added."""
        self._inverse_log_g = 1.0 / log1p(alpha)
        self._growth = 2.0 ** (1.0 / half_life)
        self._scale = 1.0
        self._total = 0.0
        self._sum = 0.0
        self._buckets: dict[int, list[float]] = {}  # signed index: weight, weight times value
        self._answers: dict[float, float] = {}  # by share, until the next update
        self._values: list[float] = []
        self._passed: list[float] = []  # the weight of all buckets up to this one
        self._fresh_until = 0
        self._pending: list[float | None] = []  # None: no sample, but older ones lose weight

    def add(self, value: float) -> None:
        """Add a sample; earlier samples lose weight. Raises ValueError for NaN."""
        if value != value:
            raise ValueError("a sample must be a number, got nan")
        self.count += 1
        pending = self._pending
        pending.append(value)
        if len(pending) >= _MAX_PENDING:
            self._sort_in()

    def forget(self) -> None:
        """Reduce the weight of all samples as one new sample would."""
        self._pending.append(None)
        if len(self._pending) >= _MAX_PENDING:
            self._sort_in()

    def fade(self, share: float) -> None:
        """Reduce the weight of all samples to this share of it. The next answer takes it into account."""
        self._sort_in()
        self._scale /= share
        self._fresh_until = 0

    def _sort_in(self) -> None:
        """Put the pending samples into their buckets, in order of arrival."""
        buckets, growth, per_log = self._buckets, self._growth, self._inverse_log_g
        min_value, max_value = self.min_value, self.max_value
        mass, total, moments = self._scale, self._total, self._sum
        for value in self._pending:
            mass *= growth
            if mass > _HEAVIEST:
                self._scale, self._total, self._sum = mass, total, moments
                self._scale_down()
                buckets, mass, total, moments = self._buckets, self._scale, self._total, self._sum
            if value is None:
                continue
            if min_value < value <= max_value:
                index = ceil(log(value / min_value) * per_log)
            else:
                index, value = self._at_the_edge(value)
            moment = mass * value
            bucket = buckets.get(index)
            if bucket is None:
                buckets[index] = [mass, moment]
            else:
                bucket[0] += mass
                bucket[1] += moment
            total += mass
            moments += moment
        self._scale, self._total, self._sum = mass, total, moments
        self._pending.clear()

    def _at_the_edge(self, value: float) -> tuple[int, float]:
        """The bucket of a value that is not above 0, too small or too large, and the value that it counts as."""
        size = value if value >= 0 else -value
        if size <= self.min_value:
            return 0, value
        size = min(size, self.max_value)
        index = ceil(log(size / self.min_value) * self._inverse_log_g)
        return (index, size) if value >= 0 else (-index, -size)

    def _scale_down(self) -> None:
        kept = {}
        for index, (mass, moment) in self._buckets.items():
            if mass > _FORGOTTEN * self._scale:
                kept[index] = [mass / self._scale, moment / self._scale]
        self._buckets = kept
        self._total = fsum(mass for mass, _ in kept.values())
        self._sum = fsum(moment for _, moment in kept.values())
        self._scale = 1.0

    @property
    def mean(self) -> float | None:
        """The weighted mean, exact but for values beyond `max_value`; None while empty."""
        self._sort_in()
        return self._sum / self._total if self._total > 0 else None

    @property
    def weight(self) -> float:
        """The weight of all samples, a new one weighing 1: at most about 1.44 half-lives."""
        self._sort_in()
        return self._total / self._scale

    def quantile(self, q: float) -> float | None:
        """The smallest value that a share q of the weight does not exceed; None while empty.

        Raises ValueError unless q is from 0 to 1.
        """
        if self.count >= self._fresh_until:
            self._walk()
        answer = self._answers.get(q)
        return answer if answer is not None else self._answer(q)

    def _answer(self, q: float) -> float | None:
        if not 0 <= q <= 1:
            raise ValueError(f"q must be from 0 to 1, got {q}")
        if not self._values:
            return None
        rank = bisect_left(self._passed, (q - _ROUNDING) * self._passed[-1])
        answer = self._values[min(rank, len(self._values) - 1)]
        if len(self._answers) < _MAX_PENDING:
            self._answers[q] = answer
        return answer

    def _walk(self) -> None:
        self._fresh_until = self.count + 1 + min(self.refresh, self.count // 8)
        self._sort_in()
        values, passed, weight = [], [], 0.0
        for index in sorted(self._buckets):
            bucket = self._buckets[index]
            values.append(bucket[1] / bucket[0] if index else 0.0)
            weight += bucket[0] / self._scale
            passed.append(weight)
        self._values, self._passed = values, passed
        self._answers.clear()

    def buckets(self) -> dict[int, tuple[float, float]]:
        """The (value, weight) of every bucket by its index, in which values ascend; a new sample weighs 1."""
        self._sort_in()
        scale = self._scale
        return {i: (moment / mass if i else 0.0, mass / scale) for i, (mass, moment) in self._buckets.items()}

    def __repr__(self) -> str:
        middle, high = self.quantile(0.5), self.quantile(0.95)
        seen = f"median {middle:g}, q95 {high:g}" if middle is not None and high is not None else "empty"
        return f"<Sketch {seen}, within {self.alpha:.0%}, {self.count} samples in {len(self._buckets)} buckets>"


class Rolling:
    """Exact quantiles of the last `window` samples. Raises ValueError for a window below 1."""

    __slots__ = ("_arrived", "_sorted", "window")

    def __init__(self, window: int) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1 sample, got {window}")
        self.window = window
        self._arrived: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, value: float) -> None:
        """Add a sample, and drop the oldest of a full window. Raises ValueError for NaN."""
        if value != value:
            raise ValueError("a sample must be a number, got nan")
        arrived = self._arrived
        arrived.append(value)
        if len(arrived) > self.window:
            oldest = arrived.popleft()
            if oldest == value:
                return  # common while the system is idle: all samples are equal
            del self._sorted[bisect_left(self._sorted, oldest)]
        insort(self._sorted, value)

    def quantile(self, q: float) -> float | None:
        """The smallest sample that a share q of them does not exceed; None while empty.

        Raises ValueError unless q is from 0 to 1.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"q must be from 0 to 1, got {q}")
        if not self._sorted:
            return None
        return self._sorted[max(0, ceil((q - _ROUNDING) * len(self._sorted)) - 1)]

    def __len__(self) -> int:
        return len(self._sorted)

    def __repr__(self) -> str:
        return f"<Rolling median {self.quantile(0.5)}, {len(self)}/{self.window} samples>"
