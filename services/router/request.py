"""One request of a client, from its arrival to its end: one object, and every value in it stands once.

The pipeline creates an `InferenceRequest` when a request arrives. What is not yet known is at its default and is filled
in as the request goes on: its tenant and SLO, its parsed body and sizes, its place, its attempts, its end. The
scheduler gets the same object, since its own `Request` is the base class. A request for embeddings or documents is
never scheduled, and leaves the scheduler's fields as they are.

After its end the console's records keep the object for a while. `drop_contents` takes out all that is large or private.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf

from services.contracts.generate import Message
from services.core.outcome import Outcome
from services.core.request import Request
from services.router.deadlinetimer import DeadlineTimer
from services.router.parsing.parsed import NOT_PARSED, NOT_PARSED_STREAM, ParsedRequest
from services.router.parsing.slo import NO_SLO, RequestSLO
from services.router.rag import prompt
from services.router.rag.retrieval import Found
from services.router.tenancy.tenants import OTHER, Tenant
from services.router.upstreams.call import End
from services.router.workers.worker import Worker
from services.runtime.errors import Refused
from services.runtime.tracing import Trace


@dataclass(slots=True, eq=False, repr=False)
class InferenceRequest(Request):
    """It holds a slot at `worker` while that is set. Times are the loop's, in seconds; 0.0 until it happens."""

    id: str
    tenant: str = OTHER
    """The name for the scheduler, metrics and logs; one for all requests that have not been identified."""
    arrived_at: float = 0.0
    deadline: float = inf
    prompt_tokens: int = 0
    max_tokens: int = 0
    account: Tenant | None = None
    """The tenant itself, with its rate and its rights; None until the request has been identified."""
    parsed: ParsedRequest = NOT_PARSED
    slo: RequestSLO = NO_SLO
    trace: Trace | None = None

    # ---- as it was weighed

    model: str = ""
    copies: int = 1
    """Answers that are computed at once, as `best_of` has it: `max_tokens` is the sum of all."""
    affinity: int = 0
    """A hash of the prompt's beginning: the worker that last had the same one keeps it in its prefix cache. 0: none."""
    prompt_bytes: int = 0
    queue_depth: int | None = None
    """Requests that waited before it; None: the scheduler was not asked."""
    admitted: bool = False
    reserved_tokens: float = 0.0
    """Taken from the tenant's rate, until it is settled."""

    # ---- on its way

    timer: DeadlineTimer | None = None
    waiter: asyncio.Future[None] | None = None
    refusal: Refused | None = None
    """Why it was evicted after it had been admitted: its time had come, or the router is shutting down."""
    found: Found | None = None
    """What retrieval brought."""
    dispatched_at: float = 0.0
    worker: Worker | None = None
    failed_worker: Worker | None = None
    """The worker that the first attempt failed at."""
    last_worker: str = ""
    """The name of the worker that it ended at."""
    attempt_id: str = ""
    attempts: int = 0
    sent_at: float = 0.0
    """When the last attempt began."""
    overloaded: bool = False
    """Whether the last attempt was refused for want of capacity."""
    retried: bool = False
    worker_crashes: int = 0
    """Workers whose connection was lost while they worked on it."""
    pieces: int = 0
    """Of a streamed answer, so far."""
    degraded: tuple[str, ...] = ()
    """What was left out of its context."""

    # ---- its end

    end: End | None = None
    """The worker's last word of a whole answer."""
    client_outcome: Outcome | None = None
    """How a detached request ended for its client, while its work goes on (`detached.py`)."""
    client_outcome_at: float = 0.0
    outcome: Outcome | None = None
    """How it ended; None until then. Set once."""

    @property
    def deadline_ms(self) -> float:
        """The time that the client gave it."""
        return self.slo.deadline_ms

    @property
    def answer_tokens(self) -> int:
        """The longest answer that its worker may give, of each of its copies."""
        return self.granted_tokens if self.copies == 1 else max(1, self.granted_tokens // self.copies)

    @property
    def work_until(self) -> float:
        """When its worker must be done: at its deadline, or later for a request that goes on without its client."""
        return self.deadline if self.timer is None else self.timer.work_until

    @property
    def messages(self) -> list[Message] | None:
        """The chat that its worker answers; with a retrieval query, made of that and the passages."""
        query = self.parsed.retrieval
        if query is None:
            return self.parsed.messages
        return prompt.build(query.query, self.found.passages if self.found is not None else ())

    @property
    def first_output_at(self) -> float:
        """When the first output of a streamed answer came; 0.0 for an answer in one piece."""
        return self.first_token_at if self.parsed.stream else 0.0

    @property
    def waited_s(self) -> float:
        """From its place in the queue to its start."""
        return self.started_at - self.queued_at if self.started_at else 0.0

    @property
    def worker_name(self) -> str:
        """The worker that it is at, or ended at; "" where there is none."""
        return self.last_worker if self.worker is None else self.worker.name

    @property
    def cuts(self) -> tuple[str, ...]:
        """What was cut. A lowered limit counts while the answer may still meet it, and after it if it did."""
        lowered = self.dispatched_at and self.answer_tokens < self.max_tokens // self.copies
        if lowered and (self.end is None or self.end.finish_reason == "length"):
            return (*self.degraded, "max_tokens")
        return self.degraded

    def cut(self, what: str) -> None:
        """Something was left out; the client is told once."""
        if what not in self.degraded:
            self.degraded += (what,)

    def halve_context(self) -> None:
        """For the retry: the nearer half of the passages, where there are several; the answer says so."""
        found = self.found
        if found is not None and len(found.passages) > 1:
            self.cut("context")
            self.found = Found(found.source, prompt.halved(found.passages), found.reason, found.seconds)

    def wake(self) -> None:
        """Something was decided: its task looks."""
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def drop_contents(self) -> None:
        """It has ended, and its record is kept for a while: keep the numbers, and nothing large, private or alive."""
        self.parsed = NOT_PARSED_STREAM if self.parsed.stream else NOT_PARSED
        self.timer = None
        self.refusal = None  # an exception that was raised holds its frames, and they hold the prompt
        found = self.found
        if found is not None and found.passages:
            self.found = Found(found.source, reason=found.reason, seconds=found.seconds)
