"""What was decided lately, and the requests that ended last: for people who look, and for nothing else.

A request writes here twice, when it has got a place and when it ends. What is kept is a tuple that refers to the
request itself: nothing is copied, formatted or rounded before anybody asks, and most of it nobody asks for.

Bounds. Of each kind of decision the last MOST_OF_A_KIND, so that a flood of refusals does not push out what is rare;
the last MOST_LIVES of those who had a place, and as many of those who got none, so that it does not push out the
answered either. While nobody looks these are UNSEEN_LIVES: two thousand records are several megabytes that each request
would drive through the processor's caches, which costs it more than writing them. Prompts, passages and answers are
never kept.
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

MOST_OF_A_KIND = 40
MOST_LIVES = 2000
UNSEEN_LIVES = 100
LOOKING_S = 10.0
"""Whoever has looked may look again for so long."""

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
"""What an outcome is called among decisions; None is a place in line."""

WHATS: tuple[What, ...] = ("admit", "degrade", "yield", "refuse", "expire", "served", "late", "gone", "failed")
BEGINNINGS: frozenset[What] = frozenset({"admit", "degrade"})
"""Decisions after which a request goes on."""
NOTHING_SAID = Details()


class Entry(NamedTuple):
    """One decision. A plain tuple in this order is what the rings hold: a class of its own costs six times as much."""

    n: int
    at: float
    what: What
    outcome: Outcome | None
    request: InferenceRequest
    details: Details
    message: str


Kept = tuple[int, float, What, Outcome | None, InferenceRequest, Details, str]


class Journal:
    """One for each router. `decided` counts all decisions; `worker_s` is the time that ended requests held workers."""

    __slots__ = ("_dropped_at", "_living", "_looking_until", "_placed", "_refused", "_rings", "decided", "worker_s")

    def __init__(self) -> None:
        self.decided = 0
        self.worker_s = 0.0
        self._looking_until = -inf
        self._dropped_at = -inf  # when the last of those ended who had a place and are remembered no more
        self._rings: dict[What, deque[Kept]] = {what: deque(maxlen=MOST_OF_A_KIND) for what in WHATS}
        self._living: dict[str, InferenceRequest] = {}
        self._placed: deque[Kept] = deque()
        self._refused: deque[Kept] = deque()

    def admitted(self, request: InferenceRequest) -> None:
        """It has a place in the queue; at a level above 0, as a smaller request than it asked to be."""
        self.decided = n = self.decided + 1
        what: What = "degrade" if request.level else "admit"
        self._rings[what].append((n, request.arrived_at, what, None, request, NOTHING_SAID, ""))
        self._living[request.id] = request

    def detached(self, request: InferenceRequest) -> None:
        """It is over for its client, and its work goes on: the decision is shown now, not at the work's end."""
        self.decided = n = self.decided + 1
        outcome = request.client_outcome
        what = KIND[outcome]
        self._rings[what].append((n, request.client_outcome_at, what, outcome, request, NOTHING_SAID, ""))

    def ended(self, request: InferenceRequest, failure: WeirError | None, now: float) -> None:
        """It has ended with its `outcome`. From here on its record is only looked at."""
        n, outcome, admitted = self.decided + 1, request.outcome, request.admitted
        what = KIND[outcome]
        if request.dispatched_at:
            self.worker_s += now - request.dispatched_at
        elif admitted and outcome is Outcome.YIELD:
            what = "expire"  # its client's patience, after a wait in the queue
        if failure is None:
            entry: Kept = (n, now, what, outcome, request, NOTHING_SAID, "")
        else:
            entry = (n, now, what, outcome, request, failure.details, failure.message)
        if request.client_outcome is None:
            self.decided = n
            self._rings[what].append(entry)
        ended = self._placed if admitted else self._refused
        ended.append(entry)
        if len(ended) > UNSEEN_LIVES and (now > self._looking_until or len(ended) > MOST_LIVES):
            self._forget(ended)
        if admitted and self._living.get(request.id) is request:
            del self._living[request.id]
        request.drop_contents()

    def _forget(self, ended: deque[Kept]) -> None:
        """The oldest goes; two of them while there are too many, so that forgetting a crowd never takes long."""
        for _ in range(min(2, len(ended) - UNSEEN_LIVES)):
            gone = ended.popleft()
            if ended is self._placed:
                self._dropped_at = gone[1]

    # ---- for those who look

    def looked(self, now: float) -> None:
        """Somebody looks: from here on more is remembered, for a while."""
        self._looking_until = now + LOOKING_S

    def since(self, n: int, most: int) -> tuple[list[Entry], int]:
        """At most `most` decisions, oldest first, and how many after the `n`th are not among them.

        Of what came after the `n`th every kind has its part, newest first; what room is left goes to what came before.
        """
        lines = [[entry for entry in reversed(ring) if entry[0] > n] for ring in self._rings.values()]
        chosen = _in_turns(lines, most)
        left_out = self.decided - n - len(chosen)
        if len(chosen) < most:
            before = sorted((entry for ring in self._rings.values() for entry in ring if entry[0] <= n), key=_number)
            chosen += before[len(chosen) - most :]
        return [Entry(*entry) for entry in sorted(chosen, key=_number)], left_out

    def served_since(self, at: float, most: int) -> tuple[list[tuple[float, InferenceRequest]], float]:
        """When they ended, and who, of those that were served after `at`; and since when none of these is missing.

        That is `at`, unless more ended since than are remembered, or than `most`: so many are looked at.
        """
        found: list[tuple[float, InferenceRequest]] = []
        for looked_at, (_, ended_at, _, outcome, request, _, _) in enumerate(reversed(self._placed)):
            if ended_at <= at:
                break
            if looked_at == most:
                return found, ended_at
            if outcome is Outcome.SERVED:
                found.append((ended_at, request))
        return found, max(at, self._dropped_at)

    def find(self, id: str) -> Entry | InferenceRequest | None:
        """The newest request of this name: its record while it lives, with its end when it is remembered."""
        living = self._living.get(id)
        return living if living is not None else next(self._ended(id), None)

    def _ended(self, id: str) -> Iterator[Entry]:
        """Of those remembered, and of those told last of their kind: what is shown can be looked into."""
        lines = (self._placed, self._refused, *(ring for what, ring in self._rings.items() if what not in BEGINNINGS))
        found = [next((entry for entry in reversed(line) if entry[4].id == id), None) for line in lines]
        yield from (Entry(*entry) for entry in sorted((entry for entry in found if entry), key=_number, reverse=True))

    def __repr__(self) -> str:
        remembered = len(self._placed) + len(self._refused)
        return f"<Journal {self.decided} decided, {len(self._living)} live, {remembered} remembered>"


def _number(entry: Kept) -> int:
    return entry[0]


def _in_turns(lines: list[list[Kept]], most: int) -> list[Kept]:
    """One of each line, then the next of each, until there are so many."""
    longest = max(map(len, lines))
    turns = (line[at] for at in range(longest) for line in lines if at < len(line))
    return [entry for _, entry in zip(range(most), turns, strict=False)]
