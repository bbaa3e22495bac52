"""Rules that hold wherever the router runs: in the world's virtual time, and over real processes.

Each rule is a function over what was observed. It yields a `Broken` for each breach. The caller knows what may excuse a
breach (a fault, a stalled machine) and passes a function for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from loadtests.judging.answers import Verdict

MAX_RECEIVED = 2
"""Workers that may receive a request: the first, and one retry."""
HINTS_MS = (50.0, 30_000.0)
RETRY_MIN = 10.0
"""The fixed part of the retry budget, beside its share: 1 a second over a window of 10 s."""
RETRY_SHARE = 0.1
WINDOW_S = 9.0
"""The shortest time in which the budget's window of 10 buckets wraps around."""
ON_TIME_IN_CALM = 0.99
MIN_OF_CALM = 20
"""Shares of fewer requests are not judged."""


class Logged(NamedTuple):
    """A line of the router's log about one request. `start`: the number of the router's run, from 1.

    `seconds`: from the request's arrival at the router's kernel to its end; 0 where it is not read.
    """

    start: int
    status: int
    outcome: str
    worker: str
    seconds: float = 0.0


class Seen(NamedTuple):
    """One request as its client saw it. Times are seconds of one clock.

    `ended_s`: None if it never ended. `complete`: the answer ended as HTTP requires. `left`: the client disconnected.
    `label`: its name in messages, if not `id`.
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
    label: str = ""

    @property
    def end_s(self) -> float:
        """When it ended; 0 if it never did."""
        return self.ended_s or 0.0

    def __str__(self) -> str:
        return self.label or self.id


class Broken(NamedTuple):
    """A breach. `id`: the request, empty if the breach is not of one request. `what`: the message."""

    id: str
    what: str


def one_end(seen: Iterable[Seen], logged: Mapping[str, Sequence[Logged]]) -> Iterator[Broken]:
    """A request ends once for its client, and has at most one line in the router's log."""
    for one in seen:
        if one.ended_s is None:
            yield Broken(one.id, f"{one}, sent at {one.sent_s:.6f}, has not ended")
    for id, lines in logged.items():
        if len(lines) > 1:
            yield Broken(id, f"{id} ended {len(lines)} times: {lines}")


def ones_own(seen: Iterable[Seen]) -> Iterator[Broken]:
    """No client gets another client's answer, or a wrong one."""
    for one in seen:
        if one.verdict in (Verdict.FOREIGN, Verdict.WRONG):
            yield Broken(one.id, f"{one}: {one.verdict}")


def answered_is_logged(
    seen: Iterable[Seen], logged: Mapping[str, Sequence[Logged]], excused: Callable[[Seen], bool]
) -> Iterator[Broken]:
    """A request that was answered completely is in the router's log."""
    for one in seen:
        if one.complete and not logged.get(one.id) and not excused(one):
            yield Broken(one.id, f"{one} was answered, and is in no log")


def client_and_log_agree(
    seen: Iterable[Seen], logged: Mapping[str, Sequence[Logged]], excused: Callable[[Seen, Logged], bool]
) -> Iterator[Broken]:
    """Log and client have the same status, and the log says `served` exactly for right answers.

    `excused`: whether the outcomes may differ. A status is never excused.
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
    """The counter of requests by outcome equals the lines of the log, for the same run of the router."""
    for outcome in sorted({*lines, *counted}):
        if lines.get(outcome, 0) != counted.get(outcome, 0):
            yield Broken("", f"{outcome}: {lines.get(outcome, 0)} lines, counted {counted.get(outcome, 0)}")


def received_at_most_twice(received: Mapping[str, Collection[object]]) -> Iterator[Broken]:
    """A request is received at most twice: once, and once more by its one retry."""
    for id, each in received.items():
        if len(each) > MAX_RECEIVED:
            yield Broken(id, f"{id} was received {len(each)} times: {each}")


def retries_are_counted(received: Mapping[str, Collection[object]], retries: int) -> Iterator[Broken]:
    """Each further delivery of a request is a retry that the router counted. For a router that was never restarted."""
    extra = sum(max(0, len(each) - 1) for each in received.values())
    if extra > retries:
        yield Broken("", f"{extra} were received again, and {retries} retries were counted")


def retries_within_their_budget(
    received: Mapping[str, Collection[object]], retries: int, *, requests: int, seconds: float, starts: int = 1
) -> Iterator[Broken]:
    """Retries are at most a tenth of the requests, beside one a second."""
    limit = RETRY_SHARE * requests + RETRY_MIN * (1 + seconds / WINDOW_S) * starts
    twice = sum(len(each) > 1 for each in received.values())
    if twice > limit:
        yield Broken("", f"{twice} of {requests} were received twice, the limit is {limit:.0f}")
    if retries > limit:
        yield Broken("", f"{retries} retries of {requests} requests, the limit is {limit:.0f}")


def in_time(seen: Iterable[Seen], grace_s: float, held_back_s: Callable[[Seen], float]) -> Iterator[Broken]:
    """No request ends later than its deadline plus a grace, except for what held it back."""
    for one in seen:
        late_s = 0.0 if one.ended_s is None else one.ended_s - one.sent_s - one.deadline_s
        if late_s > grace_s and late_s > grace_s + held_back_s(one):
            yield Broken(one.id, f"{one} was answered {late_s * 1000:.0f} ms after its deadline")


def invited_have_a_hint(seen: Iterable[Seen]) -> Iterator[Broken]:
    """A client that is invited to retry gets a hint, between 50 ms and 30 s."""
    for one in seen:
        if not one.complete or one.status == 200:
            continue
        if one.invited and one.hint_ms is None:
            yield Broken(one.id, f"{one} is invited without a hint")
        if one.hint_ms is not None and not HINTS_MS[0] <= one.hint_ms <= HINTS_MS[1]:
            yield Broken(one.id, f"{one} has a hint of {one.hint_ms} ms")


def calm_is_served(tail: Sequence[Seen]) -> Iterator[Broken]:
    """After the last fault 99 % of a light load, less one request, is served; `MIN_OF_CALM` requests at least."""
    good = sum(one.verdict is Verdict.RIGHT for one in tail)
    if len(tail) >= MIN_OF_CALM and good < ON_TIME_IN_CALM * len(tail) - 1:
        bad = Counter((one.status, one.verdict.value) for one in tail if one.verdict is not Verdict.RIGHT)
        yield Broken("", f"{good} of {len(tail)} were served after all faults had ended; the others: {dict(bad)}")
