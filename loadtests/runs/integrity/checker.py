"""What became of every request, and whether anything that happened accounts for it.

A client may be refused, and a connection may break while the router or the client's own wire is broken. A client may
never be left without an end, get an answer twice, get another's answer, or wait beyond its deadline. The rules are
those of the world (`loadtests.judging.rules`); what is known here alone is what faults and the machine excuse. This
module knows no socket, no clock and no process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from loadtests.judging import rules
from loadtests.judging.answers import Verdict
from loadtests.judging.rules import Broken, Seen
from loadtests.runs.integrity.logs import Book

GRACE_S = 0.25
"""How much later than its deadline an answer, or a word that there is none, may be."""
AFTERMATH_S = 1.0
"""So long after a fault is over its broken connections may still be found."""
UNWRITTEN_S = 1.0
"""So much of its log a process that is killed may take with it."""
FAILED = (400, 422, 502, 504)
"""Of the refusals, those after a worker had been asked: it failed, or the time was up."""
MOST_KEPT = 20


class End(StrEnum):
    """How a request ended for its client."""

    RIGHT = "answered, whole and right"
    REFUSED = "refused before a worker had it"
    FAILED = "failed, and told so with a status"
    CUT = "streams that were cut and say so"
    BROKEN = "in flight when the router or the client's wire broke: a visible break"
    UNREACHED = "no connection, while there was no router"
    LOST = "lost"
    DOUBLED = "answered twice"
    FOREIGN = "foreign: another's nonce"
    WRONG = "wrong, mixed or truncated, told as whole"


NEVER = (End.LOST, End.DOUBLED, End.FOREIGN, End.WRONG)
PLAIN = {
    Verdict.RIGHT: End.RIGHT, Verdict.CUT: End.CUT, Verdict.FOREIGN: End.FOREIGN, Verdict.WRONG: End.WRONG,
}  # fmt: skip


class Rule(StrEnum):
    """What must not be, beside the ends that must not be."""

    HUNG = "hung: over later than 250 ms after the deadline"
    UNBOOKED = "answered, and not in the router's log"
    MISBOOKED = "told otherwise than the router's log says"
    MISCOUNTED = "outcomes that log and metrics count differently"
    UNWORKED = "answered by a worker that does not know it"
    RECEIVED = "received by workers more often than the rules of retries allow"
    UNHINTED = "invited to come back without a usable hint"
    AFTER_KILL = "failures before the first token after a worker's kill"
    UNCALM = "calms after the last fault that were not served"


class Entry(NamedTuple):
    """One request, as its client and its way know it. `gave_up`: its client waited for nothing any more.

    `wire`: it went by way of the clients' wire. `noticed_late_s`: how long the client itself may have been away when it
    noticed the end. `spoke`: text had come.
    """

    seen: Seen
    wire: bool = False
    gave_up: bool = False
    noticed_late_s: float = 0.0
    connected: bool = True
    spoke: bool = False


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
        """Whether it, or what it leaves behind, falls into a stretch."""
        return self.from_s <= end and begin <= self.to_s + AFTERMATH_S

    def forgets(self, begin_s: float, end_s: float) -> bool:
        """Whether a line about what ended between these may have died with the process."""
        return self.kills and begin_s <= self.to_s and self.from_s <= end_s + UNWRITTEN_S

    def held_s(self, begin: float, end: float) -> float:
        """How much of a stretch it made longer."""
        held = max(0.0, min(end, self.to_s) - max(begin, self.from_s)) if self.holds else 0.0
        return held + (self.delay_s if self.meets(begin, end) else 0.0)


class Worked(NamedTuple):
    """What workers and metrics said at the end.

    `received`: by id, the workers that took it, of those that write a log, whose names are `honest`. `counted` and
    `retries`: the counters of the router's last life, its `starts`-th.
    """

    received: dict[str, list[str]]
    honest: Sequence[str]
    counted: Counter[str]
    retries: int
    starts: int = 1
    seconds: float = 0.0


@dataclass
class Checked:
    """Counts of ends and of broken rules, and the first of what must never be: what it broke, and whose entry it is."""

    ends: Counter[End] = field(default_factory=Counter)
    broken: Counter[Rule] = field(default_factory=Counter)
    asked: int = 0
    kept: list[tuple[str, str, Entry | None]] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing was found that must never be."""
        return not any(self.ends[end] for end in NEVER) and not self.broken.total()


Still = Callable[[float, float], float]


def never_still(begin: float, end: float) -> float:
    """Of a machine that does not stand still."""
    return 0.0


