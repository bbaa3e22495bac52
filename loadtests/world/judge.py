"""What must hold in every run, whatever the seed. Each rule is a method that names the promise it holds to.

Rules that hold at every step are looked at after every turn of the router's loop (`Steps`). The others are asked at the
end, of what the clients, the router's log and metrics, and the workers say: they must tell one story (`Judge`).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from loadtests.cluster.loop import BEGINS_S
from loadtests.runs.nonces.judge import Heard, Verdict, judge
from loadtests.runs.nonces.prompt import right
from loadtests.world.client import MAX_TOKENS, Try
from loadtests.world.scenario import Fault, Scenario
from services.router.serving.pipeline import Pipeline

MOST_RECEIVED = 2
"""Workers that a request is sent to: the first, and one retry."""
HINTS_MS = (50.0, 30_000.0)
LAST_OF_BOOK_MS = 20_000.0
"""Later hints come from the end of the book, where a crowd that is too large shares the last seconds."""
RETRY_MIN = 10.0
"""What the budget of retries allows beside its share: 1 a second, over its window of 10 s."""
RETRY_SHARE = 0.1
GRACE_S = 0.05
"""What an answer may take from the router's deadline to its client on a sound network."""
ON_TIME_IN_CALM = 0.99
KEPT = 20
"""Violations of one rule that are kept: the first say what there is to say."""


@dataclass(slots=True)
class Logged:
    """A line of the router's log about one request."""

    start: int
    status: int
    outcome: str
    worker: str


