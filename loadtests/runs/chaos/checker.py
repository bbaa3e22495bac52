"""What became of every request, and whether anything that happened accounts for it.

A client may be told no, and a connection may break while the router or the client's own wire is broken. It may never
be left without an end, hear the answer twice, hear somebody else's, or wait beyond its deadline. This module knows
entries and spans; no socket, no clock, no process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from loadtests.runs.nonces.judge import Verdict

GRACE_S = 0.25
"""How much later than its deadline an answer, or a word that there is none, may be."""
AFTERMATH_S = 1.0
"""So long after a fault is over its broken connections may still be found."""
UNWRITTEN_S = 1.0
"""So much of its log a router that is killed may take with it."""


class End(StrEnum):
    """How a request ended for its client."""

    RIGHT = "answered, whole and right"
    REFUSED = "refused, with a status and a reason"
    CUT = "streams that were cut and say so"
    BROKEN = "in flight when the router or the client's wire broke: a visible break"
    UNREACHED = "found nobody to connect to, while there was no router"
    LOST = "lost"
    DOUBLED = "answered twice"
    FOREIGN = "foreign"
    WRONG = "wrong"


NEVER = (End.LOST, End.DOUBLED, End.FOREIGN, End.WRONG)
PLAIN = {
    Verdict.RIGHT: End.RIGHT, Verdict.REFUSED: End.REFUSED, Verdict.CUT: End.CUT, Verdict.FOREIGN: End.FOREIGN,
    Verdict.WRONG: End.WRONG,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One request. `verdict` is None where its client gave up; times are of one clock. `wire`: by way of one."""

    id: str
    sent_s: float
    end_s: float
    deadline_s: float
    verdict: Verdict | None
    wire: bool
    noticed_late_s: float = 0.0
    connected: bool = True


@dataclass(frozen=True, slots=True)
class Trouble:
    """A time in which clients' connections may break, and how late it alone may make an answer.

    `holds`: what is sent meanwhile stands still, so that a request is as late as long as the trouble lasted. `kills`:
    it began with a kill, and the log's last lines may be gone. `wire`: it was the wire's, and no other's concern.
    """

    from_s: float
    to_s: float
    wire: bool
    breaks: bool
    holds: bool = False
    kills: bool = False
    delay_s: float = 0.0

    def meets(self, begin: float, end: float) -> bool:
        return self.from_s <= end and begin <= self.to_s + AFTERMATH_S

    def held_s(self, begin: float, end: float) -> float:
        """How much of a stretch it made longer."""
        held = max(0.0, min(end, self.to_s) - max(begin, self.from_s)) if self.holds else 0.0
        return held + (self.delay_s if self.meets(begin, end) else 0.0)


@dataclass
class Checked:
    """Counts, and the first of what must never be: what is wrong, the entry, how late it was, what was written down."""

    ends: Counter[End] = field(default_factory=Counter)
    hung: int = 0
    unbooked: int = 0
    misbooked: int = 0
    asked: int = 0
    kept: list[tuple[str, Entry, float, Sequence[str]]] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (any(self.ends[end] for end in NEVER) or self.hung or self.unbooked or self.misbooked)


MOST_KEPT = 20
Still = Callable[[float, float], float]


class Checker:
    """`troubles`: all there were. `still`: how long the machine stood still in a stretch."""

    def __init__(self, troubles: Iterable[Trouble], still: Still = lambda begin, end: 0.0) -> None:
        self._troubles = sorted(troubles, key=lambda trouble: trouble.from_s)
        self._still = still

    def check(self, entries: Iterable[Entry], booked: Mapping[str, Sequence[str]], unasked: int = 0) -> Checked:
        """`booked`: the outcomes that the router wrote down, by id; `unasked`: answers that nobody was waiting for."""
        found = Checked()
        found.ends[End.DOUBLED] = unasked
        for entry in entries:
            found.asked += 1
            end = self._end(entry, booked.get(entry.id, ()))
            found.ends[end] += 1
            self._look(found, entry, end, booked.get(entry.id, ()))
        return found

    def _look(self, found: Checked, entry: Entry, end: End, outcomes: Sequence[str]) -> None:
        """Everything else that may be wrong with it."""
        hung, unbooked = self.late_s(entry) > GRACE_S, end is End.RIGHT and not outcomes and not self._forgotten(entry)
        misbooked = not entry.wire and (
            (end is End.RIGHT and "served" not in (outcomes or ("served",)))
            or (end is End.REFUSED and "served" in outcomes)
        )
        found.hung += hung
        found.unbooked += unbooked
        found.misbooked += misbooked
        marks = {"hung": hung, "not in the log": unbooked, "told otherwise than booked": misbooked, end: end in NEVER}
        for mark, is_so in marks.items():
            if is_so and len(found.kept) < MOST_KEPT:
                found.kept.append((mark, entry, self.late_s(entry), outcomes))

    def _end(self, entry: Entry, outcomes: Sequence[str]) -> End:
        if entry.verdict is None:
            return End.LOST
        if len(outcomes) > 1:
            return End.DOUBLED
        if entry.verdict is Verdict.DROPPED:
            broken = End.BROKEN if entry.connected else End.UNREACHED
            return broken if self._accounts(entry) else End.LOST
        return PLAIN[entry.verdict]

    def _accounts(self, entry: Entry) -> bool:
        """Whether something that happened broke its connection."""
        return any(trouble.breaks and trouble.meets(entry.sent_s, entry.end_s) for trouble in self._of(entry))

    def _forgotten(self, entry: Entry) -> bool:
        """Whether its line in the log may have died with the router."""
        return any(
            trouble.kills and entry.end_s <= trouble.to_s and trouble.from_s <= entry.end_s + UNWRITTEN_S
            for trouble in self._troubles
        )

    def late_s(self, entry: Entry) -> float:
        """How long after its deadline it ended, less what the machine, and what was frozen on its way, took."""
        late_s = entry.end_s - entry.noticed_late_s - entry.sent_s - entry.deadline_s
        if late_s <= GRACE_S:
            return late_s
        held_s = sum(trouble.held_s(entry.sent_s, entry.end_s) for trouble in self._of(entry))
        return late_s - held_s - self._still(entry.sent_s + entry.deadline_s, entry.end_s)

    def _of(self, entry: Entry) -> list[Trouble]:
        """Those that could touch it: they began before it ended."""
        last = bisect_left(self._troubles, entry.end_s, key=lambda trouble: trouble.from_s)
        return [trouble for trouble in self._troubles[:last] if entry.wire or not trouble.wire]
