"""What must hold in every run of any seed. Each rule is a method named after its promise.

`Steps` checks bounds after every turn of the router's loop. `Judge` compares at the end what the clients, the router's
log and metrics, and the workers report.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from loadtests.cluster.loop import BEGINS_S
from loadtests.cluster.node import Node
from loadtests.judging import rules
from loadtests.judging.answers import Received, Verdict, judge
from loadtests.judging.nonces import right
from loadtests.judging.rules import Broken, Logged, Seen
from loadtests.world.client import MAX_TOKENS, Connection, Try
from loadtests.world.scenario import Fault, Scenario
from services.router.serving.pipeline import Pipeline

LAST_OF_BOOK_MS = 20_000.0
"""Later hints come from the end of the reservation book, where clients share the last seconds."""
GRACE_S = 0.05
"""Allowed time from the router's deadline to the client on a sound network."""
KEPT = 20
ROUNDED_S = 0.001
"""Hints are whole milliseconds, rounded up."""


def broken(*rules: Callable[[], Iterator[str]], of: str = "") -> list[str]:
    """The violations found by rules (methods of a judge), each prefixed with its rule's name."""
    found: list[str] = []
    for rule in rules:
        name = of + rule.__name__.strip("_").replace("_", " ")
        found += [f"{name}: {what}" for what in islice(rule(), KEPT)]
    return found