@dataclass(slots=True)
class Facts:
    """What has been seen of one run."""

    scenario: Scenario
    tries: list[Try] = field(default_factory=list)
    logged: dict[str, list[Logged]] = field(default_factory=lambda: defaultdict(list))
    outcomes: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    received: dict[str, list[tuple[float, str]]] = field(default_factory=lambda: defaultdict(list))
    """By nonce: when a worker received it, and which."""
    errors: list[str] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)
    """The router's own counter of requests by outcome, as it was scraped at the end."""
    retries: int = 0
    """Retries that the router has counted since its last start."""
    router_starts: int = 1
    faults: list[tuple[float, float, Fault]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    garbage: int = 0
    governed: int = 0
    """Jobs that the governor has run since its last start: some are requests of the router's, too."""

    def line(self, name: str, start: int, data: bytes) -> None:
        """A line of a node's log."""
        said: dict[str, Any] = msgspec.json.decode(data)
        if said["level"] == "ERROR":
            self.errors.append(f"{name} logs an error: {data.decode()[:600]}")
        if name != "router" or said["event"] != "request" or "outcome" not in said:
            return
        self.logged[said["id"]].append(Logged(start, said["status"], said["outcome"], said.get("worker", "")))
        self.outcomes[start][said["outcome"]] += 1


class Steps:
    """Bounds that hold after every turn of the router's loop."""

    def __init__(self, scenario: Scenario, found: list[str]) -> None:
        self._scenario = scenario
        self._found = found
        self.pipeline: Pipeline | None = None
        self.turns = 0

    def look(self) -> None:
        """One turn is over."""
        pipeline = self.pipeline
        if pipeline is None or len(self._found) >= KEPT:
            return
        self.turns += 1
        dispatcher, scenario = pipeline.dispatcher, self._scenario
        usage, cap = dispatcher.weir.drr.usage, dispatcher.cap
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

    def _look_at_workers(self, dispatcher: Any) -> None:
        for worker, spec in zip(dispatcher.fleet.workers, self._scenario.workers, strict=True):
            if not 0 <= worker.inflight <= spec.slots + worker.lookahead:
                self._found.append(f"{worker.name} holds {worker.inflight} of {spec.slots} + {worker.lookahead}")


class Judge:
    """Asks the facts of one run. `verdicts` are what is wrong: empty in a good run."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._scenario = facts.scenario
        self._sound = not facts.scenario.faults and not any(worker.evil for worker in facts.scenario.workers)
        self._verdict_of = {attempt.number: self._verdict(attempt) for attempt in facts.tries}

    def verdicts(self) -> list[str]:
        """What is wrong, in words; each names the rule that it breaks."""
        rules = (
            self._nothing_failed_inside, self._each_try_has_one_end, self._answers_are_ones_own,
            self._client_and_log_agree, self._log_and_metrics_agree, self._received_once_or_retried_by_the_rules,
            self._no_answer_after_its_deadline, self._invited_retries_have_a_hint,
            self._the_refused_are_not_invited_together, self._a_drain_finishes_what_runs, self._calm_is_served,
            self._nothing_is_left,
        )  # fmt: skip
        found: list[str] = []
        for rule in rules:
            name = rule.__name__.strip("_").replace("_", " ")
            found += [f"{name}: {what}" for what in list(rule())[:KEPT]]
        return found

    def counts(self) -> Counter[str]:
        """How the tries ended, for the run's summary."""
        return Counter(self._verdict_of[attempt.number].value for attempt in self._facts.tries)

    def _verdict(self, attempt: Try) -> Verdict:
        kind = attempt.headers.get(b"content-type", b"")
        heard = Heard(
            attempt.status, b"".join(attempt.body), kind.startswith(b"text/event-stream"), ended=attempt.complete
        )
        found = judge(heard, attempt.nonce, MAX_TOKENS)
        excused = found is Verdict.WRONG and (_shortened(attempt) or self._ended_before_its_words(attempt))
        return Verdict.RIGHT if excused else found

    def _ended_before_its_words(self, attempt: Try) -> bool:
        """Whether a byzantine worker ended its own stream before the first token.

        A server may answer with no text, so the router passes that end on when it comes; the words come behind it.
        """
        byzantine = {f"worker-{number}" for number, worker in enumerate(self._scenario.workers) if worker.evil}
        by = {line.worker for line in self._facts.logged.get(attempt.id, [])}
        return attempt.ask.stream and attempt.complete and bool(by & byzantine) and _said(attempt) == ""

    def _nothing_failed_inside(self) -> Iterator[str]:
        """No assertion, no exception that nobody catches, no 500, no error in a log."""
        yield from self._facts.errors
        for attempt in self._facts.tries:
            if attempt.status == 500:
                yield f"{attempt!r} got {b''.join(attempt.body)[:300]!r}"

    def _each_try_has_one_end(self) -> Iterator[str]:
        """One end for its client, and at most one line in the router's log."""
        for attempt in self._facts.tries:
            if attempt.ended_at is None:
                yield f"{attempt!r}, sent at {attempt.sent_at:.6f}, has not ended"
        for id, lines in self._facts.logged.items():
            if len(lines) > 1:
                yield f"{id} ended {len(lines)} times: {lines}"

    def _answers_are_ones_own(self) -> Iterator[str]:
        """Nobody gets another's answer, a wrong one, or bytes that it did not ask for."""
        for attempt in self._facts.tries:
            verdict = self._verdict_of[attempt.number]
            if verdict in (Verdict.FOREIGN, Verdict.WRONG):
                yield f"{attempt!r}: {verdict}: {b''.join(attempt.body)[:500]!r}"
        if self._facts.garbage:
            yield f"{self._facts.garbage} connections got bytes that nobody had asked for"

    def _client_and_log_agree(self) -> Iterator[str]:
        """What a client got to the end stands in the router's log, once, with that status and that outcome."""
        for attempt in self._facts.tries:
            verdict, lines = self._verdict_of[attempt.number], self._facts.logged.get(attempt.id, [])
            if not attempt.complete:
                if self._sound and not attempt.left and attempt.failure:
                    yield f"{attempt!r} failed without a fault: {attempt.failure}"
                continue
            if not lines:
                if not self._was_killed(attempt):
                    yield f"{attempt!r} was answered, and stands in no log"
                continue
            line = lines[0]
            served = verdict is Verdict.RIGHT
            if line.status != attempt.status:
                yield f"{attempt!r} was logged as {line}"
            elif served != (line.outcome == "served") and not (attempt.left or line.outcome == "client_gone"):
                yield f"{attempt!r} was {verdict}, and logged as {line}"

    def _was_killed(self, attempt: Try) -> bool:
        """Whether a router was killed while this try was under way."""
        ended = attempt.ended_at or 0.0
        return any(
            fault.kind == "killed router" and attempt.sent_at - GRACE_S <= begins <= ended + GRACE_S
            for begins, _, fault in self._facts.faults
        )

    def _log_and_metrics_agree(self) -> Iterator[str]:
        """The counter of requests by outcome, and the lines of this router's log."""
        lines = self._facts.outcomes[self._facts.router_starts]
        for outcome in sorted({*lines, *self._facts.counted}):
            if lines[outcome] != self._facts.counted[outcome]:
                yield f"{outcome}: {lines[outcome]} lines, counted {self._facts.counted[outcome]}"

    def _received_once_or_retried_by_the_rules(self) -> Iterator[str]:
        """A worker receives a request once, workers together twice at most, and twice only within the budget."""
        twice = 0
        for attempt in self._facts.tries:
            received = self._facts.received.get(attempt.nonce, [])
            if len(received) > MOST_RECEIVED:
                yield f"{attempt!r} was received {len(received)} times: {received}"
            if len(received) > 1:
                twice += 1
                if self._sound:
                    yield f"{attempt!r} was received twice without a fault: {received}"
        extra = sum(max(0, len(each) - 1) for each in self._facts.received.values())
        if self._facts.router_starts == 1 and extra > self._facts.retries:
            yield f"{extra} were received once more, and {self._facts.retries} retries were counted"
        seconds = max((attempt.ended_at or 0.0 for attempt in self._facts.tries), default=0.0) - BEGINS_S
        most = (
            RETRY_SHARE * (len(self._facts.tries) + self._facts.governed)
            + RETRY_MIN * (1 + seconds / 9) * self._facts.router_starts
        )
        if twice > most:
            yield f"{twice} of {len(self._facts.tries)} were received twice, at most {most:.0f} may be"
        if self._facts.retries > most:
            yield f"{self._facts.retries} retries of {len(self._facts.tries)} requests, at most {most:.0f} may be"

    def _no_answer_after_its_deadline(self) -> Iterator[str]:
        """A right answer comes in time, but for what the network and processes that stood still have held it back."""
        for attempt in self._facts.tries:
            if self._verdict_of[attempt.number] is not Verdict.RIGHT or attempt.ended_at is None:
                continue
            late_s = attempt.ended_at - attempt.sent_at - attempt.ask.deadline_s
            if attempt.ask.reads_slowly:
                late_s -= attempt.ask.deadline_s / 4
            if late_s > GRACE_S + self._held_back_s(attempt):
                yield f"{attempt!r} was answered {late_s * 1000:.0f} ms after its deadline"

    def _held_back_s(self, attempt: Try) -> float:
        """Seconds that faults may have kept a request or its answer: they end at most that late."""
        ended = attempt.ended_at or 0.0
        held = 0.0
        for begins, ends, fault in self._facts.faults:
            if fault.kind in HOLDING and begins <= ended and ends >= attempt.sent_at:
                held += min(ends, ended) - max(begins, attempt.sent_at) + HOLDING[fault.kind]
        return held

    def _invited_retries_have_a_hint(self) -> Iterator[str]:
        """Who is asked to come back is told when: 50 ms to 30 s."""
        for attempt in self._facts.tries:
            if not attempt.complete or attempt.status == 200:
                continue
            hint_ms = attempt.hint_ms
            if attempt.invited and hint_ms is None:
                yield f"{attempt!r} is invited without a hint: {attempt.headers}"
            if hint_ms is not None and not HINTS_MS[0] <= hint_ms <= HINTS_MS[1]:
                yield f"{attempt!r} has a hint of {hint_ms} ms"

    def _the_refused_are_not_invited_together(self) -> Iterator[str]:
        """Hints reserve: no more are asked to come back in a second than can be served in two."""
        most = 2 * self._scenario.most_per_s + 20
        seconds = Counter(
            int(attempt.ended_at + attempt.hint_ms / 1000)
            for attempt in self._facts.tries
            if attempt.ended_at is not None and attempt.status == 429 and attempt.hint_ms is not None
            and attempt.hint_ms < LAST_OF_BOOK_MS
        )  # fmt: skip
        for second, count in sorted(seconds.items()):
            if count > most:
                yield f"{count} are invited into second {second}, and at most {most:.0f} may be"

    def _a_drain_finishes_what_runs(self) -> Iterator[str]:
        """Who is at a worker when the router leaves gets an answer, unless something else befell it."""
        for attempt in self._facts.tries:
            lines = self._facts.logged.get(attempt.id, [])
            at_work = len(self._facts.received.get(attempt.nonce, [])) == 1
            if at_work and lines and lines[0].outcome == "draining" and not self._met_a_fault(attempt):
                yield f"{attempt!r} ran when the router left, and was sent away: {lines[0]}"

    def _met_a_fault(self, attempt: Try) -> bool:
        """Whether any fault but a drain lasted while this try was under way."""
        ended = attempt.ended_at or 0.0
        return any(
            fault.kind != "drained router" and begins <= ended and ends >= attempt.sent_at
            for begins, ends, fault in self._facts.faults
        )

    def _calm_is_served(self) -> Iterator[str]:
        """Twice the deadline after the last fault, a light load is served as if nothing had been."""
        tail = [attempt for attempt in self._facts.tries if attempt.of_tail and not attempt.left]
        good = sum(self._verdict_of[attempt.number] is Verdict.RIGHT for attempt in tail)
        if len(tail) >= 20 and good < ON_TIME_IN_CALM * len(tail) - 1:
            bad = Counter(
                (attempt.status, attempt.failure) for attempt in tail
                if self._verdict_of[attempt.number] is not Verdict.RIGHT
            )  # fmt: skip
            yield f"{good} of {len(tail)} were served after all faults had ended; the others: {dict(bad)}"

    def _nothing_is_left(self) -> Iterator[str]:
        """No task, timer, connection, place or entry of a ledger outlives what it was for."""
        yield from self._facts.left


def _shortened(attempt: Try) -> bool:
    """Whether an answer was cut to fewer tokens, as its header says, and is right as far as it goes."""
    if b"max_tokens" not in attempt.headers.get(b"x-weir-degraded", b"") or not attempt.complete:
        return False
    text = _said(attempt)
    return text is not None and text != "" and right(attempt.nonce).startswith(text)


def _said(attempt: Try) -> str | None:
    """The text of a whole answer; None for a stream that did not end as it should."""
    body = b"".join(attempt.body).decode()
    if not attempt.ask.stream:
        said = json.loads(body)
        return str(said["text"]) if "text" in said else _text(said)
    events = [line[6:] for line in body.split("\n") if line.startswith("data: {")]
    if attempt.ask.kind == "ask":
        return str(json.loads(events[-1])["text"])
    if not body.endswith("data: [DONE]\n\n"):
        return None
    return "".join(_text(json.loads(event)) for event in events)


def _text(said: dict[str, Any]) -> str:
    """The text of an answer or a chunk in OpenAI's form."""
    return "".join(
        choice["text"] if "text" in choice else choice.get("message", choice.get("delta"))["content"] or ""
        for choice in said["choices"]
        if "text" in choice or "content" in choice.get("message", choice.get("delta"))
    )


HOLDING = {
    "latency": 0.4,
    "partition": 1.5,
    "stalled router": 0.1,
    "stalled clients": 0.1,
    "half open": 0.5,
    "killed router": 0.5,
    "jumping clock": 3.5,
}
"""Faults that may hold an answer back, with the seconds for which each may do so after its own end."""
