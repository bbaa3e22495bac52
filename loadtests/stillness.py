"""How long this machine stood still: the lateness of a local timer, and the time that other processes waited for a CPU.

On a shared machine a ready process may wait for a processor, and a whole virtual machine may be stopped. A timer then
fires late, and Linux counts the time that each thread was ready without a processor (`/proc/PID/schedstat`, second
field). Such lateness is subtracted before a result is judged.

The samples are running sums, so the loss in any interval is one subtraction. Locust's users have an exact timer of
their own: see `loadtests/users/lateness.py`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter

BEAT_S = 0.02
ON_TIME_S = 0.005  # a timer this late still counts as on time
MAX_BEATS = 1_000_000  # five and a half hours


class Stillness:
    """Samples stalls while `beat` runs. `pids` returns the processes whose waiting counts too; the set may change."""

    def __init__(self, pids: Callable[[], Iterable[int]] = tuple) -> None:
        self.late_s = 0.0
        self._pids = pids
        self._waited_s: dict[int, float] = {}
        self._at: list[float] = []
        self._sums_s: list[float] = []

    async def beat(self) -> None:
        """Sample every `BEAT_S` until cancelled."""
        while len(self._at) < MAX_BEATS:
            due = perf_counter() + BEAT_S
            await asyncio.sleep(BEAT_S)
            now = perf_counter()
            self.record(now, max(0.0, now - due - ON_TIME_S) + self._others_s())

    def record(self, at: float, still_s: float) -> None:
        """Add `still_s` seconds lost since the last record, at time `at`."""
        self.late_s += still_s
        self._at.append(at)
        self._sums_s.append(self.late_s)

    def between(self, begin: float, end: float) -> float:
        """Seconds lost in an interval. A stall that began earlier and reaches into it counts in full."""
        first, last = bisect_left(self._at, begin), bisect_right(self._at, end)
        last = min(last, len(self._at) - 1)  # the first beat after the end may report a stall before it
        if last < first:
            return 0.0
        return self._sums_s[last] - (self._sums_s[first - 1] if first else 0.0)

    def _others_s(self) -> float:
        """The longest wait for a processor of any watched process since the last call."""
        waited_s = {pid: waited_for_a_processor_s(pid) for pid in self._pids()}
        longest = max((now - self._waited_s.get(pid, now) for pid, now in waited_s.items()), default=0.0)
        self._waited_s = waited_s
        return max(0.0, longest)

    def __repr__(self) -> str:
        return f"<Stillness {self.late_s:.3f} s lost in {len(self._at)} beats>"


def waited_for_a_processor_s(pid: int) -> float:
    """Total wait of a process's main thread; 0 if the process is gone or the kernel does not count."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
