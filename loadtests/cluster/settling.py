"""Wait until a router holds nothing after all requests have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

LOOK_EVERY_S = 0.05


async def left_over(held: Callable[[], Awaitable[float]], within_s: float) -> float:
    """0 as soon as nothing is held; otherwise the amount that is left after `within_s`."""
    looks = max(1, round(within_s / LOOK_EVERY_S))
    for _ in range(looks - 1):
        if not await held():
            return 0.0
        await asyncio.sleep(LOOK_EVERY_S)
    return await held()
