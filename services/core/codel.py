"""Limits a standing queue, by CoDel's signal (Nichols and Jacobson, RFC 8289): the *smallest* backlog of a window.

A burst drains to nothing within a window, a standing queue does not. CoDel drops from the head; here queued requests
were promised an answer, so new ones are rejected. The rules are in docs/architecture/mechanisms/standing-queue.md.

Own backlog in seconds, sampled at each of the tenant's starts:     b = (own queued work / share) / R
At the first start after a window of 500 ms (or the target, if longer), with m the smallest b in it:
    m > target      limit := max(target, 0.7 * limit)
    otherwise       limit := limit / 0.7 for every window that passed; no limit once it reaches the slack

One controller per flow: a shared one would let one tenant's queue reject other tenants' requests.
Bound: the limit is at least the target, so a tenant can always have about one service time of work queued.
"""

from __future__ import annotations

from math import inf

WINDOW_S = 0.5
STEP = 0.7


class CoDelLimiter:
    """The limit of one tenant on its predicted wait, in seconds."""

    __slots__ = ("_min_s", "_window_ends", "limit_s")

    def __init__(self) -> None:
        self.limit_s = inf
        self._min_s = inf
        self._window_ends = -inf

    def sample(self, now: float, backlog_s: float, target_s: float, slack_s: float) -> None:
        """Sample at a start, all in seconds: the backlog, the target for it, and the slack of the request."""
        if now >= self._window_ends:
            if self._window_ends > -inf:
                self._judge(1 + int((now - self._window_ends) / WINDOW_S), target_s, slack_s)
            self._window_ends = now + max(WINDOW_S, target_s)
            self._min_s = inf
        self._min_s = min(self._min_s, backlog_s)

    def _judge(self, windows: int, target_s: float, slack_s: float) -> None:
        if self._min_s > target_s:
            self.limit_s = max(target_s, STEP * min(self.limit_s, slack_s))
        else:
            self.limit_s /= STEP ** min(windows, 100)
        if self.limit_s >= slack_s:
            self.limit_s = inf  # the deadline limits the wait

    def __repr__(self) -> str:
        return f"<CoDelLimiter limit {self.limit_s:g} s>"
