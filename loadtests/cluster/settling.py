"""What a router still holds once everybody has been answered: it should be nothing, a moment later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

LOOK_EVERY_S = 0.05


async def left_over(held: Callable[[], Awaitable[float]], within_s: float) -> float:
    """0 as soon as nothing is held; what stays, where that does not come within so many seconds."""
    looks = max(1, round(within_s / LOOK_EVERY_S))
    for _ in range(looks - 1):
        if not await held():
            return 0.0
        await asyncio.sleep(LOOK_EVERY_S)
    return await held()
