"""How many connections the file descriptors of this process allow (RLIMIT_NOFILE, getrlimit(2))."""

from __future__ import annotations

import resource

SPARE = 24
"""Descriptors for the log, the loop, the listeners, scrapes, and the refusal of excess connections."""


def raise_limit(wanted: int) -> int:
    """Raise the soft limit as far as wanted and allowed; never lower it. Returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= limit:
        return wanted if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (OSError, ValueError):  # macOS has a lower bound of its own where the hard limit is infinite
        return soft
    return limit


def connections_allowed(asked: int, beside: int) -> int:
    """As many connections as asked for, or as the descriptors allow beside `beside` and SPARE; at least one.

    `beside`, what the process opens itself, gets at most half of the descriptors, so that a low limit leaves some for
    clients.
    """
    limit = raise_limit(asked + beside + SPARE)
    return max(1, min(asked, limit - min(beside, limit // 2) - SPARE))
