"""The governor's invariants: after every turn of its loop (`GovernorSteps`), and at the end of the run."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from loadtests.judging.answers import Received, Verdict, judge
from loadtests.judging.nonces import right
from loadtests.world.client import MAX_TOKENS
from loadtests.world.governorclient import Job
from loadtests.world.governorplan import TOTAL_BYTES, GovernorPlan
from loadtests.world.judge import GRACE_S, KEPT, broken
from services.governor.server import GovernorServer

FAULTLESS = frozenset({"done", "gave up", "left", "half", "abort deadline", "abort too_many_connections"})
"""Ends that need no fault. `backend_error` needs a reply of the router."""


@dataclass(slots=True)
class GovernorFacts:
    """Observations of the governor and its clients. `faults`: (begin, end) of every fault."""

    plan: GovernorPlan
    settle_s: float
    jobs: list[Job] = field(default_factory=list)
    garbage: list[str] = field(default_factory=list)
    faults: list[tuple[float, float]] = field(default_factory=list)
    stepped: list[str] = field(default_factory=list)
    received: Counter[str] = field(default_factory=Counter)
    """Receptions of a job's question by workers, by nonce."""
    starts: int = 1
    executed: int = 0
    yielded: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    """The governor's counters since its last start."""
    left: list[str] = field(default_factory=list)


class GovernorSteps:
    """Bounds that hold after every turn of the governor's loop."""

    def __init__(self, facts: GovernorFacts) -> None:
        self._facts = facts
        self.server: GovernorServer | None = None
        self.turns = 0

    def look(self) -> None:
        server, found = self.server, self._facts.stepped
        if server is None or len(found) >= KEPT:
            return
        self.turns += 1
        gate, plan = server.gate, self._facts.plan
        inflight = gate.status.inflight
        if not 0 <= inflight <= plan.cap:
            found.append(f"{inflight} jobs run, at most {plan.cap} may")
        running = sum(not task.done() for task in server.tasks)
        if inflight != running:
            found.append(f"{inflight} slots are taken, and {running} jobs run")
        if not 0 <= gate.held_bytes <= TOTAL_BYTES:
            found.append(f"{gate.held_bytes} bytes are held, at most {TOTAL_BYTES} may be")
        if len(server.connections) > plan.connections:
            found.append(f"{len(server.connections)} connections, at most {plan.connections} may be")
        if self.turns % 4 == 0:
            self._look_at_connections(server)

    def _look_at_connections(self, server: GovernorServer) -> None:
        gate, found = server.gate, self._facts.stepped
        talks: list[Any] = [connection._session for connection in server.connections]
        held, expected = (
            sum(talk._memory.held_bytes for talk in talks),
            sum(job.deferred for talk in talks for job in talk._jobs.values()),
        )
        if gate.held_bytes < held:
            found.append(f"{gate.held_bytes} bytes are held, and connections hold {held}")
        if gate.waiting != expected:
            found.append(f"{gate.waiting} clients wait to retry, where {expected} have a hint")


