"""What all connections share: job slots, held bytes, and the retry hint for a client that found neither.

A slot counts against the core's hard cap. It is taken at the last good chunk without waiting, or not at all. Held bytes
are bounded for each connection and for all together. If `waiting` jobs are deferred, and each job occupies one of `cap`
slots for `mean_s`, the last of them finds a slot after about

    hint = mean_s * waiting / cap        at least 50 ms, at most 5 s, and up to a fifth more (jitter)

Five seconds is the longest wait of the original's client by default, which would cut a longer hint and its jitter. If
all hints were cut to five seconds, those clients would return together, one would find a slot, and the slot would idle
until the next round. So they are spread over the upper half of the five seconds. That costs retries, of which the
original's client has fifty, so very long waits (FAR_S) are spread less.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum

from services.core.limit import InflightCap
from services.governor.reply import GovernorStatus

SOONEST_S, LATEST_S = 0.05, 5.0
JITTER = 0.2
SPREAD = 0.5  # share of LATEST_S, for waits cut to it
FAR_S = 60.0  # waits above this get JITTER only: the client's retries matter more than an idle slot
FIRST_GUESS_S = 0.5  # mean run time before the first job ended: the original's constant hint
NEWEST_SHARE = 0.1  # weight of the last job in the mean


@dataclass(frozen=True, slots=True)
class GovernorLimits:
    """Bounds in bytes, jobs and seconds: of one line, one connection, and all connections together."""

    line_bytes: int = 262_144
    jobs: int = 64
    connection_bytes: int = 67_108_864
    total_bytes: int = 268_435_456
    idle_s: float = 60.0


class Slot:
    """A job's slot. It is released once; further calls have no effect."""

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
    """Slots, held bytes and retry hints of all connections. Reads no clock; `random` draws from [0, 1)."""

    def __init__(
        self, *, cap: int, bounds: GovernorLimits, random: Callable[[], float], tokens: frozenset[str] = frozenset()
    ) -> None:
        self.bounds = bounds
        self.tokens = tokens
        self.leaving = False  # jobs are still accepted; health reports that new ones should go elsewhere
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
        return self._slots.inflight >= self._slots.cap

    def try_acquire(self) -> Slot | None:
        """A slot, or None if none is free."""
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
    """The bytes that one connection holds in the gate, by use."""

    __slots__ = ("_by_use", "_gate", "held_bytes")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._by_use: dict[Hashable, int] = {}
        self.held_bytes = 0

    def resize(self, use: Hashable, size: int) -> bool:
        """Hold `size` bytes for `use`: a `Use`, or a `Use` and a name. False, and no change, without room."""
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
        self.resize(use, 0)

    def release_all(self) -> None:
        """Release everything; the connection is closed. Asserts that the sum of its uses is what it held."""
        known = sum(self._by_use.values())
        assert self.held_bytes == known, (
            f"{self.held_bytes} bytes were held, of which {known} are known: {self._gate!r}"
        )
        self._by_use.clear()
        self.held_bytes = 0
        self._gate.release(known)
