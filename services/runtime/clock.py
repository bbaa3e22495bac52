"""The wall clock, for the few fields that people read. Nothing waits by it: it can jump."""

from __future__ import annotations

import time


def unix_seconds() -> int:
    """Whole seconds since the epoch, as OpenAI's `created` wants them."""
    return int(time.time())


def unix_milliseconds() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
