"""A limit on what executes, found by listening: for an upstream whose capacity nobody has announced.

A cap has to be known. Where it is not, it can be heard: a server with too much in flight takes longer. Netflix's
Gradient2 shrinks its limit by the ratio of a long-term time to the present one, and grows it by its square root. The
idea is kept here, and three things are not.

What is listened to. End-to-end time is dominated by the length of the answer, so a gradient on it takes long answers
for congestion. `pace` must rise with congestion and not with length: the time per token, or the time to the first
token over what the prompt's prefill should take.

What it is compared with. A long-term average learns congestion as normal when it lasts. Here the baseline is what the
pace was while at most `least` were in flight, which is where the limit begins. When the upstream becomes slower for
good, the limit shrinks to `least`, learns there what normal is now, and grows again: a probe as Envoy's, made only on
suspicion. A round that was faster draws it down, if three quarters of its samples were: with less, chance alone would
drag it down for ever.

When it moves. Once a round, of as many samples as the limit (16 to 256), on their median:

    ratio = tolerance * baseline / median
    ratio < 1     limit *= max(ratio, 1/2)
    ratio >= 1    limit += min(sqrt(limit), limit * (ratio - 1))     only if the limit was reached in this round

An application that asks for less than the limit learns nothing about it, so then it does not grow (as TCP, RFC 7661).
An upstream that says itself that it has too much (429, 503, no answer) takes a tenth off, once a round.

Bounds: `least <= limit <= most` always, and nobody is let in at or above the limit. At rest, asked for more than it
gives, the pace is `tolerance` times the baseline: a server whose step takes a + b * n then has at least the share
1 - 1 / tolerance of the throughput that it would have without any limit.
"""

from __future__ import annotations

import math

from services.core.limit import InflightCap

LEAST_ROUND = 16
MOST_ROUND = 256
FASTER_SHARE = 0.2  # of a faster round's median, by the baseline
STEEPEST = 0.5
REFUSED_SHARE = 0.9


class AdaptiveLimit(InflightCap):
    """A cap between `least` and `most` that moves by what is heard when places are given back."""

    __slots__ = ("_limit", "_paces", "_peak", "_refused", "_stale", "baseline", "least", "most", "tolerance")

    def __init__(self, *, least: int, most: int, tolerance: float = 2.0) -> None:
        if not 1 <= least <= most:
            raise ValueError(f"least must be at least 1 and at most {most}, got {least}")
        if not 1 < tolerance < math.inf:
            raise ValueError(f"tolerance must be above 1 and finite, got {tolerance}")
        self.least = least
        self.most = most
        self.tolerance = tolerance
        self.baseline = math.inf  # until the first round
        super().__init__(cap=least)
        self._limit = float(least)
        self._paces: list[float] = []
        self._stale = 0  # that many more were started before the limit last shrank, and would shrink it again
        self._peak = 0  # most in flight in this round
        self._refused = 0  # by the upstream, in this round

    def try_take(self) -> bool:
        """Take a place, or say at once that there is none."""
        taken = super().try_take()
        self._peak = max(self._peak, self.inflight)
        return taken

    def give_back(self, pace: float | None = None, *, overloaded: bool = False) -> None:
        """Give a place back, with the pace it had; None where nothing was heard: it failed, or was cancelled.

        `overloaded`: the upstream refused it for want of capacity, or did not answer.
        """
        if self.inflight and pace is not None and not 0 < pace < math.inf:
            raise ValueError(f"a pace is above 0 and finite, got {pace}")
        super().give_back()
        if overloaded:
            self._back_off()
        if self._stale:
            self._stale -= 1
        elif pace is not None:
            self._paces.append(pace)
        if len(self._paces) + self._refused >= min(max(self.cap, LEAST_ROUND), MOST_ROUND):
            self._end_round()

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
        """The baseline: the last round with few in flight; or faster, when three quarters of a round are."""
        median, upper_quartile = self._at(1 / 2), self._at(3 / 4)
        if self._peak <= self.least or self.baseline == math.inf:
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
        self._limit = min(max(limit, float(self.least)), float(self.most))
        self.cap = int(self._limit)
        assert self.least <= self.cap <= self.most, f"a limit of {limit}: {self!r}"

    def __repr__(self) -> str:
        places = f"{self.inflight}/{self.cap} in {self.least}..{self.most}"
        return f"<AdaptiveLimit {places}, baseline {self.baseline:.3g}>"
