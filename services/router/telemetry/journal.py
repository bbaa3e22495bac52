"""Recent decisions and the requests that ended last, for the console only (docs/decisions/037-console-by-sse.md).

A request writes here on admission and at its end. A record is a tuple that refers to the request: nothing is copied or
formatted until it is read. Each kind of decision has its own bound, so that many rejections do not displace rare kinds.
Without a viewer only UNWATCHED_RECORDS are kept: 2,000 records are several megabytes, which would pass through the
processor's caches and cost each request more than writing them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from services.contracts.console import What
from services.contracts.problem import Details
from services.core.outcome import Outcome
from services.router.request import InferenceRequest
from services.runtime.errors import WeirError

MAX_PER_KIND = 40
MAX_RECORDS = 2000
UNWATCHED_RECORDS = 100
LOOKING_S = 10.0
"""How long a viewer's visit keeps MAX_RECORDS in force."""

KIND: dict[Outcome | None, What] = {
    None: "admit",
    Outcome.SERVED: "served",
    Outcome.YIELD: "yield",
    Outcome.DEADLINE_EXPIRED: "expire",
    Outcome.DEADLINE_EXCEEDED: "late",
    Outcome.CLIENT_GONE: "gone",
    Outcome.UPSTREAM_FAILED: "failed",
    Outcome.POISON: "failed",
    Outcome.INTERNAL: "failed",
    **dict.fromkeys(
        (
            Outcome.TENANT_QUEUE_FULL,
            Outcome.RATE_LIMITED,
            Outcome.DEADLINE_INFEASIBLE,
            Outcome.NO_CAPACITY,
            Outcome.DRAINING,
            Outcome.MODEL_NOT_FOUND,
            Outcome.BAD_INPUT,
        ),
        "refuse",
    ),
}
"""The console's word for an outcome; None is an admission."""

WHATS: tuple[What, ...] = ("admit", "degrade", "yield", "refuse", "expire", "served", "late", "gone", "failed")
ADMISSIONS: frozenset[What] = frozenset({"admit", "degrade"})
"""Decisions after which the request continues."""
NO_DETAILS = Details()


class Entry(NamedTuple):
    """One decision. The rings hold plain tuples in this order, since creating a NamedTuple costs six times as much."""

    n: int
    at: float
    what: What
    outcome: Outcome | None
    request: InferenceRequest
    details: Details
    message: str


Kept = tuple[int, float, What, Outcome | None, InferenceRequest, Details, str]


