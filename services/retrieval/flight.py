"""Single flight: those who ask for the same thing at the same time share one run of the work.

When a popular entry expires, everyone who wanted it misses at once, and a thousand equal misses would be a thousand
equal searches. Here the first to ask starts the work, in a task that belongs to nobody, and the others sit down beside
it. (Go's `golang.org/x/sync/singleflight` gave the idea its name.) What follows from "belongs to nobody":

- Whoever leaves, the first one included, leaves alone. Only when the last has gone is the work cancelled.
- Everyone has a deadline of their own, walks away at it, and never waits for anybody's clean-up.
- Whoever asks for less may join work that does more. Of one key there may be several pieces of work, of different
  worth: the first that `covers` what is asked for is joined.
- A failure is told to those that wait now and remembered for nobody: the next to ask starts anew.
- A result is one object for all of them: it is read, not changed.

How much is shared is bounded. Beyond the bound the work is run all the same, only unshared: how much runs at
once is bounded where it runs, by the embedder's line and the pool of connections.
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
    """The waiter's time was up, and the work goes on; `context` is what whoever began it said it was of."""

    def __init__(self, context: object) -> None:
        super().__init__()
        self.context = context


@dataclass(slots=True, eq=False)
class _Flight(Generic[T]):
    """Work under way, and a future for each that waits. A seat only says "look again"; the outcome is the task's."""

    task: asyncio.Task[T]
    params: Any
    context: object
    waiters: OrderedSet[asyncio.Future[None]] = field(default_factory=OrderedSet)


class Flights(Generic[T]):
    """Work under way by key; at most `max_shared` of it is shared. `covers` says whether work of one worth will do for
    whoever asks for another; by default all work of a key is worth the same.
    """

    def __init__(self, *, max_shared: int, covers: Callable[[Any, Any], bool] = lambda params, asked: True) -> None:
        self._max_shared = max_shared
        self._covers = covers
        self._flights: dict[Hashable, list[_Flight[T]]] = {}
        self._tasks: set[asyncio.Task[T]] = set()  # also those that are cancelled and not yet gone: loops hold none
        self.shared = 0
        """Pieces of work that can be joined."""

    @property
    def running(self) -> int:
        """Tasks that have not ended, those that nobody waits for any more included."""
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
        """What the work for `key` returns or raises; `make` makes it if nobody has, or nobody any of that `params`.

        `WaiterTimedOut` at this one's deadline, with the `context` of whoever began the work.

        `make` should bound the work by what the service allows, not by what is left to its caller: others may have more
        time. Work that something else has cut off is `DeadlineExceeded` as well: the caller itself was not cancelled.
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
        """The work has ended: whoever asks from now on starts anew, and whoever waits may look."""
        self._tasks.discard(flight.task)
        self._close(key, flight)
        if not flight.task.cancelled():
            flight.task.exception()  # read, so that the loop does not report as forgotten what nobody waited for
        for waiter in flight.waiters:
            _wake(waiter)

    def _leave(self, key: Hashable, flight: _Flight[T], waiter: asyncio.Future[None]) -> None:
        flight.waiters.discard(waiter)
        if not flight.waiters and not flight.task.done():
            self._close(key, flight)  # first: nobody may join what is about to be cut off
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
