"""The rules that hold wherever the router runs: in the world's virtual time, and over real processes.

Each rule is a function over what was seen; it yields a `Broken` for each breach, so none means that the rule held.
What may excuse a breach (a fault, a machine that stood still) is known to the caller alone, who passes a function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from loadtests.judging.answers import Verdict

MOST_RECEIVED = 2
"""Workers that a request is sent to: the first, and one retry."""
HINTS_MS = (50.0, 30_000.0)
RETRY_MIN = 10.0
"""What the budget of retries allows beside its share: 1 a second, over its window of 10 s."""
RETRY_SHARE = 0.1
WINDOW_S = 9.0
"""The shortest time in which the budget's window of 10 buckets comes round again."""
ON_TIME_IN_CALM = 0.99
LEAST_OF_CALM = 20
"""Of fewer requests no share is told."""


class Logged(NamedTuple):
    """A line of the router's log about one request. `start`: of which of the router's lives, counted from 1."""

    start: int
    status: int
    outcome: str
    worker: str


class Seen(NamedTuple):
    """One request as its client saw it. Times are seconds of one clock.

    `ended_s`: None if it never ended. `complete`: its answer ended as HTTP says. `left`: the client hung up. `told`:
    what a message calls it.
    """

    id: str
    sent_s: float
    ended_s: float | None
    deadline_s: float
    verdict: Verdict
    status: int = 0
    complete: bool = True
    left: bool = False
    hint_ms: float | None = None
    invited: bool = False
    told: str = ""

    @property
    def end_s(self) -> float:
        """Its end; 0 where there is none."""
        return self.ended_s or 0.0

    def __str__(self) -> str:
        return self.told or self.id


class Broken(NamedTuple):
    """A breach: of which request, empty where it is of none, and in words."""

    id: str
    what: str


def one_end(seen: Iterable[Seen], logged: Mapping[str, Sequence[Logged]]) -> Iterator[Broken]:
    """A request has one end for its client, and at most one line in the router's log."""
    for one in seen:
        if one.ended_s is None:
            yield Broken(one.id, f"{one}, sent at {one.sent_s:.6f}, has not ended")
    for id, lines in logged.items():
        if len(lines) > 1:
            yield Broken(id, f"{id} ended {len(lines)} times: {lines}")


def ones_own(seen: Iterable[Seen]) -> Iterator[Broken]:
    """No client gets another's answer, or a wrong one."""
    for one in seen:
        if one.verdict in (Verdict.FOREIGN, Verdict.WRONG):
            yield Broken(one.id, f"{one}: {one.verdict}")


def answered_is_logged(
    seen: Iterable[Seen], logged: Mapping[str, Sequence[Logged]], excused: Callable[[Seen], bool]
) -> Iterator[Broken]:
    """What a client got to its end stands in the router's log."""
    for one in seen:
        if one.complete and not logged.get(one.id) and not excused(one):
            yield Broken(one.id, f"{one} was answered, and stands in no log")


def client_and_log_agree(
    seen: Iterable[Seen], logged: Mapping[str, Sequence[Logged]], excused: Callable[[Seen, Logged], bool]
) -> Iterator[Broken]:
    """The log has the status that the client got, and calls served what was right, and nothing else.

    `excused`: whether the client's outcome may differ from that line's. A status is never excused.
    """
    for one in seen:
        lines = logged.get(one.id)
        if not one.complete or not lines:
            continue
        line = lines[0]
        if line.status != one.status:
            yield Broken(one.id, f"{one} was logged as {line}")
        elif (one.verdict is Verdict.RIGHT) != (line.outcome == "served") and not excused(one, line):
            yield Broken(one.id, f"{one} was {one.verdict}, and logged as {line}")


def log_and_metrics_agree(lines: Mapping[str, int], counted: Mapping[str, int]) -> Iterator[Broken]:
    """The counter of requests by outcome, and the lines of the same life's log."""
    for outcome in sorted({*lines, *counted}):
        if lines.get(outcome, 0) != counted.get(outcome, 0):
            yield Broken("", f"{outcome}: {lines.get(outcome, 0)} lines, counted {counted.get(outcome, 0)}")


def received_at_most_twice(received: Mapping[str, Collection[object]]) -> Iterator[Broken]:
    """A worker receives a request once, workers together twice at most."""
    for id, each in received.items():
        if len(each) > MOST_RECEIVED:
            yield Broken(id, f"{id} was received {len(each)} times: {each}")


def retries_are_counted(received: Mapping[str, Collection[object]], retries: int) -> Iterator[Broken]:
    """No request was received once more without a retry that the router counted. For a router with one life."""
    extra = sum(max(0, len(each) - 1) for each in received.values())
    if extra > retries:
        yield Broken("", f"{extra} were received once more, and {retries} retries were counted")


def retries_within_their_budget(
    received: Mapping[str, Collection[object]], retries: int, *, requests: int, seconds: float, starts: int = 1
) -> Iterator[Broken]:
    """Retries are a tenth of the requests at most, beside one a second."""
    most = RETRY_SHARE * requests + RETRY_MIN * (1 + seconds / WINDOW_S) * starts
    twice = sum(len(each) > 1 for each in received.values())
    if twice > most:
        yield Broken("", f"{twice} of {requests} were received twice, at most {most:.0f} may be")
    if retries > most:
        yield Broken("", f"{retries} retries of {requests} requests, at most {most:.0f} may be")


def in_time(seen: Iterable[Seen], grace_s: float, held_back_s: Callable[[Seen], float]) -> Iterator[Broken]:
    """Nothing ends later than its deadline and a grace, but for what has held it back."""
    for one in seen:
        late_s = 0.0 if one.ended_s is None else one.ended_s - one.sent_s - one.deadline_s
        if late_s > grace_s and late_s > grace_s + held_back_s(one):
            yield Broken(one.id, f"{one} was answered {late_s * 1000:.0f} ms after its deadline")


def invited_have_a_hint(seen: Iterable[Seen]) -> Iterator[Broken]:
    """A client that is asked to come back is told when: in 50 ms to 30 s."""
    for one in seen:
        if not one.complete or one.status == 200:
            continue
        if one.invited and one.hint_ms is None:
            yield Broken(one.id, f"{one} is invited without a hint")
        if one.hint_ms is not None and not HINTS_MS[0] <= one.hint_ms <= HINTS_MS[1]:
            yield Broken(one.id, f"{one} has a hint of {one.hint_ms} ms")


def calm_is_served(tail: Sequence[Seen]) -> Iterator[Broken]:
    """After the last fault a light load is served as if there had been none."""
    good = sum(one.verdict is Verdict.RIGHT for one in tail)
    if len(tail) >= LEAST_OF_CALM and good < ON_TIME_IN_CALM * len(tail) - 1:
        bad = Counter((one.status, one.verdict.value) for one in tail if one.verdict is not Verdict.RIGHT)
        yield Broken("", f"{good} of {len(tail)} were served after all faults had ended; the others: {dict(bad)}")
