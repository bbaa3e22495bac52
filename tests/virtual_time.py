"""An event loop whose clock jumps to the next timer: an hour of traffic in milliseconds, and no flaky waits.

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())          # or: run(main())

Everything that asks `asyncio.get_running_loop().time()` or sleeps on the loop sees virtual seconds, from 0.
When nothing is ready and no timer is set, nothing can ever happen again: that is reported as the deadlock it is.
Not for sockets, threads or executors: they live in real time, and a clock that jumps would outrun them.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for `timeout`, moves the clock by it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise RuntimeError("every task waits and no timer is set: this would wait for ever")
        self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A selector loop on virtual time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def stand_still(seconds: float) -> None:
    """The process gets no processor for so long: whatever was due meanwhile is late."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop._jumping.now += seconds


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
