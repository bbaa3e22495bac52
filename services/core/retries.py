"""A retry budget: retries are at most a share of first attempts, whatever fails.

Retries of a failing service multiply its load and keep it down after the cause is gone (Bronson et al., "Metastable
Failures in Distributed Systems", HotOS 2021). So first attempts pay for them, as in Finagle and Linkerd and as the SRE
book advises (10 %):

    a retry may go  if  retries + 1 <= share * first attempts + min_per_s * window_s       in the last `window_s`

The second term lets a quiet service retry at all. The window is a ring of ten slices, so it is between 0.9 and 1 times
`window_s` long, and the state is twenty numbers.

Bound: in T seconds, retries <= share * first attempts + min_per_s * window_s * (1 + T / (0.9 * window_s)). Proof: the
last retry was within the budget of its window. Remove that window and take the last retry before it, and so on: the
windows do not overlap, so each first attempt pays once.
"""

from __future__ import annotations

SLICES = 10


class RetryBudget:
    """Call `sent` for each first attempt, and `try_retry` before each retry: True spends one.

    Raises ValueError unless share is from 0 to 1, min_per_s >= 0 and window_s > 0.
    """

    __slots__ = (
        "_first",
        "_retried",
        "_slice",
        "first_in_window",
        "min_per_s",
        "refused_total",
        "retries_in_window",
        "share",
        "window_s",
    )

    def __init__(self, share: float = 0.10, *, min_per_s: float = 1.0, window_s: float = 10.0) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"share must be from 0 to 1, got {share}")
        if not min_per_s >= 0:
            raise ValueError(f"min_per_s must be at least 0, got {min_per_s}")
        if not window_s > 0:
            raise ValueError(f"window_s must be above 0, got {window_s}")
        self.share = share
        self.min_per_s = min_per_s
        self.window_s = window_s
        self.first_in_window = 0
        self.retries_in_window = 0
        self.refused_total = 0
        self._first = [0] * SLICES
        self._retried = [0] * SLICES
        self._slice = 0  # the number of the newest slice since time 0

    def sent(self, now: float) -> None:
        """Count a first attempt."""
        self._advance(now)
        self._first[self._slice % SLICES] += 1
        self.first_in_window += 1

    def try_retry(self, now: float) -> bool:
        """Whether one retry may go now. If so, it is counted."""
        self._advance(now)
        if self.retries_in_window + 1 > self.share * self.first_in_window + self.min_per_s * self.window_s:
            self.refused_total += 1
            return False
        self._retried[self._slice % SLICES] += 1
        self.retries_in_window += 1
        return True

    def _advance(self, now: float) -> None:
        """Drop the slices that have left the window: at most ten, after any pause."""
        newest = int(now * SLICES / self.window_s)
        if newest <= self._slice:
            return
        for number in range(max(self._slice + 1, newest - SLICES + 1), newest + 1):
            self.first_in_window -= self._first[number % SLICES]
            self.retries_in_window -= self._retried[number % SLICES]
            self._first[number % SLICES] = self._retried[number % SLICES] = 0
            assert self.first_in_window >= 0 <= self.retries_in_window, f"more left the window than came: {self!r}"
        self._slice = newest

    def __repr__(self) -> str:
        state = f"{self.retries_in_window} retries for {self.first_in_window} first attempts"
        return f"<RetryBudget {state} in {self.window_s:g} s, refused {self.refused_total}>"
