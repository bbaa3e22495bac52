"""An adaptive concurrency limit, for an upstream of unknown capacity: Netflix's Gradient2 with three changes.

The signal is a pace that rises with congestion and not with answer length. The baseline is the pace while at most the
minimum limit is in flight. The limit moves once per round, of as many samples as the limit (16 to 256), by the median:

    ratio = tolerance * baseline / median
    ratio < 1     limit *= max(ratio, 1/2)
    ratio >= 1    limit += min(sqrt(limit), limit * (ratio - 1))     only if the limit was reached in this round

An overload response (429, 503, none), or a queue that the upstream reports, takes a tenth off, once per round. The
minimum and maximum always hold, and no place is given out at or above the limit. Reasons and the cost of
the tolerance: docs/architecture/mechanisms/limits.md.
"""

from __future__ import annotations

import math

from services.core.limit import InflightCap

MIN_ROUND = 16
MAX_ROUND = 256
FASTER_SHARE = 0.2  # how far a faster round moves the baseline towards its median
STEEPEST = 0.5
REFUSED_SHARE = 0.9


class AdaptiveLimit(InflightCap):
    """A cap between `min_limit` and `max_limit` that follows the paces reported when places are given back.

    Raises ValueError unless 1 <= min_limit <= max_limit and the tolerance is above 1 and finite.
    """

    __slots__ = ("_limit", "_paces", "_peak", "_refused", "_stale", "baseline", "max_limit", "min_limit", "tolerance")

    def __init__(self, *, min_limit: int, max_limit: int, tolerance: float = 2.0) -> None:
        if not 1 <= min_limit <= max_limit:
            raise ValueError(f"min_limit must be at least 1 and at most {max_limit}, got {min_limit}")
        if not 1 < tolerance < math.inf:
            raise ValueError(f"tolerance must be above 1 and finite, got {tolerance}")
        self.min_limit = min_limit
        self.max_limit = max_limit
        self.tolerance = tolerance
        self.baseline = math.inf  # until the first round
        super().__init__(cap=min_limit)
        self._limit = float(min_limit)
        self._paces: list[float] = []
        self._stale = 0  # samples to skip: their requests started before the limit last shrank
        self._peak = 0  # highest number in flight in this round
        self._refused = 0  # overload responses of the upstream in this round

    def try_take(self) -> bool:
        """Take a place. False if none is free."""
        taken = super().try_take()
        self._peak = max(self._peak, self.inflight)
        return taken

    def give_back(self, pace: float | None = None, *, overloaded: bool = False) -> None:
        """Give a place back with its pace; None if there is no sample (failed or cancelled).

        `overloaded`: the upstream rejected the request for lack of capacity, or did not answer. Raises ValueError for a
        pace that is not above 0 and finite.
        """
        if self.inflight and pace is not None and not 0 < pace < math.inf:
            raise ValueError(f"a pace is above 0 and finite, got {pace}")
        super().give_back()
        self.learn(pace, overloaded=overloaded)

    def count(self, inflight: int) -> None:
        """So many are in flight, by somebody else's count: instead of `try_take` and `give_back`, with `learn`."""
        self.inflight = inflight
        self._peak = max(self._peak, inflight)

    def learn(self, pace: float | None = None, *, overloaded: bool = False) -> None:
        """A request has ended: as `give_back`, but for the place."""
        if overloaded:
            self._back_off()
        if self._stale:
            self._stale -= 1
        elif pace is not None:
            self._paces.append(pace)
        if len(self._paces) + self._refused >= min(max(self.cap, MIN_ROUND), MAX_ROUND):
            self._end_round()

    def crowded(self) -> None:
        """The upstream reports a queue of its own: counts as an overload response."""
        self._back_off()

    def _back_off(self) -> None:
        if not self._refused:
            self._move(self._limit * REFUSED_SHARE)
        self._refused += 1

    def _end_round(self) -> None:
        if self._paces:
            self._paces.sort()
            self._learn()
            self._follow()
        self._paces.clear()
        self._peak = self.inflight
        self._refused = 0

    def _learn(self) -> None:
        """Set the baseline after a round with few in flight; lower it if three quarters of the samples are faster."""
        median, upper_quartile = self._at(1 / 2), self._at(3 / 4)
        if self._peak <= self.min_limit or self.baseline == math.inf:
            self.baseline = median
        elif upper_quartile < self.baseline:
            self.baseline += FASTER_SHARE * (median - self.baseline)

    def _follow(self) -> None:
        ratio = self.tolerance * self.baseline / self._at(1 / 2)
        if ratio < 1:
            self._move(self._limit * max(ratio, STEEPEST))
            self._stale = self.inflight
        elif self._peak >= self.cap and not self._refused:
            self._move(self._limit + min(math.sqrt(self._limit), self._limit * (ratio - 1)))

    def _at(self, share: float) -> float:
        return self._paces[int(len(self._paces) * share)]

    def _move(self, limit: float) -> None:
        self._limit = min(max(limit, float(self.min_limit)), float(self.max_limit))
        self.cap = int(self._limit)
        assert self.min_limit <= self.cap <= self.max_limit, f"a limit of {limit}: {self!r}"

    def __repr__(self) -> str:
        places = f"{self.inflight}/{self.cap} in {self.min_limit}..{self.max_limit}"
        return f"<AdaptiveLimit {places}, baseline {self.baseline:.3g}>"