class GovernorJudge:
    def __init__(self, facts: GovernorFacts) -> None:
        self._facts = facts

    def verdicts(self) -> list[str]:
        """Violations; empty for a good run."""
        return broken(
            self._bounds_hold, self._each_job_has_one_end, self._replies_are_ones_own, self._metrics_and_clients_agree,
            self._nothing_runs_past_its_time, self._calm_is_served, self._nothing_is_left, of="governor: ",
        )  # fmt: skip

    def _bounds_hold(self) -> Iterator[str]:
        yield from self._facts.stepped

    def _each_job_has_one_end(self) -> Iterator[str]:
        """An answer, a refusal, lateness or the client's own disconnect; anything else needs a fault."""
        for job in self._facts.jobs:
            if job.ended_at is None:
                yield f"{job!r} has not ended"
            elif not (job.end in FAULTLESS or self._was_refused(job) or self._is_half(job) or self._had_a_fault(job)):
                yield f"{job!r} failed without a fault: {job.final}"

    def _is_half(self, job: Job) -> bool:
        """Whether the client half-closed within a line, and the governor reported that."""
        return job.ask.manner == "half" and job.end == "abort peer_gone"

    def _had_a_fault(self, job: Job) -> bool:
        """Whether a fault overlapped the job, or ended less than `settle_s` before it."""
        ended = job.ended_at or 0.0
        return any(
            begins <= ended and job.sent_at <= ends + self._facts.settle_s for begins, ends in self._facts.faults
        )

    def _was_refused(self, job: Job) -> bool:
        """Whether the router refused, or did not answer in time."""
        if job.end != "abort backend_error" or not self._facts.plan.router:
            return False
        result = job.final.get("result", {})
        return "status" in result or str(result.get("error", "")).startswith("no answer within")

    def _replies_are_ones_own(self) -> Iterator[str]:
        """Each reply belongs to its request, and the router's answer is right for this job's question."""
        for what in self._facts.garbage:
            yield f"a reply without a request: {what}"
        for job in self._facts.jobs:
            yield from (f"{job!r} {what}" for what in job.wrong)
            result = job.final.get("result", {})
            if "status" not in result:
                if job.end == "done" and self._facts.plan.router:
                    yield f"{job!r} is done, and has no answer: {job.final}"
                continue
            body = base64.b64decode(result["body_b64"])
            verdict = judge(Received(result["status"], body, False), job.nonce, MAX_TOKENS)
            if verdict not in (Verdict.RIGHT, Verdict.REFUSED) and not _shortened(job, body):
                yield f"{job!r}: {verdict}: {result['status']} {body[:500]!r}"
            elif (job.end == "done") != (result["status"] == 200):
                yield f"{job!r} was answered {result['status']}"
            elif job.end == "done" and not self._facts.received[job.nonce]:
                yield f"{job!r} was answered, and no worker has received it"

    def _metrics_and_clients_agree(self) -> Iterator[str]:
        """Every started job is counted once by its end, and the clients' replies match the counters."""
        facts = self._facts
        if facts.executed != sum(facts.ended.values()):
            yield f"{facts.executed} jobs were started, and ended: {dict(facts.ended)}"
        if facts.starts > 1:
            return
        done, yields = sum(job.end == "done" for job in facts.jobs), sum(job.yields for job in facts.jobs)
        if done > facts.ended["done"]:
            yield f"{done} jobs are done for their clients, and {facts.ended['done']} were counted"
        if yields > facts.yielded:
            yield f"{yields} replies yield, and {facts.yielded} were counted"
        whole = all(job.ask.manner in ("whole", "half") for job in facts.jobs)
        if whole and not facts.faults and (done, yields) != (facts.ended["done"], facts.yielded):
            yield f"clients heard {done} and {yields}, {facts.ended['done']} and {facts.yielded} were counted"

    def _nothing_runs_past_its_time(self) -> Iterator[str]:
        """A job with a stated time limit is not done after it, except for the time that faults account for."""
        for job in self._facts.jobs:
            if job.end != "done" or not job.ask.sends_ttl or job.ended_at is None or self._had_a_fault(job):
                continue
            late_s = job.ended_at - job.sent_at - job.ask.client_timeout_s
            if late_s > GRACE_S:
                yield f"{job!r} was done {late_s * 1000:.0f} ms after its time"

    def _calm_is_served(self) -> Iterator[str]:
        """After the last fault, a light load is served."""
        tail = [job for job in self._facts.jobs if job.ask.of_tail]
        if sum(job.end == "done" for job in tail) < len(tail) - 1:
            yield f"after all faults had ended: {Counter(job.end for job in tail)}"

    def _nothing_is_left(self) -> Iterator[str]:
        yield from self._facts.left


def held(server: GovernorServer | None) -> list[str]:
    """What the governor still holds after all clients have disconnected."""
    if server is None:
        return ["the governor does not run at the end"]
    gate = server.gate
    pool = getattr(server.backend, "_pool", None)
    counts = {
        "slots": gate.status.inflight,
        "bytes": gate.held_bytes,
        "clients that have a hint": gate.waiting,
        "jobs": len(server.tasks),
        "connections": len(server.connections),
        "places of connections": server.places.taken,
        "connections to the router in use": pool.in_use if pool is not None else 0,
    }
    return [f"{count} {what} are left over" for what, count in counts.items() if count]


def _shortened(job: Job, body: bytes) -> bool:
    """Whether an answer was cut to fewer tokens, says so, and is a right prefix."""
    try:
        choice = json.loads(body)["choices"][0]
    except (ValueError, KeyError, IndexError):
        return False
    return bool(choice["text"]) and choice["finish_reason"] == "length" and right(job.nonce).startswith(choice["text"])
