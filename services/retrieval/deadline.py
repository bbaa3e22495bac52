"""Deadlines that walk away and never wait.

`asyncio.wait_for` cancels what is late and then waits until it has cleaned up; a database driver's clean-up on a
frozen server was measured to take six seconds for a deadline of one. Here the caller goes on at once, and what was late
is either cancelled (`with_deadline`) or left to come to its own end (`wait_until`).

Sometimes it is the loop itself that is late: a deadline is noticed long after it has passed, and the answer has been
lying in the socket all the while. Then there are a few turns of the loop to find it in; and `DeadlineExceeded` says if
there still was none, for that says nothing against whoever was asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

MAX_LAG_S = 0.01  # by so much a loop may be late and still count as attentive
TURNS = 3  # an answer is read in the first, understood in the second, and told in the third

T = TypeVar("T")


class DeadlineExceeded(Exception):
    """The time was up before the answer was there; `loop_lagged` when it was up and nobody had looked."""

    def __init__(self, *arguments: object, loop_lagged: bool = False) -> None:
        super().__init__(*arguments)
        self.loop_lagged = loop_lagged


async def with_deadline(deadline: float, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns or raises by `deadline` on the loop's clock, else `DeadlineExceeded`.

    `work` is cancelled, and not waited for, when it is late or when the caller is cancelled.
    """
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await wait_until(deadline, task)
    finally:
        task.cancel()


async def wait_until(deadline: float, task: asyncio.Task[T]) -> T:
    """What `task` returns or raises by `deadline`, else `DeadlineExceeded`. A late task runs on: it bounds itself."""
    loop = asyncio.get_running_loop()
    remaining_s = max(0.0, deadline - loop.time())
    until = loop.time() + remaining_s
    try:
        await asyncio.wait({task}, timeout=remaining_s)
        loop_lagged = not task.done() and loop.time() - until > MAX_LAG_S
        if loop_lagged:
            await _look_again(task)
    except asyncio.CancelledError:
        task.add_done_callback(_outcome_unwanted)  # even if it is done: nobody will ask for its outcome any more
        raise
    if not task.done():
        task.add_done_callback(_outcome_unwanted)
        raise DeadlineExceeded(loop_lagged=loop_lagged)
    return task.result()


async def _look_again(task: asyncio.Task[Any]) -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)
        if task.done():
            return


def _outcome_unwanted(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # read, so that the loop does not report it as forgotten
