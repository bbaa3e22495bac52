"""A retry budget: retries are a share of the traffic, whatever fails.

Retrying a call that failed by chance is cheap; retrying every call to a service that is down triples its load exactly
when it can bear it least, and keeps it down when the cause is gone (Bronson et al., "Metastable Failures in
Distributed Systems", HotOS 2021). So a retry must be paid for by first attempts, as in Finagle and Linkerd and as the
SRE book advises (10 % of requests):

    a retry may go  if  retries + 1 <= share * first attempts + min_per_s * window_s       in the last `window_s`

The second term lets a service with little traffic retry at all.

The window is a ring of ten slices, so its length is between 0.9 and 1 times `window_s`, and the state is twenty numbers
whatever the traffic.

Bound: in T seconds, retries <= share * first attempts + min_per_s * window_s * (1 + T / (0.9 * window_s)). Proof: the
last retry was within the budget of its window. Cut that window off and look at the last retry before it, and so on:
the windows do not overlap, so no first attempt pays twice.
"""

from __future__ import annotations

SLICES = 10


class RetryBudget:
    """Report first attempts with `sent`, and ask `try_retry` before each retry: a True is spent."""

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
        """A first attempt was made."""
        self._turn(now)
        self._first[self._slice % SLICES] += 1
        self.first_in_window += 1

    def try_retry(self, now: float) -> bool:
        """Whether one retry may go now. It counts as made."""
        self._turn(now)
        if self.retries_in_window + 1 > self.share * self.first_in_window + self.min_per_s * self.window_s:
            self.refused_total += 1
            return False
        self._retried[self._slice % SLICES] += 1
        self.retries_in_window += 1
        return True

    def _turn(self, now: float) -> None:
        """Forget the slices that have left the window: at most ten, after any pause."""
        newest = int(now * SLICES / self.window_s)
        for number in range(max(self._slice + 1, newest - SLICES + 1), newest + 1):
            self.first_in_window -= self._first[number % SLICES]
            self.retries_in_window -= self._retried[number % SLICES]
            self._first[number % SLICES] = self._retried[number % SLICES] = 0
            assert self.first_in_window >= 0 <= self.retries_in_window, f"more left the window than came: {self!r}"
        self._slice = max(self._slice, newest)

    def __repr__(self) -> str:
        state = f"{self.retries_in_window} retries for {self.first_in_window} first attempts"
        return f"<RetryBudget {state} in {self.window_s:g} s, refused {self.refused_total}>"
