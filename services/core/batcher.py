"""When a batch forms, and which requests join it: docs/architecture/mechanisms/batching.md has triggers and order.

Memory is counted in tokens. A request reserves its prompt and its longest answer, so no running sequence is preempted.
If the head does not fit, nothing passes it: short requests would take each piece of memory as it is freed. A request
that cannot fit into an empty engine would block the queue until its deadline, so the caller must reject it, or discard
it if the engine's memory shrinks. A start is futile when the first token cannot come before the deadline (`ready_s`).
This is tested only when a batch is built; a futile request leaves as expired.

Bounds: at most `slots` run, and at most `slots + queue_size` are here in all, so a burst onto an idle engine is not
rejected. No batch reserves more than was free. Nothing fires at or after its deadline. In continuous mode no slot is
free while the head fits. Until the time in `Wait` nothing changes by itself, and at that time something does. Slack is
never clamped to zero: that would make requests that cannot succeed the most urgent.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")


class Batching(Enum):
    """When a queued sequence may join the running ones."""

    CONTINUOUS = "continuous"
    STATIC = "static"


class Trigger(Enum):
    """Why a batch fired."""

    FULL = "full"
    IDLE = "idle"
    LATEST_START = "latest_start"
    WINDOW_END = "window_end"


@dataclass(frozen=True, slots=True)
class Waiting(Generic[T]):
    """A queued request. All times are seconds, on the clock of `now`."""

    id: str
    arrived_at: float
    deadline: float
    item: T
    service_s: float = 0.0
    """Expected run time; 0: unknown, no early start."""
    tokens: int = 0
    """Memory that it reserves: its prompt and its longest answer."""
    ready_s: float = 0.0
    """Minimum time from its start to its first token: its prefill."""

    @property
    def latest_start(self) -> float:
        """The latest start that ends by the deadline."""
        return self.deadline - self.service_s

    @property
    def futile_from(self) -> float:
        """The time from which a start is futile: the first token would come at or after the deadline."""
        return self.deadline - self.ready_s

    def check(self) -> None:
        """Raise ValueError for a NaN deadline, and for times or tokens that are negative or not finite."""
        if math.isnan(self.deadline):
            raise ValueError(f"{self.id} has no deadline: NaN is before and after everything")
        for name in ("service_s", "ready_s", "tokens"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} of {self.id} must be finite and not negative, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Fire(Generic[T]):
    """Start these now, in this order. Reject `expired`: they have no time left to wait or to start."""

    admit: tuple[Waiting[T], ...]
    expired: tuple[Waiting[T], ...] = ()
    trigger: Trigger = field(default=Trigger.IDLE, compare=False)


@dataclass(frozen=True, slots=True)
class Wait(Generic[T]):
    """Start nothing. Decide again at `until`, after a step, or on an arrival; None: only on an arrival."""

    until: float | None
    expired: tuple[Waiting[T], ...] = ()


_Place: TypeAlias = tuple[float, int, Waiting[T]]  # (deadline, number of the offer): unique, so never compares Waiting


class BatchFormer(Generic[T]):
    """The bounded queue before an engine, and the decision which requests start.

    Raises ValueError if `queue_size` or `slots` is below 1, or the window is negative or not finite.
    """

    __slots__ = ("_offers", "_places", "_queue", "batching", "queue_size", "slots", "window_s")

    def __init__(self, batching: Batching, *, slots: int, queue_size: int, window_s: float = 0.0) -> None:
        if queue_size < 1:
            raise ValueError(f"queue_size must be at least 1, got {queue_size}")
        if not 0 <= window_s < math.inf:
            raise ValueError(f"window_s must be finite and not negative, got {window_s}")
        self.batching = batching
        self.resize(slots)
        self.queue_size = queue_size
        self.window_s = window_s
        self._queue: list[_Place[T]] = []  # sorted
        self._places: dict[str, _Place[T]] = {}  # by id, in order of arrival
        self._offers = 0

    def __len__(self) -> int:
        return len(self._queue)

    def resize(self, slots: int) -> None:
        """Set the number of slots. While more than that run, nothing starts. Raises ValueError below 1."""
        if slots < 1:
            raise ValueError(f"slots must be at least 1, got {slots}")
        self.slots = slots

    def full(self, running: int) -> bool:
        """Whether the next offer would be refused, with `running` sequences in the engine."""
        return running + len(self._queue) >= self.slots + self.queue_size

    def offer(self, waiting: Waiting[T], running: int) -> bool:
        """Queue a request. False, and no change, if the queue is full. Raises ValueError for an id that is queued."""
        if waiting.id in self._places:
            raise ValueError(f"{waiting.id} already waits")
        waiting.check()
        if self.full(running):
            return False
        place = (waiting.deadline, self._offers, waiting)
        self._offers += 1
        self._places[waiting.id] = place
        insort(self._queue, place)
        assert len(self._queue) == len(self._places), self._fault(waiting)
        return True

    def discard(self, id: str) -> bool:
        """Remove a request. False if it is not queued (any more)."""
        place = self._places.pop(id, None)
        if place is None:
            return False
        at = bisect_left(self._queue, place)
        assert self._queue[at : at + 1] == [place], self._fault(place[-1])
        del self._queue[at]
        return True

    def expire(self, now: float) -> tuple[Waiting[T], ...]:
        """Remove and return the requests whose deadline has come."""
        return self._take(bisect_right(self._queue, now, key=_deadline))

    def flush(self) -> tuple[Waiting[T], ...]:
        """Remove and return all requests: the worker drains."""
        return self._take(len(self._queue))

    def decide(self, now: float, running: int, free_tokens: float = math.inf) -> Fire[T] | Wait[T]:
        """What to start at this step boundary, with `running` sequences in the engine and `free_tokens` unreserved."""
        expired = self.expire(now)
        room = self._room(running)
        fitting, futile = self._build(now, room, free_tokens)
        expired += self._remove(futile)
        trigger = self._trigger(now, fitting) if fitting else None
        if trigger is None:
            return Wait(self._wake_at(room, fitting), expired)
        assert running + len(fitting) <= self.slots, f"{running} run and {len(fitting)} start: {self!r}"
        return Fire(self._take(len(fitting)), expired, trigger)

    def _room(self, running: int) -> int:
        """How many may join now; `running` may exceed the slots after a resize."""
        if self.batching is Batching.STATIC and running > 0:
            return 0
        return max(0, self.slots - running)

    def _build(self, now: float, room: int, free_tokens: float) -> tuple[list[Waiting[T]], list[Waiting[T]]]:
        """From the head on: the requests that fit, up to the first that does not, and the futile ones on the way."""
        fitting: list[Waiting[T]] = []
        futile: list[Waiting[T]] = []
        for _, _, waiting in self._queue:
            if len(fitting) == room:
                break
            if now >= waiting.futile_from:
                futile.append(waiting)
                continue
            free_tokens -= waiting.tokens
            if free_tokens < 0:
                break
            fitting.append(waiting)
        return fitting, futile

    def _trigger(self, now: float, fitting: list[Waiting[T]]) -> Trigger | None:
        """Why the fitting requests may start now; None: they may not."""
        if self.batching is Batching.CONTINUOUS:
            return Trigger.IDLE
        if len(fitting) == self.slots or len(fitting) < len(self._queue):
            return Trigger.FULL
        if now >= min(waiting.latest_start for waiting in fitting):
            return Trigger.LATEST_START
        return Trigger.WINDOW_END if now >= self._window_ends() else None

    def _take(self, count: int) -> tuple[Waiting[T], ...]:
        """Remove and return the first `count` requests."""
        taken = tuple(place[-1] for place in self._queue[:count])
        del self._queue[:count]
        for waiting in taken:
            del self._places[waiting.id]
        assert len(self._queue) == len(self._places), self._fault(*taken[-1:])
        return taken

    def _fault(self, *of: Waiting[T]) -> str:
        return f"{len(self._queue)} in line, {len(self._places)} by id, at {[each.id for each in of]}: {self!r}"

    def _remove(self, gone: list[Waiting[T]]) -> tuple[Waiting[T], ...]:
        for waiting in gone:
            self.discard(waiting.id)
        return tuple(gone)

    def _window_ends(self) -> float:
        first = next(iter(self._places.values()))
        return first[-1].arrived_at + self.window_s

    def _wake_at(self, room: int, fitting: list[Waiting[T]]) -> float | None:
        """The next moment at which the decision changes by itself. If some fit and none starts, all queued ones fit."""
        if not self._queue:
            return None
        head = self._queue[0][-1]
        soonest = head.futile_from if room else head.deadline
        if fitting:
            soonest = min(self._window_ends(), *(min(one.futile_from, one.latest_start) for one in fitting))
        return soonest if soonest < math.inf else None

    def __repr__(self) -> str:
        bounds = f"{self.slots} slots + {self.queue_size}"
        return f"<BatchFormer {self.batching.value}, {len(self)} waiting, {bounds}, window {self.window_s * 1000:g} ms>"


def _deadline(place: _Place[T]) -> float:
    return place[0]
