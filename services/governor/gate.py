"""What all connections share: the job slots, the held bytes, and when a client that found neither should retry.

A slot counts against the core's hard cap: it is taken at the last good chunk without waiting, or not at all. Bytes are
reserved by manifests, and held by job names, by lines that are not parsed yet and by replies that the client has not
read. One bound applies to each connection and one to all of them.

A client that finds no slot gets a time to retry. If `waiting` jobs are deferred, and each job occupies one of `cap`
slots for `mean_s`, the last of them finds a slot after about

    hint = mean_s * waiting / cap        at least 50 ms, at most 5 s, and up to a fifth more (jitter)

A client keeps its connection while it waits, so a client that has left is not counted. Five seconds is the longest wait
of the original's client by default: it would cut a longer hint itself, without the jitter. Clients whose hint is cut
would all return after five seconds, one of them would find a slot, and the slot would idle until the next round. So
their hints are spread over the upper half of the five seconds. That costs them tries, of which the original's client
has fifty; where the wait is very long (FAR_S) the spread is small, to save tries.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum

from services.core.limit import InflightCap
from services.governor.reply import GovernorStatus

SOONEST_S, LATEST_S = 0.05, 5.0
JITTER = 0.2
SPREAD = 0.5  # of a wait that was cut to LATEST_S
FAR_S = 60.0  # a wait above this gets JITTER only: a client has few tries, and they are worth more than an idle slot
FIRST_GUESS_S = 0.5  # of how long a job takes, before one was seen: the original's constant hint
NEWEST_SHARE = 0.1  # of the last job's time in the mean


@dataclass(frozen=True, slots=True)
class GovernorLimits:
    """Bounds in bytes, jobs and seconds: of one line, one connection, and all connections together."""

    line_bytes: int = 262_144
    jobs: int = 64
    connection_bytes: int = 67_108_864
    total_bytes: int = 268_435_456
    idle_s: float = 60.0


class Slot:
    """A slot that a job holds. It is released once; further calls do nothing."""

    __slots__ = ("_gate", "_held")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._held = True

    def release_slot(self, seconds: float | None = None) -> None:
        """`seconds`: how long the job ran; None if it did not finish."""
        if self._held:
            self._held = False
            self._gate.release_slot(seconds)


class Gate:
    """Slots, held bytes and retry hints of all connections. Pure: it reads no clock; `random` draws from [0, 1)."""

    def __init__(
        self, *, cap: int, bounds: GovernorLimits, random: Callable[[], float], tokens: frozenset[str] = frozenset()
    ) -> None:
        self.bounds = bounds
        self.tokens = tokens
        self.leaving = False  # jobs are still taken, and health reports that new ones should go elsewhere
        self.draining = False
        self.held_bytes = 0
        self.waiting = 0
        self.yielded_total = 0
        self.mean_s: float | None = None  # until the first job has ended
        self._slots = InflightCap(cap)
        self._random = random

    @property
    def status(self) -> GovernorStatus:
        """What every reply reports."""
        slots = self._slots
        return GovernorStatus(slots.inflight, slots.cap, slots.taken_total, self.yielded_total, self.leaving)

    @property
    def saturated(self) -> bool:
        """No slot is free."""
        return self._slots.inflight >= self._slots.cap

    def try_acquire(self) -> Slot | None:
        """A slot now, or none."""
        return Slot(self) if self._slots.try_take() else None

    def release_slot(self, seconds: float | None) -> None:
        """Called by `Slot` only. `seconds` updates the mean run time; None leaves it."""
        self._slots.give_back()
        if seconds is not None:
            known = seconds if self.mean_s is None else self.mean_s
            self.mean_s = known + NEWEST_SHARE * (seconds - known)

    def reserve(self, more_bytes: int, of_this_connection: int) -> bool:
        """Reserve bytes; False if a bound would be exceeded. `of_this_connection`: bytes that it holds already."""
        own_bytes, all_bytes = of_this_connection + more_bytes, self.held_bytes + more_bytes
        if own_bytes > self.bounds.connection_bytes or all_bytes > self.bounds.total_bytes:
            return False
        self.held_bytes += more_bytes
        assert more_bytes >= 0, f"{more_bytes} bytes are released, not reserved: {self!r}"
        return True

    def release(self, fewer_bytes: int) -> None:
        """Release reserved bytes."""
        self.held_bytes -= fewer_bytes
        assert self.held_bytes >= 0, f"{fewer_bytes} bytes were released twice: {self!r}"

    def hint_ms(self, min_s: float = 0.0) -> int:
        """When to retry, in ms, for a job that is counted in `waiting` already; counts the yield."""
        self.yielded_total += 1
        mean_s = FIRST_GUESS_S if self.mean_s is None else self.mean_s
        wait_s = max(mean_s * max(self.waiting, 1) / self._slots.cap, SOONEST_S, min_s)
        if wait_s * (1 + JITTER) <= LATEST_S:
            return round(wait_s * (1 + JITTER * self._random()) * 1000)
        spread = SPREAD if wait_s <= FAR_S else JITTER
        return round(min(max(LATEST_S * (1 - spread * self._random()), min_s), LATEST_S) * 1000)

    def __repr__(self) -> str:
        return f"<Gate {self._slots!r}, {self.held_bytes} bytes held, {self.waiting} jobs deferred>"


class Use(Enum):
    """What a connection holds bytes for."""

    LINES = 1  # not parsed yet
    REPLIES = 2  # that the client has not read
    TOKEN = 3  # of the running job
    NAME = 4  # in the last frame
    JOB = 5  # the name of one
    UPLOAD = 6  # of a job, at its declared size


class ConnectionMemory:
    """The bytes that one connection holds in the gate, by what they are used for."""

    __slots__ = ("_by_use", "_gate", "held_bytes")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._by_use: dict[Hashable, int] = {}
        self.held_bytes = 0

    def resize(self, use: Hashable, size: int) -> bool:
        """Hold `size` bytes for `use`, a `Use` or a `Use` and a name. False without room, and nothing has changed."""
        more = size - self._by_use.get(use, 0)
        if more > 0 and not self._gate.reserve(more, self.held_bytes):
            return False
        if more < 0:
            self._gate.release(-more)
        self.held_bytes += more
        self._by_use[use] = size
        if size == 0:
            del self._by_use[use]
        held = self.held_bytes
        assert 0 <= held <= self._gate.held_bytes, f"{held} bytes are held here, in {self._gate!r}"
        return True

    def release(self, use: Hashable) -> None:
        """Hold nothing for `use` any more."""
        self.resize(use, 0)

    def release_all(self) -> None:
        """The connection is closed. What it holds has to be the sum of its uses."""
        known = sum(self._by_use.values())
        assert self.held_bytes == known, (
            f"{self.held_bytes} bytes were held, of which {known} are known: {self._gate!r}"
        )
        self._by_use.clear()
        self.held_bytes = 0
        self._gate.release(known)
