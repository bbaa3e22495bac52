"""A queue that stands buys nothing: let bursts through, and keep a line that never empties short.

Under steady overload the throughput is what it is. A long line then refuses as many as a short one, and only makes
those who are admitted wait. But a burst may use all the time its deadline leaves. What tells the two apart is the
*smallest* backlog over a while: a burst drains to nothing, a standing queue does not. That is CoDel's insight (Nichols
and Jacobson, RFC 8289). CoDel drops at the head, from a line whose senders will notice; here those who stand in line
have been promised an answer, so the control is at the door and turns newcomers away.

Own backlog in seconds, sampled at each of the tenant's starts:     b = (own work in line / share) / R
At the first start after a window of 500 ms (or one service time, if that is longer), with m the smallest b in it:
    m > target      limit := max(target, 0.7 * limit)
    otherwise       limit := limit / 0.7 for every window that passed, up to the slack
A newcomer is turned away when its expected wait is above the limit, unless its own line is empty.

One controller per tenant: one for the platform would let a tenant's standing queue turn away the others.
Bound: the limit is never below the target, so a tenant can always have about a service time of work in line.
"""

from __future__ import annotations

from math import inf

WINDOW_S = 0.5
STEP = 0.7


class CoDelLimiter:
    """One tenant's limit on its own line, in seconds of expected wait."""

    __slots__ = ("_least_s", "_window_ends", "limit_s")

    def __init__(self) -> None:
        self.limit_s = inf
        self._least_s = inf
        self._window_ends = -inf

    def sample(self, now: float, backlog_s: float, target_s: float, slack_s: float) -> None:
        """At a start: what still stands in line, what may stand there, and how long its requests could wait at most."""
        if now >= self._window_ends:
            if self._window_ends > -inf:
                self._judge(1 + int((now - self._window_ends) / WINDOW_S), target_s, slack_s)
            self._window_ends = now + max(WINDOW_S, target_s)
            self._least_s = inf
        self._least_s = min(self._least_s, backlog_s)

    def _judge(self, windows: int, target_s: float, slack_s: float) -> None:
        if self._least_s > target_s:
            self.limit_s = max(target_s, STEP * min(self.limit_s, slack_s))
        else:
            self.limit_s /= STEP ** min(windows, 100)
        if self.limit_s >= slack_s:
            self.limit_s = inf  # the deadline is the limit

    def __repr__(self) -> str:
        return f"<CoDelLimiter limit {self.limit_s:g} s>"
