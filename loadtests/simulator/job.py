"""A request as the simulator sees it: the core's own object, with what only the client and the worker know."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

from services.core.outcome import Outcome
from services.core.request import Request, Stage

if TYPE_CHECKING:
    from loadtests.simulator.clients import Tenant
    from loadtests.simulator.plan import Asks
    from loadtests.simulator.tally import Account
    from loadtests.simulator.workers import Worker

# Where a job stands for the simulation; `stage` is the policy's own.
OFFERED, WAITING, RUNNING, OVER = range(4)


class Job(Request):
    """One attempt at one answer. It goes through the policy as it is: no copies."""

    __slots__ = (
        "account",
        "asker",
        "attempt",
        "client",
        "ended",
        "first_arrived_at",
        "forecast",
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
        "share_from_s",
        "state",
        "stopped",
        "stops_at_step",
        "tokens_done",
        "used_s",
        "worker",
        "worker_prompt",
        "worker_tokens",
    )

    natural_tokens: int
    """How long the answer would be if nobody cut it. Policies must not look."""
    asker: Tenant
    account: Account
    """Where it is counted: its tenant's, or one that nobody reads when it is outside the counting window."""
    question: int
    """The number of its first attempt."""
    attempt: int
    first_arrived_at: float
    forecast: Sequence[float]
    """What its policy predicts of its wait, if it does."""
    leaves_at: float
    """When the client gives up."""
    loop: Asks | None
    client: int
    """In a closed loop, which client asks."""
    obeys: bool
    """It comes when a retry hint said."""
    obeyed: int
    """How many retry hints have been obeyed for it so far."""
    worker: Worker | None
    worker_prompt: int
    worker_tokens: int
    """What it asks of its worker: prompt and retrieved context, and the answer as long as it will get."""
    ran_from: float
    ran_until: float
    tokens_done: int
    """Of its answer, when it came off its worker."""
    used_s: float
    """Slot-seconds that it took of its worker, between these two."""
    pace_s: float
    read_at: float
    share_from_s: float
    stops_at_step: int
    """The worker's own notes."""
    stopped: Outcome | None
    """Why its worker was told to stop."""
    ended: bool
    """The client has its answer, or has given up. A worker may still be at it, for nobody."""

    def __init__(
        self,
        number: int,
        asker: Tenant,
        arrived_at: float,
        prompt_tokens: int,
        context_tokens: int,
        natural_tokens: int,
        deadline_s: float,
        patience_s: float,
    ) -> None:
        # Written out, field by field: a job is made for every simulated request, refused ones included.
        self.id = self.question = number
        self.tenant = asker.name
        self.arrived_at = self.first_arrived_at = arrived_at
        self.deadline = arrived_at + deadline_s
        self.leaves_at = arrived_at + patience_s
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens
        self.natural_tokens = natural_tokens
        self.max_tokens = self.granted_tokens = asker.max_tokens
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
        self.cold_start = self.predicted_as_new = False
        self.length_quantile = 0.5
        self.read_tokens = 0
        self.read_before_tokens = 0.0
        self.charge_tokens = self.expires_at = self.predicted_wait_s = 0.0
        self.counted_wait_s = self.counted_service_s = 0.0
        self.queued_at = self.ready_at = self.started_at = self.first_token_at = self.full_s = 0.0
        self.asker = asker
        self.account = asker.account
        self.attempt = self.obeyed = 0
        self.client = -1
        self.loop = None
        self.ended = self.obeys = False
        self.state = OFFERED

    def wait(self) -> None:
        """It was admitted, so a worker may follow. Most are not, at ten times capacity."""
        self.state = WAITING
        self.worker = self.stopped = None
        self.ran_from = self.ran_until = self.used_s = 0.0
        self.tokens_done = 0

    def generated(self, now: float) -> int:
        """Tokens of the answer so far, as a client that reads the stream sees them."""
        return self.worker.generated(now, self) if self.worker is not None else 0

    def again(self, number: int, now: float, *, keeps_deadline: bool, obeys: bool) -> Job:
        """The same question, asked once more."""
        deadline_s = self.deadline - (now if keeps_deadline else self.arrived_at)
        patience_s = self.leaves_at - (now if keeps_deadline else self.arrived_at)
        sizes = self.prompt_tokens, self.context_tokens, self.natural_tokens
        job = Job(number, self.asker, now, *sizes, deadline_s, patience_s)
        job.account, job.loop, job.client = self.account, self.loop, self.client
        job.question, job.first_arrived_at = self.question, self.first_arrived_at
        job.attempt, job.obeys, job.obeyed = self.attempt + 1, obeys, self.obeyed + obeys
        return job
