"""How late this process itself is: a timer beside the users, which should fire every 20 ms.

Where it fires later, Locust was busy or the machine stood still, and whatever a user measured in that moment is longer
by as much. A verdict about a deadline leaves that out; the summary says how much it was.

`loadtests/stillness.py` does this for the asyncio clients, and is no twin: it adds how long other processes had to
wait, of which the kernel tells the sum and not the moment, so there a loss that reaches into a stretch counts whole.
Here all that is lost lies between the moment at which the timer was due and that at which it fired, and a request is
excused for the part of it that it met. One arithmetic for both would excuse too much here, or too little there.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter

import gevent

EVERY_S = 0.02
NOTICED_S = 0.01  # less is the ordinary grain of timers
MOST_KEPT = 10_000  # pauses; the oldest are forgotten


class Lateness:
    """Runs from `start` to `stop`. `total_s` and `worst_s` are of the whole run."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self.worst_s = 0.0
        self._pauses: deque[tuple[float, float]] = deque(maxlen=MOST_KEPT)
        self._watching: gevent.Greenlet | None = None

    def start(self) -> None:
        self._watching = gevent.spawn(self._watch)

    def stop(self) -> None:
        if self._watching is not None:
            self._watching.kill(block=False)

    def note(self, at: float, late_s: float) -> None:
        """A timer that was due before `at` fired at `at`, so much too late."""
        if late_s < NOTICED_S:
            return
        self.total_s += late_s
        self.worst_s = max(self.worst_s, late_s)
        self._pauses.append((at, late_s))

    def between(self, began: float, ended: float) -> float:
        """Seconds of these in which this process was away."""
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
