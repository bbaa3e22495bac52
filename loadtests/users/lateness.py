"""How late this process is: a timer beside the users that should fire every 20 ms.

When it fires late, a user's measurement in that moment is longer by as much. Verdicts about deadlines exclude that
time; the summary reports it. `loadtests/stillness.py` adds the waiting time of other processes, which the kernel
reports only as sums, so there a loss that reaches into an interval counts in full. Here only the overlap counts.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter

import gevent

EVERY_S = 0.02
NOTICED_S = 0.01  # less is normal timer jitter
MAX_KEPT = 10_000  # pauses; the oldest are dropped


class Lateness:
    """Runs from `start` to `stop`. `total_s` and `worst_s` cover the whole run."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self.worst_s = 0.0
        self._pauses: deque[tuple[float, float]] = deque(maxlen=MAX_KEPT)
        self._watching: gevent.Greenlet | None = None

    def start(self) -> None:
        self._watching = gevent.spawn(self._watch)

    def stop(self) -> None:
        if self._watching is not None:
            self._watching.kill(block=False)

    def note(self, at: float, late_s: float) -> None:
        """Record a timer that fired at `at`, `late_s` too late."""
        if late_s < NOTICED_S:
            return
        self.total_s += late_s
        self.worst_s = max(self.worst_s, late_s)
        self._pauses.append((at, late_s))

    def between(self, began: float, ended: float) -> float:
        """Seconds of this interval in which the process was blocked."""
        away = 0.0
        for at, late_s in reversed(self._pauses):
            if at <= began:
                break
            away += max(0.0, min(at, ended) - max(at - late_s, began))
        return away

    def _watch(self) -> None:
        while True:
            due = perf_counter() + EVERY_S
            gevent.sleep(EVERY_S)
            now = perf_counter()
            self.note(now, now - due)
