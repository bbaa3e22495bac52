"""Ends a process whose event loop stands still, so that a supervisor restarts it (docs/operations/lifecycle.md).

    the loop waits                   a thread counts the seconds without a beat: a lock, a slow file, `time.sleep`
    the loop computes in C code      a timer of the process's own processor time (`ITIMER_PROF`), which every beat
                                     resets: a regular expression holds the interpreter, and then no thread runs

Neither counts time in which the process did not run (SIGSTOP, a paused container). Both end the process by SIGPROF,
after `faulthandler` has written the stacks of all threads to standard error. SIGPROF does not end process 1 of a
container, so a container needs an init (docker-compose.yml).
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Iterator

from services.runtime.log import Log

LOOKS = 8  # of the thread within the limit
LONGEST_SLEEP_S = 1.0  # between two looks, and between two beats of the loop
ENDED_BY = signal.SIGPROF


class Standstill:
    """How long a loop has stood still, by looks every `every_s` seconds. All times are seconds."""

    def __init__(self, limit_s: float, every_s: float, now: float) -> None:
        self._limit_s = limit_s
        self._max_s = 2 * every_s  # counted per sleep; beyond it the process did not run either
        self._looked_at = now
        self._turns = -1
        self.seconds = 0.0

    def look(self, now: float, turns: int) -> bool:
        """Whether the limit is reached. `turns` is any number that changes when the loop runs."""
        slept_s, self._looked_at = now - self._looked_at, now
        if turns != self._turns:
            self._turns, self.seconds = turns, 0.0
        else:
            self.seconds += min(slept_s, self._max_s)
        return self.seconds >= self._limit_s


@contextlib.contextmanager
def watched(limit_s: float, log: Log) -> Iterator[None]:
    """Watch the running loop while the block runs; a limit of 0 watches nothing. Main thread only."""
    if limit_s <= 0:
        yield
        return
    watch = _Watch(limit_s, log)
    try:
        yield
    finally:
        watch.stop()


class _Watch:
    def __init__(self, limit_s: float, log: Log) -> None:
        self._limit_s = limit_s
        self._every_s = min(limit_s / LOOKS, LONGEST_SLEEP_S)
        self._log = log
        self._turns = 0
        self._stopped = threading.Event()
        faulthandler.register(ENDED_BY, all_threads=True, chain=True)
        self._beat()
        threading.Thread(target=self._look, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self._timer.cancel()
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        faulthandler.unregister(ENDED_BY)

    def _beat(self) -> None:
        self._turns += 1
        signal.setitimer(signal.ITIMER_PROF, self._limit_s)
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._beat)

    def _look(self) -> None:
        standstill = Standstill(self._limit_s, self._every_s, time.monotonic())
        while not self._stopped.wait(self._every_s):
            if standstill.look(time.monotonic(), self._turns):
                self._log.error(
                    "the event loop is blocked: the process terminates itself",
                    watchdog_s=self._limit_s,
                    pid=os.getpid(),
                )
                self._log.close()
                signal.raise_signal(ENDED_BY)
