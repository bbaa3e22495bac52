"""The wall clock, for the few fields that people read. Nothing waits by it, since it can jump.

A loop with a virtual clock has an attribute `unix_time` that returns seconds since the epoch; other loops use the
machine's clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def wall_clock() -> Callable[[], float]:
    """A function that returns seconds since the epoch, by the running loop's own clock or the machine's."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # a command line, a thread
        return time.time
    own: Callable[[], float] = getattr(loop, "unix_time", time.time)
    return own


def unix_seconds() -> int:
    """Whole seconds since the epoch, as OpenAI's `created` wants them."""
    return int(wall_clock()())


def unix_milliseconds() -> int:
    """Milliseconds since the epoch."""
    return int(wall_clock()() * 1000)


def unix_nanoseconds() -> int:
    """Nanoseconds since the epoch, to about a microsecond."""
    return int(wall_clock()() * 1e9)
