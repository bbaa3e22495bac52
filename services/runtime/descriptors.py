"""How many connections the descriptors of this process allow (RLIMIT_NOFILE, getrlimit(2)).

A process that has no descriptor left cannot accept, cannot connect to its workers, and cannot open a file. So a
listener holds fewer connections than there are descriptors, and the rest is kept for everything else.
"""

from __future__ import annotations

import resource

SPARE = 24
"""For the log, the loop, the listeners, scrapes, and telling one connection too many that it is one."""


def raise_limit(wanted: int) -> int:
    """Raise the soft limit as far as is wanted and allowed; never lowers it. Returns the limit that holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= limit:
        return wanted if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (OSError, ValueError):  # macOS has a bound of its own below an endless hard limit
        return soft
    return limit


def connections_allowed(asked: int, beside: int) -> int:
    """As many connections as are asked for, or as the descriptors allow beside `beside` and SPARE; at least one.

    `beside` is what the process opens itself. Where descriptors are few it gets half of them at most, so that a service
    with a low limit still has clients.
    """
    limit = raise_limit(asked + beside + SPARE)
    return max(1, min(asked, limit - min(beside, limit // 2) - SPARE))
