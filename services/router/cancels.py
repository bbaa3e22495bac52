"""Telling a worker that nobody waits any more: beside the socket that closes, which a proxy between may hold open."""

from __future__ import annotations

import asyncio

from services.router.worker import Worker
from services.runtime.keepalive import UpstreamError

WITHIN_S = 1.0
MOST = 256
"""Cancels under way at once; beyond, the closed socket has to do."""


class Cancels:
    """Sends cancels, and waits for none of them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, worker: Worker, attempt_id: str) -> None:
        """Nobody waits for this attempt."""
        if len(self._tasks) >= MOST:
            return
        task = asyncio.get_running_loop().create_task(_quietly(worker, attempt_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _quietly(worker: Worker, attempt_id: str) -> None:
    try:
        async with asyncio.timeout(WITHIN_S):
            await worker.upstream.cancel(attempt_id)
    except (UpstreamError, TimeoutError):
        return  # the closed socket tells it as well
