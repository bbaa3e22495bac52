"""How each request ended, and whether a known fault explains it.

A request may be rejected, and its connection may break while the router or the client's own wire is broken. It may not
stay without an end, be answered twice, get another's answer, or exceed its deadline. The rules are those of
`loadtests.judging.rules`; this module adds what faults and stalls of the machine excuse.
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
from loadtests.runs.integrity.logs import RouterLog

GRACE_S = 0.25
"""How far an answer or a rejection may exceed its deadline."""
AFTERMATH_S = 1.0
"""The time after a fault in which connections that it broke may still be found."""
UNWRITTEN_S = 1.0
"""The part of its log that a killed process may lose."""
FAILED = (400, 422, 502, 504)
"""Statuses of rejections after a worker was asked: it failed, or the deadline passed."""
MAX_KEPT = 20


class End(StrEnum):
    RIGHT = "answered completely and correctly"
    REFUSED = "rejected before a worker had it"
    FAILED = "failed with a status"
    CUT = "streams cut with an error event"
    BROKEN = "in flight when the router or the client's wire broke: a visible break"
    UNREACHED = "no connection, while there was no router"
    LOST = "lost"
    DOUBLED = "answered twice"
    FOREIGN = "foreign: another's nonce"
    WRONG = "wrong, mixed or truncated, marked as complete"


NEVER = (End.LOST, End.DOUBLED, End.FOREIGN, End.WRONG)
PLAIN = {
    Verdict.RIGHT: End.RIGHT, Verdict.CUT: End.CUT, Verdict.FOREIGN: End.FOREIGN, Verdict.WRONG: End.WRONG,
}  # fmt: skip


class Rule(StrEnum):
    """What must not occur, beside the ends in `NEVER`."""

    HUNG = "hung: ended over 250 ms after the deadline"
    UNLOGGED = "answered, and not in the router's log"
    MISLOGGED = "client and router's log disagree"
    MISCOUNTED = "outcomes that log and metrics count differently"
    UNKNOWN = "answered by a worker whose log does not have it"
    RECEIVED = "received by workers more often than the rules of retries allow"
    UNHINTED = "invited to retry without a usable hint"
    AFTER_KILL = "failures before the first token after a worker's kill"
    UNCALM = "light loads after the last fault that were not served"


class Entry(NamedTuple):
    """One request, as its client and its path saw it. `gave_up`: the client timed out.

    `wire`: it went through the clients' wire. `noticed_late_s`: how long the client itself may have been stalled when
    the request ended. `spoke`: text had arrived.
    """

    seen: Seen
    wire: bool = False
    gave_up: bool = False
    noticed_late_s: float = 0.0
    connected: bool = True
    spoke: bool = False


@dataclass(frozen=True, slots=True)
class Trouble:
    """A time in which clients' connections may break, and how much later it may make an answer.

    `holds`: traffic stands still meanwhile, so a request may be late by the whole duration. `kills`: it began with a
    kill, and the last lines of the log may be lost. `wire`: it affects only clients of the wire.
    """

    from_s: float
    to_s: float
    wire: bool
    breaks: bool
    holds: bool = False
    kills: bool = False
    delay_s: float = 0.0

    def meets(self, begin: float, end: float) -> bool:
        """Whether the trouble or its aftermath overlaps the interval."""
        return self.from_s <= end and begin <= self.to_s + AFTERMATH_S

    def forgets(self, begin_s: float, end_s: float) -> bool:
        """Whether the log line of a request that ended in the interval may have been lost in a kill."""
        return self.kills and begin_s <= self.to_s and self.from_s <= end_s + UNWRITTEN_S

    def held_s(self, begin: float, end: float) -> float:
        """How much longer it made the interval, in seconds."""
        held = max(0.0, min(end, self.to_s) - max(begin, self.from_s)) if self.holds else 0.0
        return held + (self.delay_s if self.meets(begin, end) else 0.0)


class Worked(NamedTuple):
    """The final state of workers and metrics.

    `received`: by id, the workers that took it, among those that write a log, which are `honest`. `counted` and
    `retries`: counters since the router's last start, its `starts`-th.
    """

    received: dict[str, list[str]]
    honest: Sequence[str]
    counted: Counter[str]
    retries: int
    starts: int = 1
    seconds: float = 0.0


@dataclass
class Checked:
    """Counts of ends and of broken rules, and the first breaches: the message, the id and the entry."""

    ends: Counter[End] = field(default_factory=Counter)
    broken: Counter[Rule] = field(default_factory=Counter)
    asked: int = 0
    kept: list[tuple[str, str, Entry | None]] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not any(self.ends[end] for end in NEVER) and not self.broken.total()


Still = Callable[[float, float], float]


def never_still(begin: float, end: float) -> float:
    return 0.0


class Checker:
    """`troubles`: everything that clients may notice. `kills`: by worker, when it was killed until it was back.
    `still`: how long the machine stalled in an interval."""

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
        router_log: RouterLog,
        *,
        worked: Worked | None = None,
        unasked: int = 0,
        tail: Sequence[Seen] = (),
        alone: bool = False,
    ) -> Checked:
        """Judge every entry and every rule.

        `unasked`: answers without a waiting request. `tail`: requests of the light load at the end. `alone`: the only
        faults were kills of one worker at a time, so the one retry has to hide each of them.
        """
        found, by_id = Checked(asked=len(entries)), {entry.seen.id: entry for entry in entries}
        found.ends[End.DOUBLED] = unasked
        for entry in entries:
            end = self._end(entry, router_log)
            found.ends[end] += 1
            if end in NEVER:
                self._keep(found, end, entry.seen.id, by_id)
        for rule, broken in self._rules(entries, router_log, worked, tail, alone):
            for id, what in broken:
                found.broken[rule] += 1
                self._keep(found, f"{rule}: {what}", id, by_id)
        return found

    @staticmethod
    def _keep(found: Checked, what: str, id: str, by_id: dict[str, Entry]) -> None:
        if len(found.kept) < MAX_KEPT:
            found.kept.append((what, id, by_id.get(id)))

    def _end(self, entry: Entry, router_log: RouterLog) -> End:
        verdict = entry.seen.verdict
        if entry.gave_up or entry.seen.ended_s is None:
            return End.LOST
        if len(router_log.lines.get(entry.seen.id, ())) > 1:
            return End.DOUBLED
        if verdict is Verdict.DROPPED:
            broken = End.BROKEN if entry.connected else End.UNREACHED
            return broken if self._accounts(entry) else End.LOST
        if verdict is Verdict.REFUSED:
            return End.FAILED if entry.seen.status in FAILED else End.REFUSED
        return PLAIN[verdict]

    def _rules(
        self, entries: Sequence[Entry], router_log: RouterLog, worked: Worked | None, tail: Sequence[Seen], alone: bool
    ) -> Iterator[tuple[Rule, Iterable[Broken]]]:
        seen = [entry.seen for entry in entries]
        straight = [entry.seen for entry in entries if not entry.wire]
        held_s = {entry.seen.id: partial(self._held_back_s, entry) for entry in entries}
        yield Rule.HUNG, rules.in_time(seen, GRACE_S, lambda one: held_s[one.id]())
        yield Rule.UNLOGGED, rules.answered_is_logged(seen, router_log.lines, self._is_forgotten)
        yield Rule.MISLOGGED, rules.client_and_log_agree(straight, router_log.lines, lambda one, line: False)
        yield Rule.UNHINTED, rules.invited_have_a_hint(seen)
        yield Rule.UNCALM, rules.calm_is_served(tail)
        if alone:
            yield Rule.AFTER_KILL, self._failed_by_kills(entries)
        if worked is None:
            return
        received, retries, starts = worked.received, worked.retries, worked.starts
        yield Rule.MISCOUNTED, rules.log_and_metrics_agree(router_log.last, worked.counted)
        yield Rule.UNKNOWN, self._unknown_to_workers(seen, router_log, worked)
        yield Rule.RECEIVED, rules.received_at_most_twice(received)
        if starts == 1:
            yield Rule.RECEIVED, rules.retries_are_counted(received, retries)
        yield (
            Rule.RECEIVED,
            rules.retries_within_their_budget(
                received, retries, requests=len(entries), seconds=worked.seconds, starts=starts
            ),
        )

    def _unknown_to_workers(self, seen: Iterable[Seen], router_log: RouterLog, worked: Worked) -> Iterator[Broken]:
        """Right answers of a worker whose log does not have them, though it was not killed then."""
        for one in seen:
            lines = router_log.lines.get(one.id, ())
            name = lines[0].worker if lines and one.verdict is Verdict.RIGHT else ""
            if name not in worked.honest or name in worked.received.get(one.id, ()):
                continue
            killed = (trouble for worker, trouble in self._kills if worker == name)
            if not any(trouble.forgets(one.sent_s, one.end_s) for trouble in killed):
                yield Broken(one.id, f"{one} was answered by {name}, whose log has no such request")

    def _failed_by_kills(self, entries: Sequence[Entry]) -> Iterator[Broken]:
        """Failures before the first token after a kill, except for deadlines that passed in a stall of the machine."""
        for entry in entries:
            seen = entry.seen
            failed = seen.verdict is Verdict.REFUSED and seen.status in FAILED
            cut = seen.verdict in (Verdict.CUT, Verdict.DROPPED) and not entry.spoke
            overlapping = any(trouble.meets(seen.sent_s, seen.end_s) for _, trouble in self._kills)
            stood_still = seen.status == 504 and self._still(seen.sent_s, seen.end_s) > GRACE_S
            if overlapping and (failed or cut) and not stood_still:
                yield Broken(seen.id, f"{seen} failed after a worker's kill: {seen.verdict}, status {seen.status}")

    def _accounts(self, entry: Entry) -> bool:
        return any(trouble.breaks and trouble.meets(entry.seen.sent_s, entry.seen.end_s) for trouble in self._of(entry))

    def _is_forgotten(self, seen: Seen) -> bool:
        """Whether its line in the router's log may have been lost with the router."""
        return any(trouble.forgets(seen.end_s, seen.end_s) for trouble in self._troubles)

    def _held_back_s(self, entry: Entry) -> float:
        """The time after the deadline that stalls of the client, of the machine and of frozen parts explain."""
        seen = entry.seen
        held_s = sum(trouble.held_s(seen.sent_s, seen.end_s) for trouble in self._of(entry))
        return entry.noticed_late_s + held_s + self._still(seen.sent_s + seen.deadline_s, seen.end_s)

    def _of(self, entry: Entry) -> list[Trouble]:
        """The troubles that could affect it: they began before it ended."""
        last = bisect_left(self._troubles, entry.seen.end_s, key=lambda trouble: trouble.from_s)
        return [trouble for trouble in self._troubles[:last] if entry.wire or not trouble.wire]


def by_id(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for id, worker in pairs:
        found[id].append(worker)
    return found
