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
MOST = 256
"""Cancels that wait for one worker; beyond that the closed socket has to do."""


class _Line:
    __slots__ = ("attempts", "lanes")

    def __init__(self) -> None:
        self.attempts: deque[str] = deque()
        self.lanes = 0


class Cancels:
    """Sends cancels in the background. State: at most MAX_WAITING attempt ids per worker, while there are any."""

    def __init__(self) -> None:
        self._lines: dict[Worker, _Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, worker: Worker, attempt_id: str) -> None:
        """Cancel this attempt at the worker."""
        line = self._lines.setdefault(worker, _Line())
        if len(line.attempts) >= MOST:
            return
        line.attempts.append(attempt_id)
        if line.lanes < LANES:
            line.lanes += 1
            task = asyncio.get_running_loop().create_task(self._run(worker, line))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, worker: Worker, line: _Line) -> None:
        try:
            while line.attempts:
                if not await _told(worker, line.attempts.popleft()):
                    line.attempts.clear()  # unreachable: the others would fail too
        finally:
            line.lanes -= 1
            assert 0 <= line.lanes < LANES, f"{line.lanes} cancels to {worker!r} are under way: {self!r}"
            if not line.lanes:
                del self._lines[worker]

    def __repr__(self) -> str:
        waiting = {worker.name: len(line.attempts) for worker, line in self._lines.items()}
        return f"<Cancels {waiting or 'nothing to tell'}>"


async def _told(worker: Worker, attempt_id: str) -> bool:
    """Send one cancel; False if it fails."""
    try:
        async with asyncio.timeout(WITHIN_S):
            await worker.upstream.cancel(attempt_id)
    except (UpstreamError, TimeoutError):
        return False
    return True
