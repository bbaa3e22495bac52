"""Did this machine stand still while a test ran? A clock in a process of its own knows.

It sleeps for 5 ms again and again, and says when it woke late and by how much. A process of its own, since a thread
would also be late when Python is busy, and would make processes that tests fork off unsafe. It ends with whoever
started it: what it sleeps on is its standard input.

For `tests/conftest.py`, which tries a test again that failed while nothing could be judged (decision 042).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from typing import NamedTuple

LATE_S = 0.05
"""A wake-up so late is told."""

MOST = 10_000
"""Of the latest that are remembered."""

BEAT_S = 0.005
CLOCK = f"""
import select, time
began = time.monotonic()
while not select.select([0], [], [], {BEAT_S})[0]:
    now = time.monotonic()
    if now - began - {BEAT_S} >= {LATE_S}:
        print(began, now, flush=True)
    began = now
"""


class Stood(NamedTuple):
    """One time that the machine stood still, in seconds of `time.monotonic()`, which all processes share."""

    began: float
    ended: float


class Stopwatch:
    """Starts its clock when it is first asked for the time. `close` it."""

    def __init__(self) -> None:
        self._clock: subprocess.Popen[bytes] | None = None
        self._told: deque[Stood] = deque(maxlen=MOST)
        self._rest = b""

    def now(self) -> float:
        """The beginning of what will be asked about. Keeps the pipe from the clock empty, too."""
        if self._clock is None:
            program = [sys.executable, "-S", "-c", CLOCK]
            self._clock = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert self._clock.stdout is not None
            os.set_blocking(self._clock.stdout.fileno(), False)
        self._read()
        return time.monotonic()

    def stood_since(self, began: float) -> float:
        """How long the machine stood still since then, in all; 0.0 where it ran on.

        Waits for a moment, so that the clock, which may have stood as well, can say so.
        """
        time.sleep(10 * BEAT_S)
        self._read()
        return sum(one.ended - max(one.began, began) for one in self._told if one.ended > began)

    def close(self) -> None:
        if self._clock is not None:
            self._clock.communicate()
            self._clock = None

    @property
    def pid(self) -> int:
        assert self._clock is not None, "it has not been asked for the time"
        return self._clock.pid

    def _read(self) -> None:
        assert self._clock is not None
        assert self._clock.stdout is not None
        while piece := self._clock.stdout.read(65_536):
            *lines, self._rest = (self._rest + piece).split(b"\n")
            self._told.extend(Stood(*map(float, line.split())) for line in lines)
