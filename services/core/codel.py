"""Limits a standing queue, by CoDel's signal (Nichols and Jacobson, RFC 8289): a backlog above the target throughout.

A burst drains, a standing queue does not. CoDel drops from the head; here queued requests were promised an answer, so
new ones are rejected. The rules are in docs/architecture/mechanisms/standing-queue.md.

Own backlog in seconds, sampled at each of the tenant's starts:     b = (own queued work / share) / R
A window is 500 ms, or one target, if longer. Once b was above the target at all starts of BURST_S (or of one target, if
longer), the limit is what it had become by then if it had been in force from the first window on:
                    limit := max(target, 0.7 ** windows * slack)
Where answers may be degraded, a window takes the place of BURST_S: long waits would be answered by deeper levels, which
outlast the burst.
From then on, at the first start after a window, with m the smallest b in it:
    m > target      limit := max(target, 0.7 * limit)
    otherwise       limit := limit / 0.7 for every window that passed; no limit once it reaches the slack

A tenant with only a part p of its requests here, and a queue at each of several routers, has p of its pace here. So a
request is 1/p as long in seconds, and the one that starts, which b leaves out, would hide a queue of one. For it
    b = (own queued work + (1 - p) * the request that starts) / share / R       if any is queued
and a target for few slots looks at those of all routers: its other queues keep slots busy.

One controller per flow: a shared one would let one tenant's queue reject other tenants' requests.
Bound: the limit is at least the target, so a tenant can always have about one service time of work queued.
"""

from __future__ import annotations

from math import inf

BURST_S = 2.25
"""How long a queue may stand: until then it may be a burst, whose clients are answered out of the queue that it leaves.
A queue that stands for longer only makes all others wait. The longest burst that is meant has two seconds; the first
clients that return at their hints still meet its queue, hence a quarter of a second more."""
WINDOW_S = 0.5
STEP = 0.7


class CoDelLimiter:
    """The limit of one tenant on its predicted wait, in seconds."""

    __slots__ = ("_above_at", "_calm_at", "_min_s", "_window_ends", "limit_s")

    def __init__(self) -> None:
        self.limit_s = inf
        self._calm_at = self._above_at = -inf  # without a limit: the last samples at and above the target
        self._min_s = self._window_ends = inf  # with one

    def sample(self, now: float, backlog_s: float, target_s: float, slack_s: float, degrades: int = 0) -> None:
        """Sample at a start, all in seconds: the backlog, the target for it, and the slack of the request.

        `degrades`: not 0 where the answers may be degraded.
        """
        if self.limit_s == inf:
            if backlog_s > target_s:
                self._watch(now, target_s, slack_s, max(WINDOW_S if degrades else BURST_S, target_s))
            else:
                self._calm_at = now
            return
        if now >= self._window_ends:
            self._judge(now, target_s, slack_s)
        self._min_s = min(self._min_s, backlog_s)

    def _watch(self, now: float, target_s: float, slack_s: float, burst_s: float) -> None:
        """The backlog is above the target: set a limit if it has been for too long. Silence is no backlog."""
        if now - max(self._calm_at, self._above_at) > burst_s:
            self._calm_at = now
        elif now - self._calm_at >= burst_s and target_s < slack_s:
            windows = int(burst_s / max(WINDOW_S, target_s))
            self.limit_s = max(target_s, STEP**windows * slack_s)
            self._begin(now, target_s)
        self._above_at = now

    def _judge(self, now: float, target_s: float, slack_s: float) -> None:
        if self._min_s > target_s:
            self.limit_s = max(target_s, STEP * min(self.limit_s, slack_s))
        else:
            windows = 1 + int((now - self._window_ends) / WINDOW_S)
            self.limit_s /= STEP ** min(windows, 100)
        if self.limit_s >= slack_s:
            self.limit_s = inf  # the deadline limits the wait
            self._calm_at = now
        self._begin(now, target_s)

    def _begin(self, now: float, target_s: float) -> None:
        self._window_ends = now + max(WINDOW_S, target_s)
        self._min_s = inf

    def __repr__(self) -> str:
        return f"<CoDelLimiter limit {self.limit_s:g} s>"
