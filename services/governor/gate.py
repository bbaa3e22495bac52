"""What all connections share: the slots, the bytes, and when to tell those who found neither to come back.

A slot is a place under the core's hard cap: taken at the last good chunk without waiting, or not at all. Bytes are
reserved by manifests, and held by the names of jobs, by lines that are not read yet and by replies that their client
has not read; there is one bound for a connection and one for all.

Who finds no slot is told when to try again. If `waiting` clients were told and are not back, and each job takes
`mean_s` of one of `cap` slots, the last of them finds one after about

    hint = mean_s * waiting / cap        at least 50 ms, at most 5 s, and up to a fifth more, so that they come apart

The client keeps its connection while it waits, so nobody is counted who has left. Five seconds is as long as the
original's client is willing to wait by default: a longer wait would be cut to that by itself, without the jitter.
Clients whose wait is cut would all return five seconds later, one of them in luck, and the slot would be idle until
the next round: so their hints are spread over the upper half of the five seconds. That costs them tries, of which the
original's client has fifty; whoever has very long to wait saves them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from services.core.limit import InflightCap
from services.governor.reply import Standing

SOONEST_S, LATEST_S = 0.05, 5.0
JITTER = 0.2
SPREAD = 0.5  # of a wait that was cut
FAR_S = 60.0  # away: tries are worth more than a slot's idle moments
FIRST_GUESS_S = 0.5  # of how long a job takes, before one was seen: the original's constant hint
NEWEST_SHARE = 0.1  # of the last job's time in the mean


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a connection may take, and all of them together."""

    line_bytes: int = 262_144
    jobs: int = 64
    connection_bytes: int = 67_108_864
    total_bytes: int = 268_435_456
    idle_s: float = 60.0


class Place:
    """A slot that somebody holds. Given back once, however often that is tried."""

    __slots__ = ("_gate", "_held")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._held = True

    def give_back(self, seconds: float | None = None) -> None:
        """`seconds`: how long the job took; None where it did not come to its end."""
        if self._held:
            self._held = False
            self._gate.give_back(seconds)


class Gate:
    """Pure: it keeps no clock, and its chance is a parameter."""

    def __init__(
        self, *, cap: int, bounds: Bounds, random: Callable[[], float], tokens: frozenset[str] = frozenset()
    ) -> None:
        self.bounds = bounds
        self.tokens = tokens
        self.leaving = False  # it still takes jobs, and says that new ones are better sent elsewhere
        self.draining = False
        self.held_bytes = 0
        self.waiting = 0
        self.yielded_total = 0
        self.mean_s: float | None = None  # until the first job has ended
        self._slots = InflightCap(cap)
        self._random = random

    @property
    def standing(self) -> Standing:
        """For a reply."""
        slots = self._slots
        return Standing(slots.inflight, slots.cap, slots.taken_total, self.yielded_total, self.leaving)

    @property
    def saturated(self) -> bool:
        return self._slots.inflight >= self._slots.cap

    def try_take(self) -> Place | None:
        """A slot now, or none."""
        return Place(self) if self._slots.try_take() else None

    def give_back(self, seconds: float | None) -> None:
        """By its `Place` alone."""
        self._slots.give_back()
        if seconds is not None:
            known = seconds if self.mean_s is None else self.mean_s
            self.mean_s = known + NEWEST_SHARE * (seconds - known)

    def hold(self, more_bytes: int, of_this_connection: int) -> bool:
        """Reserve so many bytes, unless a bound says no. `of_this_connection`: what it holds already."""
        own_bytes, all_bytes = of_this_connection + more_bytes, self.held_bytes + more_bytes
        if own_bytes > self.bounds.connection_bytes or all_bytes > self.bounds.total_bytes:
            return False
        self.held_bytes += more_bytes
        assert more_bytes >= 0, f"{more_bytes} bytes are let go, not held: {self!r}"
        return True

    def let_go(self, fewer_bytes: int) -> None:
        """Bytes that are no longer held."""
        self.held_bytes -= fewer_bytes
        assert self.held_bytes >= 0, f"{fewer_bytes} bytes were let go twice: {self!r}"

    def hint_ms(self, at_least_s: float = 0.0) -> int:
        """When to come back, for one more who is counted among those that wait; counts the yield."""
        self.yielded_total += 1
        mean_s = FIRST_GUESS_S if self.mean_s is None else self.mean_s
        wait_s = max(mean_s * max(self.waiting, 1) / self._slots.cap, SOONEST_S, at_least_s)
        if wait_s * (1 + JITTER) <= LATEST_S:
            return round(wait_s * (1 + JITTER * self._random()) * 1000)
        spread = SPREAD if wait_s <= FAR_S else JITTER
        return round(min(max(LATEST_S * (1 - spread * self._random()), at_least_s), LATEST_S) * 1000)

    def __repr__(self) -> str:
        return f"<Gate {self._slots!r}, {self.held_bytes} bytes held, {self.waiting} told to come back>"
