"""When this machine stood still: the lateness of a timer of our own, and how long other programs had to wait to run.

"Nothing hangs" is a promise of the program, not of the machine under it. On a shared machine a process that wants to
run may be made to wait, and a whole virtual machine may be stopped for a while. Both can be seen: a timer set for soon
goes off late, and Linux counts for every thread the time in which it was ready and had no processor
(`/proc/PID/schedstat`, second field). What was late only because of that is not held against anybody.

Sums since the start, sampled; so what fell into any stretch is one subtraction. Locust's users have a timer of their
own, which is exact where this one is generous: `loadtests/users/lateness.py` says why there are two.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter

BEAT_S = 0.02
ON_TIME_S = 0.005  # a timer that goes off so late is none that is late
MOST_BEATS = 1_000_000  # five hours and a half


class Stillness:
    """Samples while it beats. `pids` says whose waiting counts beside our own lateness; they may come and go."""

    def __init__(self, pids: Callable[[], Iterable[int]] = tuple) -> None:
        self.late_s = 0.0
        self._pids = pids
        self._waited_s: dict[int, float] = {}
        self._at: list[float] = []
        self._sums_s: list[float] = []

    async def beat(self) -> None:
        """Until it is cancelled."""
        while len(self._at) < MOST_BEATS:
            due = perf_counter() + BEAT_S
            await asyncio.sleep(BEAT_S)
            now = perf_counter()
            self.record(now, max(0.0, now - due - ON_TIME_S) + self._others_s())

    def record(self, at: float, still_s: float) -> None:
        """So much of the time since the last record was lost."""
        self.late_s += still_s
        self._at.append(at)
        self._sums_s.append(self.late_s)

    def between(self, begin: float, end: float) -> float:
        """Seconds lost in a stretch; one that began before it and reached into it counts whole."""
        first, last = bisect_left(self._at, begin), bisect_right(self._at, end)
        last = min(last, len(self._at) - 1)  # the beat after the end may tell of what was lost before it
        if last < first:
            return 0.0
        return self._sums_s[last] - (self._sums_s[first - 1] if first else 0.0)

    def _others_s(self) -> float:
        """The longest that any of them has waited for a processor since the last look."""
        waited_s = {pid: waited_for_a_processor_s(pid) for pid in self._pids()}
        longest = max((now - self._waited_s.get(pid, now) for pid, now in waited_s.items()), default=0.0)
        self._waited_s = waited_s
        return max(0.0, longest)

    def __repr__(self) -> str:
        return f"<Stillness {self.late_s:.3f} s lost in {len(self._at)} beats>"


def waited_for_a_processor_s(pid: int) -> float:
    """Of its main thread, since it began; 0 where it is gone, or where the kernel does not count."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
