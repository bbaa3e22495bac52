"""Deadlines that walk away and never wait.

`asyncio.wait_for` cancels what is late and then waits until it has cleaned up; a database driver's clean-up on a
frozen server was measured to take six seconds for a deadline of one. Here the caller goes on at once, and what was late
is either cancelled (`by`) or left to come to its own end (`leave_at`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Late(Exception):
    """The time was up before the answer was there."""


async def by(deadline: float, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns or raises by `deadline` on the loop's clock, else `Late`.

    `work` is cancelled, and not waited for, when it is late or when the caller is cancelled.
    """
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await leave_at(deadline, task)
    finally:
        task.cancel()


async def leave_at(deadline: float, task: asyncio.Task[T]) -> T:
    """What `task` returns or raises by `deadline`, else `Late`. A late task runs on: it bounds itself."""
    loop = asyncio.get_running_loop()
    try:
        await asyncio.wait({task}, timeout=max(0.0, deadline - loop.time()))
    except asyncio.CancelledError:
        task.add_done_callback(_outcome_unwanted)  # even if it is done: nobody will ask for its outcome any more
        raise
    if not task.done():
        task.add_done_callback(_outcome_unwanted)
        raise Late
    return task.result()


def _outcome_unwanted(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # read, so that the loop does not report it as forgotten
