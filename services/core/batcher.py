"""When a batch forms, and who is in it.

A GPU step costs nearly the same for one sequence as for eight (T(n) = a + b*n with b << a), so sequences share steps.
Two policies, told apart by when a newcomer may join:

- `continuous` (the default): at every step boundary, while a slot is free. Orca (OSDI'22) calls it iteration-level
  scheduling; it is work-conserving, which makes it throughput-optimal (Li, Dai, Peng 2025). An idle engine fires at
  once, so nothing waits for company and the window is never used.
- `static`: only into an empty engine. A batch fires when it is full, or when its oldest member has waited for the
  window, and then runs to completion. Kept literal, for the experiment: a window bounds a wait that was free.

Bounds: at most `slots` run and at most `slots + queue_size` are here in all, so that a burst onto an idle engine is not
refused while slots stand empty; nobody fires at or after its deadline; in continuous mode no slot is left free while
someone waits. A deadline that has passed removes its request. Its slack is never clamped to zero,
which would make the dead the most urgent of all.

Order is first come, first served. It lives in `_take` alone: earliest deadline first replaces that one method.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T")


class Batching(Enum):
    """When a waiting sequence may join those that run."""

    CONTINUOUS = "continuous"
    STATIC = "static"


@dataclass(frozen=True, slots=True)
class Waiting(Generic[T]):
    """A request in line. Both times are seconds on the clock that `now` is read from."""

    id: str
    arrived_at: float
    deadline: float
    item: T


@dataclass(frozen=True, slots=True)
class Fire(Generic[T]):
    """Start these now, in this order. `expired` waited past their deadline: refuse them."""

    admit: tuple[Waiting[T], ...]
    expired: tuple[Waiting[T], ...] = ()


@dataclass(frozen=True, slots=True)
class Wait(Generic[T]):
    """Start nobody. Ask again at `until`, after a step, or on an arrival; None: only on an arrival."""

    until: float | None
    expired: tuple[Waiting[T], ...] = ()


class BatchFormer(Generic[T]):
    """The bounded line before an engine, and the decision when to let whom in.

    The line is a handful of requests, so deadlines are found by looking at each: that beats keeping a heap.
    """

    __slots__ = ("_line", "batching", "queue_size", "slots", "window_s")

    def __init__(self, batching: Batching, *, slots: int, queue_size: int, window_s: float = 0.0) -> None:
        if slots < 1 or queue_size < 1:
            raise ValueError(f"slots and queue_size must be at least 1, got {slots} and {queue_size}")
        if not 0 <= window_s < math.inf:
            raise ValueError(f"window_s must be finite and not negative, got {window_s}")
        self.batching = batching
        self.slots = slots
        self.queue_size = queue_size
        self.window_s = window_s
        self._line: OrderedDict[str, Waiting[T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._line)

    def full(self, running: int) -> bool:
        """With `running` sequences in the engine, the next offer would be refused."""
        return running + len(self._line) >= self.slots + self.queue_size

    def offer(self, waiting: Waiting[T], running: int) -> bool:
        """Join the line; False, and nothing changes, when it is at its bound."""
        if waiting.id in self._line:
            raise ValueError(f"{waiting.id} already waits")
        if math.isnan(waiting.deadline):
            raise ValueError(f"{waiting.id} has no deadline: NaN is before and after everything")
        if self.full(running):
            return False
        self._line[waiting.id] = waiting
        return True

    def discard(self, id: str) -> bool:
        """Leave the line, in O(1). False when it was not there: it has fired, expired, or never came."""
        return self._line.pop(id, None) is not None

    def expire(self, now: float) -> tuple[Waiting[T], ...]:
        """Remove and return those whose deadline has come."""
        expired = tuple(waiting for waiting in self._line.values() if waiting.deadline <= now)
        for waiting in expired:
            del self._line[waiting.id]
        return expired

    def flush(self) -> tuple[Waiting[T], ...]:
        """Remove and return everyone: the worker is leaving."""
        everyone = tuple(self._line.values())
        self._line.clear()
        return everyone

    def decide(self, now: float, running: int) -> Fire[T] | Wait[T]:
        """Whom to start at this step boundary, with `running` sequences in the engine."""
        expired = self.expire(now)
        free = self._joinable(now, running)
        if free > 0 and self._line:
            return Fire(self._take(free), expired)
        return Wait(self._wake_at(running), expired)

    def _joinable(self, now: float, running: int) -> int:
        """How many may join now."""
        if self.batching is Batching.CONTINUOUS:
            return self.slots - running
        if running > 0:
            return 0
        ready = len(self._line) >= self.slots or now >= self._window_ends()
        return self.slots if ready else 0

    def _take(self, count: int) -> tuple[Waiting[T], ...]:
        """The next ones in order."""
        return tuple(self._line.popitem(last=False)[1] for _ in range(min(count, len(self._line))))

    def _window_ends(self) -> float:
        oldest = next(iter(self._line.values()), None)
        return math.inf if oldest is None else oldest.arrived_at + self.window_s

    def _wake_at(self, running: int) -> float | None:
        """The next moment at which the answer changes by itself."""
        moments = [waiting.deadline for waiting in self._line.values()]
        if self.batching is Batching.STATIC and running == 0:
            moments.append(self._window_ends())
        soonest = min(moments, default=math.inf)
        return soonest if soonest < math.inf else None

    def __repr__(self) -> str:
        bounds = f"{self.slots} slots + {self.queue_size}"
        return f"<BatchFormer {self.batching.value}, {len(self)} waiting, {bounds}, window {self.window_s * 1000:g} ms>"
