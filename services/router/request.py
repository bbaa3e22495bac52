"""One client request from its arrival to its end: one object, and each value in it once.

The pipeline creates an `InferenceRequest` on arrival and fills it in. The scheduler gets the same object. A request for
embeddings or documents is never scheduled and leaves the scheduler's fields at their defaults. After the end the
console's records keep the object; `drop_contents` removes what is large or private.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf

from services.contracts.generate import Message
from services.core.outcome import Outcome
from services.core.request import UNLIMITED, Request
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
    """It holds a slot at `worker` while that is set. Times are the event loop's, in seconds; 0.0 until the event."""

    id: str
    tenant: str = OTHER
    """The name for the scheduler, metrics and logs; `other` until the request is identified."""
    arrived_at: float = 0.0
    deadline: float = inf
    prompt_tokens: int = 0
    max_tokens: int = 0
    account: Tenant | None = None
    """The tenant with its rate and rights; None until the request is identified."""
    parsed: ParsedRequest = NOT_PARSED
    slo: RequestSLO = NO_SLO
    trace: Trace | None = None

    # ---- estimates

    model: str = ""
    copies: int = 1
    """Answers computed at once (`n`, `best_of`, several prompts); `max_tokens` is the sum over all of them."""
    affinity: int = 0
    """A hash of the prompt's beginning, for the worker whose prefix cache may hold it; 0: no prompt."""
    prompt_bytes: int = 0
    """Bytes of the prompt's text; 0 if the server's count includes more than text."""
    queue_depth: int | None = None
    """Requests queued at its arrival; None: the scheduler was not asked."""
    admitted: bool = False
    reserved_tokens: float = 0.0
    """Taken from the tenant's rate until it is settled."""
    limited_by_default: bool = False
    """Whether its limit is `DEFAULT_MAX_TOKENS`, since it names none."""

    # ---- progress

    timer: DeadlineTimer | None = None
    waiter: asyncio.Future[None] | None = None
    refusal: Refused | None = None
    """Set if the request is evicted after admission: it ran out of time, or no worker is left for it."""
    found: Found | None = None
    """The result of retrieval."""
    dispatched_at: float = 0.0
    worker: Worker | None = None
    failed_worker: Worker | None = None
    """The worker of the failed first attempt."""
    last_worker: str = ""
    """The name of the worker at its end."""
    attempt_id: str = ""
    attempts: int = 0
    sent_at: float = 0.0
    """When the last attempt began."""
    overloaded: bool = False
    """Whether the worker refused the last attempt for lack of capacity."""
    retried: bool = False
    worker_crashes: int = 0
    """Workers whose connection was lost while they worked on this request."""
    pieces: int = 0
    """Outputs of a streamed answer so far."""
    degraded: tuple[str, ...] = ()
    """What was left out of the context."""

    # ---- the end

    end: End | None = None
    """The end of a complete answer, as the worker reported it."""
    client_outcome: Outcome | None = None
    """How a detached request ended for its client while its work goes on (`detached.py`)."""
    client_outcome_at: float = 0.0
    outcome: Outcome | None = None
    """How the request ended; None until then. Set once."""

    @property
    def deadline_ms(self) -> float:
        return self.slo.deadline_ms

    @property
    def limit_tokens(self) -> int | None:
        """The length limit of each copy of the answer, in tokens; None: no limit."""
        granted = self.granted_tokens
        if granted == UNLIMITED:
            return None
        return granted if self.copies == 1 else max(1, granted // self.copies)

    @property
    def granted_limit(self) -> int | None:
        """The limit of all copies together, in tokens; None: no limit."""
        return None if self.granted_tokens == UNLIMITED else self.granted_tokens

    @property
    def work_until(self) -> float:
        """When the worker must be done: at the deadline, or later for a detached request."""
        return self.deadline if self.timer is None else self.timer.work_until

    @property
    def messages(self) -> list[Message] | None:
        """The messages for the worker; for a retrieval query they are built from it and the passages."""
        query = self.parsed.retrieval
        if query is None:
            return self.parsed.messages
        return prompt.build(query.query, self.found.passages if self.found is not None else ())

    @property
    def first_output_at(self) -> float:
        """When the first output of a streamed answer arrived; 0.0 for a plain answer."""
        return self.first_token_at if self.parsed.stream else 0.0

    @property
    def waited_s(self) -> float:
        """Seconds from its place in the queue to its start."""
        return self.started_at - self.queued_at if self.started_at else 0.0

    @property
    def worker_name(self) -> str:
        """The worker that holds or last held it; "" if none did."""
        return self.last_worker if self.worker is None else self.worker.name

    @property
    def cuts(self) -> tuple[str, ...]:
        """What was cut. A lowered `max_tokens`, or one that was set for the deadline, counts until the end, and then
        only if the answer reached it.
        """
        granted = self.granted_tokens
        if granted >= self.max_tokens and (not self.open_ended or granted == UNLIMITED):
            return self.degraded
        limit = self.limit_tokens or 0
        lowered = self.dispatched_at and (self.open_ended or limit < self.max_tokens // self.copies)
        if lowered and (self.end is None or self.end.finish_reason == "length"):
            return (*self.degraded, "max_tokens")
        return self.degraded

    def cut(self, what: str) -> None:
        if what not in self.degraded:
            self.degraded += (what,)

    def halve_context(self) -> None:
        """Keep the nearer half of the passages for a retry, if there is more than one."""
        found = self.found
        if found is not None and len(found.passages) > 1:
            self.cut("context")
            self.found = Found(found.source, prompt.halved(found.passages), found.reason, found.seconds)

    def wake(self) -> None:
        """Wake the request's task after a decision."""
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def drop_contents(self) -> None:
        """Drop what is large, private or alive from the ended request; the numbers stay."""
        self.parsed = NOT_PARSED_STREAM if self.parsed.stream else NOT_PARSED
        self.timer = None
        self.refusal = None  # a raised exception refers to its frames, and they to the prompt
        found = self.found
        if found is not None and found.passages:
            self.found = Found(found.source, reason=found.reason, seconds=found.seconds)
