"""A request in the simulator: the core's object with the fields of client and worker."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from services.core.outcome import Outcome
from services.core.request import UNLIMITED, Request, Stage

if TYPE_CHECKING:
    from loadtests.simulator.accounts import Account
    from loadtests.simulator.clients import Tenant
    from loadtests.simulator.plan import ClosedLoop
    from loadtests.simulator.workers import Worker

# `Job.state`. The policy has its own `stage`.
OFFERED, WAITING, RUNNING, OVER = range(4)


class Job(Request):
    """One attempt of a request. The policy gets this object itself, not a copy."""

    __slots__ = (
        "account",
        "asker",
        "attempt",
        "client",
        "ended",
        "first_arrived_at",
        "forecast",
        "impatient",
        "lease_epoch",
        "leaves_at",
        "loop",
        "natural_tokens",
        "obeyed",
        "obeys",
        "pace_s",
        "question",
        "ran_from",
        "ran_until",
        "read_at",
        "router",
        "share_from_s",
        "state",
        "stopped",
        "stops_at_step",
        "tokens_done",
        "used_s",
        "wanted_tokens",
        "worker",
        "worker_prompt",
        "worker_tokens",
    )

    natural_tokens: int
    """Length of the answer without a limit. Policies must not read it."""
    wanted_tokens: int
    """Length of its whole answer: the natural one, within the client's limit if there is one."""
    asker: Tenant
    account: Account
    """The tenant's, or the simulation's own for arrivals outside the counting window."""
    question: int
    """Number of the first attempt."""
    attempt: int
    first_arrived_at: float
    forecast: Sequence[float]
    """The wait that the policy predicts, at each of its quantiles, in seconds."""
    impatient: bool
    """Whether its client retries at once, whatever its tenant's usual wait."""
    leaves_at: float
    """When the client gives up."""
    loop: ClosedLoop | None
    client: int
    """Number of the client in its closed loop."""
    obeys: bool
    """Whether this attempt waited for a retry hint."""
    obeyed: int
    """Retry hints obeyed so far, over all attempts."""
    router: Any
    """The router that has it, where there are several (routers/router.py)."""
    lease_epoch: int
    """Of the lease that it was sent within."""
    worker: Worker | None
    worker_prompt: int
    worker_tokens: int
    """Tokens on its worker: prompt with retrieved context, and the answer's final length."""
    ran_from: float
    ran_until: float
    tokens_done: int
    """Completion tokens when it left its worker."""
    used_s: float
    """Slot-seconds between `ran_from` and `ran_until`."""
    pace_s: float
    read_at: float
    share_from_s: float
    stops_at_step: int
    """State of the worker."""
    stopped: Outcome | None
    """Why it was stopped on its worker."""
    ended: bool
    """The client has its answer or has given up. A worker may still work on it."""

    def __init__(
        self,
        number: int,
        asker: Tenant,
        arrived_at: float,
        prompt_tokens: int,
        context_tokens: int,
        natural_tokens: int,
        deadline_s: float,
        client_timeout_s: float,
    ) -> None:
        # Field by field, for speed: every simulated request makes a job, rejected ones too.
        self.id = self.question = number
        self.tenant = asker.name
        self.arrived_at = self.first_arrived_at = arrived_at
        self.deadline = arrived_at + deadline_s
        self.leaves_at = arrived_at + client_timeout_s
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens
        self.natural_tokens = natural_tokens
        self.max_tokens = self.granted_tokens = asker.max_tokens
        self.open_ended = False
        self.wanted_tokens = natural_tokens if natural_tokens < asker.max_tokens else asker.max_tokens
        self.bytes = 4 * (prompt_tokens + context_tokens)
        self.pool = "default"
        self.start_by = self.first_token_by = inf
        self.class_name = ""
        self.expires_for = "deadline"
        self.max_level = asker.max_level
        self.may_clamp = asker.may_clamp
        self.ready = True
        self.stage = Stage.NEW
        self.level = self.sequence = 0
        self.cold_start = self.found_slot = self.predicted_as_new = False
        self.length_quantile = 0.5
        self.read_tokens = 0
        self.read_before_tokens = 0.0
        self.charge_tokens = self.deferred_tokens = self.expires_at = self.predicted_wait_s = 0.0
        self.counted_wait_s = self.counted_service_s = 0.0
        self.queued_at = self.ready_at = self.started_at = self.slot_at = self.ends_at = 0.0
        self.first_token_at = self.full_s = 0.0
        self.asker = asker
        self.account = asker.account
        self.attempt = self.obeyed = 0
        self.client = -1
        self.loop = None
        self.ended = self.obeys = self.impatient = False
        self.state = OFFERED

    def leave_open(self) -> None:
        """Set no limit of the answer. A policy that plans with a length sets `max_tokens`."""
        self.open_ended = True
        self.granted_tokens = UNLIMITED
        self.wanted_tokens = self.natural_tokens

    def wait(self) -> None:
        """Admitted. Sets the fields that only admitted jobs need, because most jobs of an overload are rejected."""
        self.state = WAITING
        self.worker = self.stopped = None
        self.ran_from = self.ran_until = self.used_s = 0.0
        self.tokens_done = 0

    def generated(self, now: float) -> int:
        return self.worker.generated(now, self) if self.worker is not None else 0

    def again(self, number: int, now: float, *, keeps_deadline: bool, obeys: bool) -> Job:
        deadline_s = self.deadline - (now if keeps_deadline else self.arrived_at)
        client_timeout_s = self.leaves_at - (now if keeps_deadline else self.arrived_at)
        sizes = self.prompt_tokens, self.context_tokens, self.natural_tokens
        job = Job(number, self.asker, now, *sizes, deadline_s, client_timeout_s)
        if self.open_ended:
            job.leave_open()
        job.account, job.loop, job.client = self.account, self.loop, self.client
        job.question, job.first_arrived_at, job.impatient = self.question, self.first_arrived_at, self.impatient
        job.attempt, job.obeys, job.obeyed = self.attempt + 1, obeys, self.obeyed + obeys
        return job