class Checker:
    """`troubles`: all that clients may feel. `kills`: by worker, when each was killed and back. `still`: how long the
    machine stood still in a stretch."""

    def __init__(
        self,
        troubles: Iterable[Trouble],
        still: Still = never_still,
        kills: Iterable[tuple[str, Trouble]] = (),
    ) -> None:
        self._troubles = sorted(troubles, key=lambda trouble: trouble.from_s)
        self._still = still
        self._kills = list(kills)

    def check(
        self,
        entries: Sequence[Entry],
        book: Book,
        *,
        worked: Worked | None = None,
        unasked: int = 0,
        tail: Sequence[Seen] = (),
        alone: bool = False,
    ) -> Checked:
        """Every entry and every rule.

        `unasked`: answers that nobody was waiting for. `tail`: requests of the calm at the end. `alone`: workers were
        killed one at a time and nothing else was done, so that the one retry has to hide every kill.
        """
        found, by_id = Checked(asked=len(entries)), {entry.seen.id: entry for entry in entries}
        found.ends[End.DOUBLED] = unasked
        for entry in entries:
            end = self._end(entry, book)
            found.ends[end] += 1
            if end in NEVER:
                self._keep(found, end, entry.seen.id, by_id)
        for rule, broken in self._rules(entries, book, worked, tail, alone):
            for id, what in broken:
                found.broken[rule] += 1
                self._keep(found, f"{rule}: {what}", id, by_id)
        return found

    @staticmethod
    def _keep(found: Checked, what: str, id: str, by_id: dict[str, Entry]) -> None:
        if len(found.kept) < MOST_KEPT:
            found.kept.append((what, id, by_id.get(id)))

    def _end(self, entry: Entry, book: Book) -> End:
        verdict = entry.seen.verdict
        if entry.gave_up or entry.seen.ended_s is None:
            return End.LOST
        if len(book.lines.get(entry.seen.id, ())) > 1:
            return End.DOUBLED
        if verdict is Verdict.DROPPED:
            broken = End.BROKEN if entry.connected else End.UNREACHED
            return broken if self._accounts(entry) else End.LOST
        if verdict is Verdict.REFUSED:
            return End.FAILED if entry.seen.status in FAILED else End.REFUSED
        return PLAIN[verdict]

    def _rules(
        self, entries: Sequence[Entry], book: Book, worked: Worked | None, tail: Sequence[Seen], alone: bool
    ) -> Iterator[tuple[Rule, Iterable[Broken]]]:
        seen = [entry.seen for entry in entries]
        straight = [entry.seen for entry in entries if not entry.wire]
        held_s = {entry.seen.id: partial(self._held_back_s, entry) for entry in entries}
        yield Rule.HUNG, rules.in_time(seen, GRACE_S, lambda one: held_s[one.id]())
        yield Rule.UNBOOKED, rules.answered_is_logged(seen, book.lines, self._is_forgotten)
        yield Rule.MISBOOKED, rules.client_and_log_agree(straight, book.lines, lambda one, line: False)
        yield Rule.UNHINTED, rules.invited_have_a_hint(seen)
        yield Rule.UNCALM, rules.calm_is_served(tail)
        if alone:
            yield Rule.AFTER_KILL, self._failed_by_kills(entries)
        if worked is None:
            return
        received, retries, starts = worked.received, worked.retries, worked.starts
        yield Rule.MISCOUNTED, rules.log_and_metrics_agree(book.last, worked.counted)
        yield Rule.UNWORKED, self._unknown_to_workers(seen, book, worked)
        yield Rule.RECEIVED, rules.received_at_most_twice(received)
        if starts == 1:
            yield Rule.RECEIVED, rules.retries_are_counted(received, retries)
        yield (
            Rule.RECEIVED,
            rules.retries_within_their_budget(
                received, retries, requests=len(entries), seconds=worked.seconds, starts=starts
            ),
        )

    def _unknown_to_workers(self, seen: Iterable[Seen], book: Book, worked: Worked) -> Iterator[Broken]:
        """Right answers of a worker whose log does not know them, though it was not killed about then."""
        for one in seen:
            lines = book.lines.get(one.id, ())
            name = lines[0].worker if lines and one.verdict is Verdict.RIGHT else ""
            if name not in worked.honest or name in worked.received.get(one.id, ()):
                continue
            killed = (trouble for worker, trouble in self._kills if worker == name)
            if not any(trouble.forgets(one.sent_s, one.end_s) for trouble in killed):
                yield Broken(one.id, f"{one} was answered by {name}, whose log has no such request")

    def _failed_by_kills(self, entries: Sequence[Entry]) -> Iterator[Broken]:
        """What a kill let a client see before the first token: the one retry should have hidden it.

        A deadline that passed while the machine stood still is the machine's.
        """
        for entry in entries:
            seen = entry.seen
            failed = seen.verdict is Verdict.REFUSED and seen.status in FAILED
            cut = seen.verdict in (Verdict.CUT, Verdict.DROPPED) and not entry.spoke
            met = any(trouble.meets(seen.sent_s, seen.end_s) for _, trouble in self._kills)
            stood_still = seen.status == 504 and self._still(seen.sent_s, seen.end_s) > GRACE_S
            if met and (failed or cut) and not stood_still:
                yield Broken(seen.id, f"{seen} failed after a worker's kill: {seen.verdict}, status {seen.status}")

    def _accounts(self, entry: Entry) -> bool:
        """Whether something that happened broke its connection."""
        return any(trouble.breaks and trouble.meets(entry.seen.sent_s, entry.seen.end_s) for trouble in self._of(entry))

    def _is_forgotten(self, seen: Seen) -> bool:
        """Whether its line in the router's log may have died with the router."""
        return any(trouble.forgets(seen.end_s, seen.end_s) for trouble in self._troubles)

    def _held_back_s(self, entry: Entry) -> float:
        """What the client, the machine, and what was frozen on its way took of the time after its deadline."""
        seen = entry.seen
        held_s = sum(trouble.held_s(seen.sent_s, seen.end_s) for trouble in self._of(entry))
        return entry.noticed_late_s + held_s + self._still(seen.sent_s + seen.deadline_s, seen.end_s)

    def _of(self, entry: Entry) -> list[Trouble]:
        """Those that could touch it: they began before it ended."""
        last = bisect_left(self._troubles, entry.seen.end_s, key=lambda trouble: trouble.from_s)
        return [trouble for trouble in self._troubles[:last] if entry.wire or not trouble.wire]


def by_id(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Ids with the workers that took them."""
    found: dict[str, list[str]] = defaultdict(list)
    for id, worker in pairs:
        found[id].append(worker)
    return found
