"""When a batch forms, and who is in it.

A GPU step costs nearly the same for one sequence as for eight (T(n) = a + b*n with b << a), so sequences share steps.
A batch fires at the first of four moments:

    full          nobody else fits: the slots are taken, or the memory is
    idle          there is a slot that nobody uses
    latest start  the tightest deadline allows no more waiting: deadline - service_s
    window end    the one who came first has waited for the window

Two policies, told apart by when a newcomer may join:

- `continuous` (the default): at every step boundary, while a slot is free. Orca (OSDI'22) calls it iteration-level
  scheduling; it is work-conserving, which makes it throughput-optimal (Li, Dai, Peng 2025). A free slot is idle, so
  it fires at once, nothing waits for company, and the other three moments never come.
- `static`: only into an empty engine, which then runs the batch to completion. Here the window is kept literally, for
  the experiment: an idle engine waits for it (a window of 0 fires when idle). It bounds a wait that was free.

In line, the earliest deadline goes first, and of equal ones who came first: optimal for as long as all deadlines can
be met (Liu, Layland 1973). When they cannot, it serves the ones about to fail, so it needs the admission test before
it, and the line is short. It is not fair between tenants either: at most a line's length of the router's order is
lost here.

Memory is counted in tokens: a request reserves its prompt and its longest answer (`Waiting.tokens`), so that nothing
that runs is ever put out for want of memory. When the head of the line does not fit, nobody goes past it. Where short
ones could, they would eat each piece of memory as it came free, and a long one would wait until its deadline. The cost
is memory that idles: less than the head reserves, and for no longer than it takes those that run to end, since nobody
is let in before it but an earlier deadline. Whoever offers must have refused one that could not fit into an empty
engine, and discards it should the engine's memory shrink: it would stop the line until its deadline.

A start is futile when the first token cannot come before the deadline: reading a prompt takes at least `ready_s`. That
is looked at when a batch is built and not before, so a decision walks past nobody whose turn has not come. One who is
futile leaves as expired, takes no slot, and holds up nobody behind it.

Bounds: at most `slots` run and at most `slots + queue_size` are here in all, so that a burst onto an idle engine is not
refused while slots stand empty; no batch reserves more than was free; nobody fires at or after its deadline; in
continuous mode no slot is left free while the head of the line fits; until the moment that `Wait` names nothing
changes by itself, and then something does. A deadline that has passed removes its request. Its slack is never clamped
to zero, which would make the dead the most urgent of all.

Cost: a place in the line is found by bisection; a decision looks at those who leave the line and at the one behind
them, and, while a static batch gathers, at each of its members.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")


class Batching(Enum):
    """When a waiting sequence may join those that run."""

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
    """A request in line. All times are seconds, on the clock that `now` is read from."""

    id: str
    arrived_at: float
    deadline: float
    item: T
    service_s: float = 0.0
    """How long it would run, if that is known; 0 asks for no early start."""
    tokens: int = 0
    """The memory that it reserves: its prompt and its longest answer."""
    ready_s: float = 0.0
    """How long it needs at least before its first token: to read its prompt."""

    @property
    def latest_start(self) -> float:
        """When it has to start to be over by its deadline."""
        return self.deadline - self.service_s

    @property
    def futile_from(self) -> float:
        """From then on a start is in vain: its deadline would come no later than its first token."""
        return self.deadline - self.ready_s

    def check(self) -> None:
        """Raise ValueError for values that no order and no bound can be kept with."""
        if math.isnan(self.deadline):
            raise ValueError(f"{self.id} has no deadline: NaN is before and after everything")
        for name in ("service_s", "ready_s", "tokens"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} of {self.id} must be finite and not negative, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Fire(Generic[T]):
    """Start these now, in this order. `expired` have no time left to wait or to start: refuse them."""

    admit: tuple[Waiting[T], ...]
    expired: tuple[Waiting[T], ...] = ()
    trigger: Trigger = field(default=Trigger.IDLE, compare=False)


@dataclass(frozen=True, slots=True)
class Wait(Generic[T]):
    """Start nobody. Ask again at `until`, after a step, or on an arrival; None: only on an arrival."""

    until: float | None
    expired: tuple[Waiting[T], ...] = ()


_Place: TypeAlias = tuple[float, int, Waiting[T]]  # deadline, number of the offer: no two are equal


class BatchFormer(Generic[T]):
    """The bounded line before an engine, and the decision when to let whom in."""

    __slots__ = ("_line", "_offers", "_places", "batching", "queue_size", "slots", "window_s")

    def __init__(self, batching: Batching, *, slots: int, queue_size: int, window_s: float = 0.0) -> None:
        if queue_size < 1:
            raise ValueError(f"queue_size must be at least 1, got {queue_size}")
        if not 0 <= window_s < math.inf:
            raise ValueError(f"window_s must be finite and not negative, got {window_s}")
        self.batching = batching
        self.resize(slots)
        self.queue_size = queue_size
        self.window_s = window_s
        self._line: list[_Place[T]] = []  # sorted
        self._places: dict[str, _Place[T]] = {}  # by id, in order of arrival
        self._offers = 0

    def __len__(self) -> int:
        return len(self._line)

    def resize(self, slots: int) -> None:
        """The engine has this many slots now. Where more than that run, nobody starts until fewer do."""
        if slots < 1:
            raise ValueError(f"slots must be at least 1, got {slots}")
        self.slots = slots

    def full(self, running: int) -> bool:
        """With `running` sequences in the engine, the next offer would be refused."""
        return running + len(self._line) >= self.slots + self.queue_size

    def offer(self, waiting: Waiting[T], running: int) -> bool:
        """Join the line; False, and nothing changes, when it is at its bound."""
        if waiting.id in self._places:
            raise ValueError(f"{waiting.id} already waits")
        waiting.check()
        if self.full(running):
            return False
        place = (waiting.deadline, self._offers, waiting)
        self._offers += 1
        self._places[waiting.id] = place
        insort(self._line, place)
        assert len(self._line) == len(self._places), self._fault(waiting)
        return True

    def discard(self, id: str) -> bool:
        """Leave the line. False when it was not there: it has fired, expired, or never came."""
        place = self._places.pop(id, None)
        if place is None:
            return False
        at = bisect_left(self._line, place)
        assert self._line[at : at + 1] == [place], self._fault(place[-1])
        del self._line[at]
        return True

    def expire(self, now: float) -> tuple[Waiting[T], ...]:
        """Remove and return those whose deadline has come."""
        return self._take(bisect_right(self._line, now, key=_deadline))

    def flush(self) -> tuple[Waiting[T], ...]:
        """Remove and return everyone: the worker is leaving."""
        return self._take(len(self._line))

    def decide(self, now: float, running: int, free_tokens: float = math.inf) -> Fire[T] | Wait[T]:
        """Whom to start at this step boundary, with `running` sequences in the engine and `free_tokens` unreserved."""
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
        """How many may join now. Slots may have shrunk below what runs."""
        if self.batching is Batching.STATIC and running > 0:
            return 0
        return max(0, self.slots - running)

    def _build(self, now: float, room: int, free_tokens: float) -> tuple[list[Waiting[T]], list[Waiting[T]]]:
        """From the head on: who fits, until one does not; and who would have, and starts in vain."""
        fitting: list[Waiting[T]] = []
        futile: list[Waiting[T]] = []
        for _, _, waiting in self._line:
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
        """Why those who fit may go in now; None: they may not."""
        if self.batching is Batching.CONTINUOUS:
            return Trigger.IDLE
        if len(fitting) == self.slots or len(fitting) < len(self._line):
            return Trigger.FULL
        if now >= min(waiting.latest_start for waiting in fitting):
            return Trigger.LATEST_START
        return Trigger.WINDOW_END if now >= self._window_ends() else None

    def _take(self, count: int) -> tuple[Waiting[T], ...]:
        """The next ones in order."""
        taken = tuple(place[-1] for place in self._line[:count])
        del self._line[:count]
        for waiting in taken:
            del self._places[waiting.id]
        assert len(self._line) == len(self._places), self._fault(*taken[-1:])
        return taken

    def _fault(self, *of: Waiting[T]) -> str:
        return f"{len(self._line)} in line, {len(self._places)} by id, at {[each.id for each in of]}: {self!r}"

    def _remove(self, gone: list[Waiting[T]]) -> tuple[Waiting[T], ...]:
        for waiting in gone:
            self.discard(waiting.id)
        return tuple(gone)

    def _window_ends(self) -> float:
        first = next(iter(self._places.values()))
        return first[-1].arrived_at + self.window_s

    def _wake_at(self, room: int, fitting: list[Waiting[T]]) -> float | None:
        """The next moment at which the answer changes by itself. Where some fit and do not start, all in line do."""
        if not self._line:
            return None
        head = self._line[0][-1]
        soonest = head.futile_from if room else head.deadline
        if fitting:
            soonest = min(self._window_ends(), *(min(one.futile_from, one.latest_start) for one in fitting))
        return soonest if soonest < math.inf else None

    def __repr__(self) -> str:
        bounds = f"{self.slots} slots + {self.queue_size}"
        return f"<BatchFormer {self.batching.value}, {len(self)} waiting, {bounds}, window {self.window_s * 1000:g} ms>"


def _deadline(place: _Place[T]) -> float:
    return place[0]
