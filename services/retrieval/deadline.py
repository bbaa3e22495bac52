"""Deadlines that return on time and do not wait for cleanup.

`asyncio.wait_for` cancels a late task and waits for its cleanup. With a database driver on a frozen server, a deadline
of 1 s was measured to take 6 s. Here the caller goes on at once, and the late task is cancelled (`with_deadline`) or
left to end by itself (`wait_until`).

If the event loop itself is late, the answer may already be in the socket. So the task gets TURNS more iterations of the
loop. If it still has none, `DeadlineExceeded.loop_lagged` says that the callee is not to blame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

MAX_LAG_S = 0.01  # a loop that is at most this late counts as on time
TURNS = 3  # of the loop: the first reads an answer, the second parses it, the third delivers it

T = TypeVar("T")


class DeadlineExceeded(Exception):
    """There was no answer by the deadline. `loop_lagged`: the loop noticed the deadline over MAX_LAG_S late."""

    def __init__(self, *arguments: object, loop_lagged: bool = False) -> None:
        super().__init__(*arguments)
        self.loop_lagged = loop_lagged


async def with_deadline(deadline: float, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns or raises by `deadline`, in seconds of the loop's clock. Raises DeadlineExceeded.

    `work` is cancelled, and not awaited, when it is late or when the caller is cancelled.
    """
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await wait_until(deadline, task)
    finally:
        task.cancel()


async def wait_until(deadline: float, task: asyncio.Task[T]) -> T:
    """What `task` returns or raises by `deadline`. Raises DeadlineExceeded; a late task runs on and bounds itself."""
    loop = asyncio.get_running_loop()
    remaining_s = max(0.0, deadline - loop.time())
    until = loop.time() + remaining_s
    try:
        await asyncio.wait({task}, timeout=remaining_s)
        loop_lagged = not task.done() and loop.time() - until > MAX_LAG_S
        if loop_lagged:
            await _look_again(task)
    except asyncio.CancelledError:
        task.add_done_callback(_outcome_unwanted)  # even if it is done: nothing reads its outcome now
        raise
    if not task.done():
        task.add_done_callback(_outcome_unwanted)
        raise DeadlineExceeded(loop_lagged=loop_lagged)
    return task.result()


async def cancel_and_wait(task: asyncio.Task[Any] | None) -> None:
    """Cancel a background task, if there is one, and wait until it has ended, however it ends."""
    if task is not None:
        task.cancel()
        await asyncio.wait({task})


async def _look_again(task: asyncio.Task[Any]) -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)
        if task.done():
            return


def _outcome_unwanted(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # marks it as retrieved, so that the loop does not report it
