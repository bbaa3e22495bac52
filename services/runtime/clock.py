"""The wall clock, for fields that people read; nothing waits by it. A virtual loop has its own, as `unix_time`."""

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
    return int(wall_clock()() * 1000)


def unix_nanoseconds() -> int:
    """Nanoseconds since the epoch, to about a microsecond."""
    return int(wall_clock()() * 1e9)
