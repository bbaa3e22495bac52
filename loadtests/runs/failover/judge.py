"""What a killed router costs, from the client's ledger: which requests it hit, and when the service was whole again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from loadtests.load.ledger import LATE, ON_TIME, Row
from loadtests.report.figure import Figure, at_least, at_most

WHOLE_WITHIN_S = 1.0
MAX_NOTED = 5
SEEN_S = 0.5
"""Until a kill is noticed, requests still reach the dead router: they count as its own."""


@dataclass(frozen=True, slots=True)
class Kill:
    """`at_s` after the start of the load; `open` requests were at the router just before."""

    at_s: float
    open: int


@dataclass
class Judged:
    """`kills` in the order of time. `retried`: the tenants whose clients send a request again that was hit."""

    kills: Sequence[Kill]
    retried: frozenset[str]
    sent: int = 0
    answered: int = 0
    refused: int = 0
    max_streams: int = 0
    hit: dict[int, int] = field(default_factory=dict)
    """By kill."""
    saved: int = 0
    """Requests that were hit and answered when sent again."""
    unsaved: list[str] = field(default_factory=list)
    """How the others ended, and how long after the kill."""
    stray: list[str] = field(default_factory=list)
    """Failures that no kill explains."""
    whole_after_s: float = 0.0
    """From a kill to the last failure that it caused, at most."""

    def record(self, row: Row) -> None:
        """Count one request."""
        self.sent += 1
        is_answered = row.ending in (ON_TIME, LATE)
        self.answered += is_answered
        if row.ending.startswith("refused:") and row.hint_ms is not None:
            self.refused += 1
            return
        was_hit = not is_answered or (row.attempts > 1 and row.tenant in self.retried)
        if not was_hit:
            return
        place = self._kill_of(row, is_answered=is_answered)
        if place is None:
            self.stray.append(row.ending)
            return
        self.hit[place] = self.hit.get(place, 0) + 1
        if row.tenant in self.retried:
            self.saved += is_answered
            if not is_answered and row.end_s is not None:
                after_s = row.end_s - self.kills[place].at_s
                self.unsaved.append(f"{row.ending} after {row.attempts} attempts, {after_s:.3f} s after the kill")
        if not is_answered and row.end_s is not None:
            self.whole_after_s = max(self.whole_after_s, row.end_s - self.kills[place].at_s)

    def _kill_of(self, row: Row, *, is_answered: bool) -> int | None:
        """The kill within whose time the request was under way; a failure ends soon after it."""
        for place, kill in enumerate(self.kills):
            began = row.intended_s <= kill.at_s + SEEN_S
            ended = row.end_s is not None and row.end_s >= kill.at_s - 0.05
            in_time = is_answered or (row.end_s is not None and row.end_s <= kill.at_s + 2 * WHOLE_WITHIN_S)
            if began and ended and in_time:
                return place
        return None

    def figures(self) -> Iterator[Figure]:
        """Hit are at most the requests that were open at the router, and those sent before it was noticed."""
        per_s = self.sent / max(1.0, self.kills[-1].at_s) if self.kills else 0.0
        allowed = sum(kill.open for kill in self.kills) + len(self.kills) * SEEN_S * per_s
        yield at_least("routers killed", len(self.kills), 1)
        yield at_least("streams open at once", self.max_streams, 200)
        yield Figure("requests sent", self.sent)
        yield at_least("answered completely", self.answered, 1)
        yield Figure("rejected by a router, with a time to retry", self.refused)
        yield at_most("hit by a kill", sum(self.hit.values()), round(allowed))
        yield Figure("of these, answered when sent again", self.saved)
        yield at_most("sent again, and not answered", len(self.unsaved), 0, note="; ".join(self.unsaved[:MAX_NOTED]))
        yield at_most("failures that no kill explains", len(self.stray), 0)
        yield at_most("seconds from a kill to the last failure", round(self.whole_after_s, 3), WHOLE_WITHIN_S)