class Journal:
    """One per router. `decided` counts all decisions; `worker_s` is the time that ended requests held workers."""

    __slots__ = ("_dropped_at", "_living", "_looking_until", "_placed", "_refused", "_rings", "decided", "worker_s")

    def __init__(self) -> None:
        self.decided = 0
        self.worker_s = 0.0
        self._looking_until = -inf
        self._dropped_at = -inf  # when the last forgotten of the admitted requests ended
        self._rings: dict[What, deque[Kept]] = {what: deque(maxlen=MAX_PER_KIND) for what in WHATS}
        self._living: dict[str, InferenceRequest] = {}
        self._placed: deque[Kept] = deque()
        self._refused: deque[Kept] = deque()

    def admitted(self, request: InferenceRequest) -> None:
        """Record an admission; above level 0 it is a degraded one."""
        self.decided = n = self.decided + 1
        what: What = "degrade" if request.level else "admit"
        self._rings[what].append((n, request.arrived_at, what, None, request, NO_DETAILS, ""))
        self._living[request.id] = request

    def detached(self, request: InferenceRequest) -> None:
        """Record that a request ended for its client while its work continues."""
        self.decided = n = self.decided + 1
        outcome = request.client_outcome
        what = KIND[outcome]
        self._rings[what].append((n, request.client_outcome_at, what, outcome, request, NO_DETAILS, ""))

    def ended(self, request: InferenceRequest, failure: WeirError | None, now: float) -> None:
        """Record the end of a request. Afterwards its record is only read."""
        n, outcome, admitted = self.decided + 1, request.outcome, request.admitted
        what = KIND[outcome]
        if request.dispatched_at:
            self.worker_s += now - request.dispatched_at
        elif admitted and outcome is Outcome.YIELD:
            what = "expire"  # the client's wait limit, reached in the queue
        if failure is None:
            entry: Kept = (n, now, what, outcome, request, NO_DETAILS, "")
        else:
            entry = (n, now, what, outcome, request, failure.details, failure.message)
        if request.client_outcome is None:
            self.decided = n
            self._rings[what].append(entry)
        ended = self._placed if admitted else self._refused
        ended.append(entry)
        if len(ended) > UNWATCHED_RECORDS and (now > self._looking_until or len(ended) > MAX_RECORDS):
            self._forget(ended)
        if admitted and self._living.get(request.id) is request:
            del self._living[request.id]
        request.drop_contents()

    def _forget(self, ended: deque[Kept]) -> None:
        """Drop the oldest record, or two while there are too many, so that no call takes long."""
        gone = ended.popleft()
        if len(ended) > UNWATCHED_RECORDS:
            gone = ended.popleft()
        if ended is self._placed:
            self._dropped_at = gone[1]

    # ---- for viewers

    def looked(self, now: float) -> None:
        """A viewer is present: keep more records for LOOKING_S."""
        self._looking_until = now + LOOKING_S

    def since(self, n: int, limit: int) -> tuple[list[Entry], int]:
        """At most `limit` decisions, oldest first, and how many after the `n`th are left out.

        The kinds share the decisions after the `n`th equally, newest first; the remaining room goes to earlier ones.
        """
        lines = [[entry for entry in reversed(ring) if entry[0] > n] for ring in self._rings.values()]
        chosen = _in_turns(lines, limit)
        left_out = self.decided - n - len(chosen)
        if len(chosen) < limit:
            before = sorted((entry for ring in self._rings.values() for entry in ring if entry[0] <= n), key=_number)
            chosen += before[len(chosen) - limit :]
        return [Entry(*entry) for entry in sorted(chosen, key=_number)], left_out

    def served_since(self, at: float, limit: int) -> tuple[list[tuple[float, InferenceRequest]], float]:
        """(time of the end, request) of those served after `at`, and the time since which none of these is missing.

        That time is `at`, unless more requests ended since than are kept, or than `limit`, the number looked at.
        """
        found: list[tuple[float, InferenceRequest]] = []
        for looked_at, (_, ended_at, _, outcome, request, _, _) in enumerate(reversed(self._placed)):
            if ended_at <= at:
                break
            if looked_at == limit:
                return found, ended_at
            if outcome is Outcome.SERVED:
                found.append((ended_at, request))
        return found, max(at, self._dropped_at)

    def find(self, id: str) -> Entry | InferenceRequest | None:
        """The newest request of this id: its own record while it is live, its last entry after it ended."""
        living = self._living.get(id)
        return living if living is not None else next(self._ended(id), None)

    def _ended(self, id: str) -> Iterator[Entry]:
        """The entries of ended requests with this id, newest first, among those kept or shown."""
        lines = (self._placed, self._refused, *(ring for what, ring in self._rings.items() if what not in ADMISSIONS))
        found = [next((entry for entry in reversed(line) if entry[4].id == id), None) for line in lines]
        yield from (Entry(*entry) for entry in sorted((entry for entry in found if entry), key=_number, reverse=True))

    def __repr__(self) -> str:
        remembered = len(self._placed) + len(self._refused)
        return f"<Journal {self.decided} decided, {len(self._living)} live, {remembered} remembered>"


def _number(entry: Kept) -> int:
    return entry[0]


def _in_turns(lines: list[list[Kept]], limit: int) -> list[Kept]:
    """The first of each list, then the second of each, up to `limit` in all."""
    longest = max(map(len, lines))
    turns = (line[at] for at in range(longest) for line in lines if at < len(line))
    return [entry for _, entry in zip(range(limit), turns, strict=False)]
