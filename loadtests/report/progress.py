"""Progress of a long measurement on stderr: each message with its time, and one every ten silent seconds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from time import perf_counter
from typing import TextIO

SAY_EVERY_S = 10.0
Say = Callable[[str], None]


@contextmanager
def progress(
    name: str,
    takes_s: float | Callable[[float], float],
    *,
    far: Callable[[], str] = str,
    every_s: float = SAY_EVERY_S,
    out: TextIO | None = None,
) -> Iterator[Say]:
    """Reports progress while the body runs. Lines go to stderr by default, apart from the results.

    `takes_s`: the estimated duration in seconds, or a function that returns it from the seconds that have passed;
    infinite while it is unknown. `far`: describes the current step and how much of it is done.
    """
    estimate = takes_s if callable(takes_s) else lambda taken_s: takes_s
    began, over, spoke = perf_counter(), threading.Event(), threading.Event()

    def write(text: str) -> None:
        print(f"{perf_counter() - began:6.1f} s  {name}: {text}", file=out or sys.stderr, flush=True)

    def say(text: str) -> None:
        spoke.set()
        write(text)

    def remind() -> None:
        while not over.wait(every_s):
            if not spoke.is_set():
                taken_s = perf_counter() - began
                write(", ".join(filter(None, (far(), _left(taken_s, estimate(taken_s))))))
            spoke.clear()

    reminding = threading.Thread(target=remind, name="progress", daemon=True)
    reminding.start()
    try:
        yield say
    finally:
        over.set()
        reminding.join()


def by_share(done: Callable[[], float]) -> Callable[[float], float]:
    """An estimate for `progress` from the share that is done, 0 to 1."""

    def takes_s(taken_s: float) -> float:
        share = done()
        return taken_s / share if share else inf

    return takes_s


def _left(taken_s: float, takes_s: float) -> str:
    if takes_s == inf:
        return "remaining time not known yet"
    left_s = takes_s - taken_s
    return f"about {left_s:.0f} s of {takes_s:.0f} s left" if left_s > 0 else f"longer than the usual {takes_s:.0f} s"
