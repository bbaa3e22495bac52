"""Cancels attempts at workers, in addition to closing the socket, which a proxy in between may hold open.

When many clients disconnect at once, new requests need their connections at the same moment. So the cancels of a worker
go through LANES lanes, never through more connections than are kept spare for them (`connect`).
"""

from __future__ import annotations

import asyncio
from collections import deque

from services.router.workers.worker import Worker
from services.runtime.upstream import UpstreamError

WITHIN_S = 1.0
LANES = 4
"""Cancels in progress at once to one worker."""
MAX_WAITING = 256
"""Cancels that wait for one worker; beyond that the closed socket has to do."""


class _Queue:
    __slots__ = ("attempts", "lanes")

    def __init__(self) -> None:
        self.attempts: deque[str] = deque()
        self.lanes = 0


class Cancels:
    """Sends cancels in the background. State: at most MAX_WAITING attempt ids per worker, while there are any."""

    def __init__(self) -> None:
        self._queues: dict[Worker, _Queue] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, worker: Worker, attempt_id: str) -> None:
        """Cancel this attempt at the worker."""
        queue = self._queues.setdefault(worker, _Queue())
        if len(queue.attempts) >= MAX_WAITING:
            return
        queue.attempts.append(attempt_id)
        if queue.lanes < LANES:
            queue.lanes += 1
            task = asyncio.get_running_loop().create_task(self._run(worker, queue))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, worker: Worker, queue: _Queue) -> None:
        try:
            while queue.attempts:
                if not await _cancel(worker, queue.attempts.popleft()):
                    queue.attempts.clear()  # unreachable: the others would fail too
        finally:
            queue.lanes -= 1
            assert 0 <= queue.lanes < LANES, f"{queue.lanes} cancels to {worker!r} are under way: {self!r}"
            if not queue.lanes:
                del self._queues[worker]

    def __repr__(self) -> str:
        waiting = {worker.name: len(queue.attempts) for worker, queue in self._queues.items()}
        return f"<Cancels {waiting or 'nothing to cancel'}>"


async def _cancel(worker: Worker, attempt_id: str) -> bool:
    """Send one cancel; False if it fails."""
    try:
        async with asyncio.timeout(WITHIN_S):
            await worker.upstream.cancel(attempt_id)
    except (UpstreamError, TimeoutError):
        return False
    return True