@dataclass(slots=True)
class Facts:
    """Observations of one run."""

    scenario: Scenario
    tries: list[Try] = field(default_factory=list)
    logged: dict[str, list[Logged]] = field(default_factory=lambda: defaultdict(list))
    outcomes: dict[tuple[str, int], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """By router and start."""
    received: dict[str, list[tuple[float, str]]] = field(default_factory=lambda: defaultdict(list))
    """By nonce: time and worker of each reception."""
    errors: list[str] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)
    """The routers' requests by outcome, scraped at the end."""
    retries: int = 0
    """The routers' retries since their last starts."""
    early_retries: int = 0
    """Clients' early retries that the routers counted since their last starts."""
    router_starts: dict[str, int] = field(default_factory=dict)
    """By router."""
    faults: list[tuple[float, float, Fault]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    garbage: int = 0
    governed: int = 0
    """Jobs run by the governor since its last start; some are also requests of the router."""

    def line(self, name: str, start: int, data: bytes) -> None:
        entry: dict[str, Any] = msgspec.json.decode(data)
        if entry["level"] == "ERROR":
            self.errors.append(f"{name} logs an error: {data.decode()[:600]}")
        if not name.startswith("router") or entry["event"] != "request" or "outcome" not in entry:
            return
        self.logged[entry["id"]].append(Logged(start, entry["status"], entry["outcome"], entry.get("worker", "")))
        self.outcomes[name, start][entry["outcome"]] += 1

    @property
    def restarted(self) -> bool:
        """Whether any router was started again: it has forgotten what it counted."""
        return any(starts > 1 for starts in self.router_starts.values())


class Steps:
    """Bounds that hold after every turn of the router's loop."""

    def __init__(self, scenario: Scenario, found: list[str], workers: list[Node] | None = None) -> None:
        self._scenario = scenario
        self._found = found
        self._nodes = workers or []
        self.pipeline: Pipeline | None = None
        self.turns = 0

    def look(self) -> None:
        pipeline = self.pipeline
        if pipeline is None or len(self._found) >= KEPT:
            return
        self.turns += 1
        dispatcher, scenario = pipeline.dispatcher, self._scenario
        usage, cap = dispatcher.scheduler.usage, dispatcher.cap
        if not 0 <= cap.inflight <= scenario.max_inflight:
            self._found.append(f"inflight {cap.inflight} of {scenario.max_inflight}")
        if not 0 <= usage.requests <= scenario.max_queue:
            self._found.append(f"{usage.requests} wait, at most {scenario.max_queue} may")
        if usage.bytes < 0 or usage.cost_tokens < -1e-6:
            self._found.append(f"{usage.bytes} bytes and {usage.cost_tokens} tokens wait")
        if usage.requests != len(dispatcher.waiting):
            self._found.append(f"the queue holds {usage.requests}, and {len(dispatcher.waiting)} wait for it")
        if self.turns % 16 == 0:
            self._look_at_workers(dispatcher)
            self._look_at_slots()

    def _look_at_workers(self, dispatcher: Any) -> None:
        for worker, spec in zip(dispatcher.fleet.workers, self._scenario.workers, strict=True):
            if not 0 <= worker.inflight <= spec.slots + worker.lookahead:
                self._found.append(f"{worker.name} holds {worker.inflight} of {spec.slots} + {worker.lookahead}")
            for request in worker.held:
                if request.waiter is not None and not request.waiter.done():
                    self._found.append(f"{request!r} has a slot at {worker.name}, and was not woken")

    def _look_at_slots(self) -> None:
        """With several routers no worker has more requests than slots, its queue included."""
        if self._scenario.routers == 1:
            return
        slots = [spec.slots for spec in self._scenario.workers if not spec.evil]
        for node, count in zip(self._nodes, slots, strict=True):
            if node.up and node.inside is not None and node.inside.running + node.inside.waiting > count:
                self._found.append(f"{node.name} has {node.inside.running} + {node.inside.waiting} of {count} slots")


class Judge:
    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._scenario = facts.scenario
        self._sound = not facts.scenario.faults and not any(worker.evil for worker in facts.scenario.workers)
        byzantine = {f"worker-{number}" for number, worker in enumerate(facts.scenario.workers) if worker.evil}
        self._seen = [
            _seen(attempt, byzantine=any(line.worker in byzantine for line in facts.logged.get(attempt.id, [])))
            for attempt in facts.tries
        ]
        self._verdict_of = {attempt.number: seen.verdict for attempt, seen in zip(facts.tries, self._seen, strict=True)}
        self._try_of = {attempt.id: attempt for attempt in facts.tries}

    def verdicts(self) -> list[str]:
        """Violations; empty for a good run."""
        return broken(
            self._nothing_failed_inside, self._each_try_has_one_end, self._answers_are_ones_own,
            self._client_and_log_agree, self._log_and_metrics_agree, self._received_once_or_retried_by_the_rules,
            self._no_answer_after_its_deadline, self._invited_retries_have_a_hint,
            self._early_retries_repeat_a_refusal_on_their_connection, self._early_retries_are_counted_once,
            self._the_refused_are_not_invited_together, self._a_drain_finishes_what_runs, self._calm_is_served,
            self._nothing_is_left,
        )  # fmt: skip

    def counts(self) -> Counter[str]:
        return Counter(self._verdict_of[attempt.number].value for attempt in self._facts.tries)

    def is_right(self, attempt: Try) -> bool:
        """Whether the try got its own right answer."""
        return self._verdict_of[attempt.number] is Verdict.RIGHT

    def _nothing_failed_inside(self) -> Iterator[str]:
        """No assertion, no uncaught exception, no 500, no error in a log."""
        yield from self._facts.errors
        for attempt in self._facts.tries:
            if attempt.status == 500:
                yield f"{attempt!r} got {b''.join(attempt.body)[:300]!r}"

    def _each_try_has_one_end(self) -> Iterator[str]:
        """One end for the client, and at most one line in the router's log."""
        yield from _words(rules.one_end(self._seen, self._facts.logged))

    def _answers_are_ones_own(self) -> Iterator[str]:
        """No client gets another's answer, a wrong one, or bytes without a request."""
        for id, what in rules.ones_own(self._seen):
            yield f"{what}: {b''.join(self._try_of[id].body)[:500]!r}"
        if self._facts.garbage:
            yield f"{self._facts.garbage} connections got bytes without a request"

    def _client_and_log_agree(self) -> Iterator[str]:
        """A complete answer is in the router's log once, with the same status and outcome."""
        logged = self._facts.logged
        for attempt in self._facts.tries:
            if not attempt.complete and self._sound and not attempt.left and attempt.end:
                yield f"{attempt!r} failed without a fault: {attempt.end}"
        yield from _words(rules.answered_is_logged(self._seen, logged, self._was_killed))
        yield from _words(rules.client_and_log_agree(self._seen, logged, _by_leaving))

    def _was_killed(self, seen: Seen) -> bool:
        """Whether a router was killed while this try was under way."""
        return any(
            fault.kind == "killed router" and seen.sent_s - GRACE_S <= begins <= seen.end_s + GRACE_S
            for begins, _, fault in self._facts.faults
        )

    def _log_and_metrics_agree(self) -> Iterator[str]:
        """The counter of requests by outcome equals the lines of this router's log."""
        lines: Counter[str] = Counter()
        for router, start in self._facts.router_starts.items():
            lines += self._facts.outcomes[router, start]
        yield from _words(rules.log_and_metrics_agree(lines, self._facts.counted))

    def _received_once_or_retried_by_the_rules(self) -> Iterator[str]:
        """One worker receives a request once; all workers together at most twice, and twice only within the retry
        budget.
        """
        facts = self._facts
        received = {attempt.nonce: facts.received.get(attempt.nonce, []) for attempt in facts.tries}
        yield from _words(rules.received_at_most_twice(received))
        for attempt in facts.tries:
            if self._sound and len(received[attempt.nonce]) > 1:
                yield f"{attempt!r} was received twice without a fault: {received[attempt.nonce]}"
        if not facts.restarted:
            yield from _words(rules.retries_are_counted(facts.received, facts.retries))
        seconds = max((attempt.ended_at or 0.0 for attempt in facts.tries), default=0.0) - BEGINS_S
        requests = len(facts.tries) + facts.governed
        yield from _words(
            rules.retries_within_their_budget(
                received,
                facts.retries,
                requests=requests,
                seconds=seconds,
                starts=sum(facts.router_starts.values()),
            )
        )

    def _no_answer_after_its_deadline(self) -> Iterator[str]:
        """A right answer is in time, except for the time that the network and frozen processes held it back."""
        answered = (seen for seen in self._seen if seen.verdict is Verdict.RIGHT)
        yield from _words(rules.in_time(answered, GRACE_S, self._held_up_s))

    def _held_up_s(self, seen: Seen) -> float:
        """Seconds that faults and the client's own slow reading account for."""
        attempt = self._try_of[seen.id]
        reading_s = attempt.ask.deadline_s / 4 if attempt.ask.reads_slowly else 0.0
        return reading_s + self._held_back_s(attempt)

    def _held_back_s(self, attempt: Try) -> float:
        """Seconds that faults may have delayed a request or its answer."""
        ended = attempt.ended_at or 0.0
        held = 0.0
        for begins, ends, fault in self._facts.faults:
            if fault.kind in HOLDING and begins <= ended and ends >= attempt.sent_at:
                held += min(ends, ended) - max(begins, attempt.sent_at) + HOLDING[fault.kind]
        return held

    def _invited_retries_have_a_hint(self) -> Iterator[str]:
        """An invited retry has a hint of 50 ms to 30 s."""
        yield from _words(rules.invited_have_a_hint(self._seen))

    def _early_retries_repeat_a_refusal_on_their_connection(self) -> Iterator[str]:
        """An early retry is refused as such only if its very connection had a refusal of the same tenant's same bytes,
        whose hint had not run out; and its own hint ends with that one, but for the least hint there is.
        """
        for attempt in self._facts.tries:
            if not attempt.early or attempt.over is None:
                continue
            first = _refused_before(attempt, attempt.over)
            if first is None:
                yield f"{attempt!r} was refused as an early retry, and repeats no refusal of its connection"
                continue
            until_s = _hint_ends_s(first)
            earliest_s = attempt.sent_at + rules.HINTS_MS[0] / 1000
            if attempt.sent_at >= until_s:
                yield f"{attempt!r} came after the hint of {first!r}, and was refused as an early retry"
            elif attempt.sent_at + (attempt.hint_ms or 0.0) / 1000 > max(until_s, earliest_s) + ROUNDED_S:
                late_ms = 1000 * (attempt.sent_at - until_s) + (attempt.hint_ms or 0.0)
                yield f"{attempt!r} has a hint that ends {late_ms:.0f} ms after that of {first!r}"

    def _early_retries_are_counted_once(self) -> Iterator[str]:
        """The router counted as many as its clients were told of. For a router that was never restarted."""
        facts = self._facts
        if facts.restarted:
            return
        answered = sum(attempt.early for attempt in facts.tries)
        unanswered = sum(not attempt.complete for attempt in facts.tries)
        unanswered += facts.governed if self._scenario.governor.router else 0
        if not answered <= facts.early_retries <= answered + unanswered:
            yield f"{answered} were refused as early, {unanswered} got no answer, {facts.early_retries} were counted"

    def _the_refused_are_not_invited_together(self) -> Iterator[str]:
        """Hints reserve capacity: no second has more invited retries than can be served in two. An early retry is told
        of its first reservation again.
        """
        limit = 2 * self._scenario.max_per_s + 20
        seconds = Counter(
            int(attempt.ended_at + attempt.hint_ms / 1000)
            for attempt in self._facts.tries
            if attempt.ended_at is not None and attempt.status == 429 and attempt.hint_ms is not None
            and attempt.hint_ms < LAST_OF_BOOK_MS and not attempt.early
        )  # fmt: skip
        for second, count in sorted(seconds.items()):
            if count > limit:
                yield f"{count} are invited into second {second}, and at most {limit:.0f} may be"

    def _a_drain_finishes_what_runs(self) -> Iterator[str]:
        """A request at a worker when the router drains is answered, unless a fault prevents it."""
        for attempt in self._facts.tries:
            lines = self._facts.logged.get(attempt.id, [])
            at_work = len(self._facts.received.get(attempt.nonce, [])) == 1
            if at_work and lines and lines[0].outcome == "draining" and not self._had_a_fault(attempt):
                yield f"{attempt!r} ran when the router left, and was sent away: {lines[0]}"

    def _had_a_fault(self, attempt: Try) -> bool:
        """Whether a fault other than a drain overlapped this try."""
        ended = attempt.ended_at or 0.0
        return any(
            fault.kind != "drained router" and begins <= ended and ends >= attempt.sent_at
            for begins, ends, fault in self._facts.faults
        )

    def _calm_is_served(self) -> Iterator[str]:
        """Twice the deadline after the last fault, a light load is served normally."""
        tail = [
            seen for attempt, seen in zip(self._facts.tries, self._seen, strict=True)
            if attempt.of_tail and not attempt.left
        ]  # fmt: skip
        yield from _words(rules.calm_is_served(tail))

    def _nothing_is_left(self) -> Iterator[str]:
        """No task, timer, connection, place or ledger entry is left over."""
        yield from self._facts.left


def _refused_before(attempt: Try, over: Connection) -> Try | None:
    """The latest refusal at admission of the same request on this connection, before `attempt`."""
    before = over.sent[: over.sent.index(attempt)]
    return next(
        (
            each for each in reversed(before)
            if each.status == 429 and each.hint_ms is not None and not each.early and each.ask == attempt.ask
            and each.nonce == attempt.nonce
        ),
        None,
    )  # fmt: skip


def _hint_ends_s(refused: Try) -> float:
    return (refused.ended_at or 0.0) + (refused.hint_ms or 0.0) / 1000


def _seen(attempt: Try, *, byzantine: bool) -> Seen:
    """A try in the form that the rules take. `byzantine`: a byzantine worker answered it.

    A byzantine worker may end a stream before its text. An answer may be empty, so the router passes on that end, and
    the text after it.
    """
    kind = attempt.headers.get(b"content-type", b"")
    received = Received(
        attempt.status, b"".join(attempt.body), kind.startswith(b"text/event-stream"), ended=attempt.complete
    )
    shortened = b"max_tokens" in attempt.headers.get(b"x-weir-degraded", b"")
    texts = (right(attempt.nonce), "") if byzantine and attempt.ask.stream else ()
    return Seen(
        attempt.id, attempt.sent_at, attempt.ended_at, attempt.ask.deadline_s,
        judge(received, attempt.nonce, MAX_TOKENS, texts, shortened=shortened),
        attempt.status, attempt.complete, attempt.left, attempt.hint_ms, attempt.invited, repr(attempt),
    )  # fmt: skip


def _by_leaving(seen: Seen, line: Logged) -> bool:
    """Whether a difference from the log line is due to the client's disconnect."""
    return seen.left or line.outcome == "client_gone"


def _words(found: Iterable[Broken]) -> Iterator[str]:
    return (what for _, what in found)


HOLDING = {
    "latency": 0.4,
    "partition": 1.5,
    "stalled router": 0.1,
    "stalled clients": 0.1,
    "half open": 0.5,
    "killed router": 0.5,
    "jumping clock": 3.5,
}
"""Faults that may delay an answer, with the seconds for which each may do so after its own end."""
