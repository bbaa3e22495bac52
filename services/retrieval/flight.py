"""Single flight: concurrent callers with the same key share one run of the work, so a thousand equal misses search
once.

The name is from Go's `golang.org/x/sync/singleflight`. The work runs in a task of its own:

- A caller that leaves, the first one included, does not affect the others. The last one to leave cancels the work.
- Each caller has its own deadline, returns at it, and waits for no cleanup.
- A key may have several runs with different parameters. A caller joins the first one that covers its own.
- A failure goes to the current waiters and is not remembered. All callers get the same result object: do not change it.

Beyond `max_shared`, work runs unshared; the embedder's queue and the connection pool bound how much runs at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from services.retrieval.deadline import DeadlineExceeded
from services.runtime.ordered import OrderedSet

T = TypeVar("T")


class WaiterTimedOut(DeadlineExceeded):
    """The caller's deadline passed and the work goes on. `context` is from the caller that started the work."""

    def __init__(self, context: object) -> None:
        super().__init__()
        self.context = context


@dataclass(slots=True, eq=False)
class _Flight(Generic[T]):
    """Running work and one future per waiter. A future only wakes its waiter; the outcome is the task's."""

    task: asyncio.Task[T]
    params: Any
    context: object
    waiters: OrderedSet[asyncio.Future[None]] = field(default_factory=OrderedSet)


class Flights(Generic[T]):
    """Running work by key; at most `max_shared` runs are joinable.

    `covers(params, asked)`: whether a run with `params` serves a caller that asks for `asked`; by default every run of
    a key does.
    """

    def __init__(self, *, max_shared: int, covers: Callable[[Any, Any], bool] = lambda params, asked: True) -> None:
        self._max_shared = max_shared
        self._covers = covers
        self._flights: dict[Hashable, list[_Flight[T]]] = {}
        self._tasks: set[asyncio.Task[T]] = set()  # cancelled ones too: the loop holds no strong references
        self.shared = 0
        """Runs that can be joined."""

    @property
    def running(self) -> int:
        """Tasks that have not ended, those without waiters included."""
        return len(self._tasks)

    async def join(
        self,
        key: Hashable,
        make: Callable[[], Coroutine[Any, Any, T]],
        *,
        deadline: float | None = None,
        params: object = None,
        context: object = None,
    ) -> T:
        """The result or the exception of the work for `key`; `make` creates the work if no run covers `params`.

        Raises WaiterTimedOut at `deadline`, and also if something else cancelled the work: the caller itself was not
        cancelled. Raises DeadlineExceeded if `deadline` has already passed.

        `make` should bound the work by the service's limit, not by its caller's remaining time: other waiters may have
        more.
        """
        loop = asyncio.get_running_loop()
        if deadline is not None and deadline <= loop.time():
            raise DeadlineExceeded
        flight = self._joinable(key, params) or self._start(key, make, params, context)
        waiter: asyncio.Future[None] = loop.create_future()
        flight.waiters.add(waiter)
        timer = None if deadline is None else loop.call_at(deadline, _wake, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            self._leave(key, flight, waiter)
        if not flight.task.done() or flight.task.cancelled():
            raise WaiterTimedOut(flight.context)
        return flight.task.result()

    def _joinable(self, key: Hashable, params: object) -> _Flight[T] | None:
        return next((flight for flight in self._flights.get(key, ()) if self._covers(flight.params, params)), None)

    def _start(
        self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]], params: object, context: object
    ) -> _Flight[T]:
        task = asyncio.get_running_loop().create_task(make(), name="flight")
        flight = _Flight(task, params, context)
        self._tasks.add(task)
        if self.shared < self._max_shared:
            self._flights.setdefault(key, []).append(flight)
            self.shared += 1
            assert self.shared <= len(self._tasks), f"{self.shared} pieces of work can be joined, {self.running} run"
        task.add_done_callback(lambda _: self._finished(key, flight))
        return flight

    def _finished(self, key: Hashable, flight: _Flight[T]) -> None:
        """Wake the waiters. Later callers start a new run."""
        self._tasks.discard(flight.task)
        self._close(key, flight)
        if not flight.task.cancelled():
            flight.task.exception()  # marks it as retrieved, so that the loop does not report it
        for waiter in flight.waiters:
            _wake(waiter)

    def _leave(self, key: Hashable, flight: _Flight[T], waiter: asyncio.Future[None]) -> None:
        flight.waiters.discard(waiter)
        if not flight.waiters and not flight.task.done():
            self._close(key, flight)  # first, so that no caller joins a cancelled run
            flight.task.cancel()

    def _close(self, key: Hashable, flight: _Flight[T]) -> None:
        open_flights = self._flights.get(key, [])
        if flight in open_flights:
            open_flights.remove(flight)
            self.shared -= 1
            assert self.shared >= 0, f"{self.shared} pieces of work can be joined, {self.running} run"
        if not open_flights:
            self._flights.pop(key, None)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
