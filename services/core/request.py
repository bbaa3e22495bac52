"""What the core knows of a request: sizes, times, wishes, and where it stands.

The fields above the line are the caller's. Those below it are written by the core while the request waits and runs,
and read by anyone. One object goes through every mechanism, so that a decision costs no copies.

All times are seconds on the clock that `now` is read from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.core.pool import Flow


class Stage(Enum):
    """Where a request stands. It only ever moves to the right: new, waiting, running, ended (or straight to ended)."""

    NEW = "new"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


NEW, WAITING, RUNNING, ENDED = Stage
"""By short names, since an enum's members are looked up slowly, and stages at every step."""


@dataclass(slots=True, eq=False)
class Request:
    """One request for one answer. Compared by identity."""

    id: str | int
    tenant: str
    arrived_at: float
    deadline: float
    prompt_tokens: int
    """Estimated at the door, counted when it starts. What retrieval adds is `context_tokens`."""
    max_tokens: int
    """The longest answer that was asked for."""
    context_tokens: int = 0
    """What retrieval is expected to add to the prompt at level 0."""
    bytes: int = 0
    """Memory that the request holds while it waits."""
    pool: str = "default"
    """The workers that can serve it: those with its model."""
    max_level: int = 0
    """The deepest degradation that its tenant allows."""
    may_clamp: bool = False
    """Whether its answer may be cut to what still fits before the deadline."""
    ready: bool = True
    """Whether it could start now; False while its retrieval runs."""
    start_by: float = inf
    """The latest start that its client accepts. `now` asks for a slot at once or a refusal. While its own retrieval
    runs the client's patience does not: it is counted from when the request could start."""
    first_token_by: float = inf
    """When its first token must have come. A stream is felt by it, and its deadline bounds the rest only."""
    class_name: str = ""
    """A class below its tenant's own that it asks to be served in. Any other name leaves it in its tenant's own."""

    # ---- written by the core

    stage: Stage = Stage.NEW
    level: int = 0
    """The degradation it was admitted at."""
    read_tokens: int = 0
    """What its worker is to read: its prompt and what retrieval adds at its level. 0 once that has been read."""
    read_before_tokens: float = 0.0
    """What its pool's workers had still to read of others when it started."""
    granted_tokens: int = 0
    """The longest answer it may give: `max_tokens` after its level and the clamp."""
    charge_tokens: float = 0.0
    """Estimated cost, as charged to its tenant until it is settled."""
    flow: Flow = field(init=False, repr=False)
    """The line that it stands in, from when it is admitted."""
    expires_at: float = 0.0
    """While it waits: when it can no longer make its deadline or its first token, or its client's patience ends."""
    expires_for: str = "deadline"
    """Why, when it comes to that: "deadline", "first_token" or "patience". Of one that was evicted, why it was."""
    predicted_wait_s: float = 0.0
    predicted_as_new: bool = False
    """Whether it was expected to go ahead of those who wait for their next round: such waits err differently."""
    counted_wait_s: float = 0.0
    """The wait that it was tested with at the door, which may be more cautious; 0 in an idle pool."""
    counted_service_s: float = 0.0
    """How long it was thought to run."""
    sequence: int = 0
    """Order of arrival in the scheduler; breaks ties between equal deadlines."""
    cold_start: bool = False
    """Whether it was let in without a guess of its length, and must not be taken out on one."""
    length_quantile: float = 0.5
    """At which quantile of its tenant's lengths it was judged."""
    queued_at: float = 0.0
    ready_at: float = 0.0
    """When its retrieval was done; 0 if it was ready when it came."""
    started_at: float = 0.0
    first_token_at: float = 0.0
    full_s: float = 0.0
    """The estimator's mark at the start: how long the slots had been full by then."""

    @property
    def due_at(self) -> float:
        """What is due first: its first token or its end. Its tenant's line is in this order."""
        return self.deadline if self.deadline <= self.first_token_by else self.first_token_by

    def __repr__(self) -> str:
        sizes = f"{self.prompt_tokens}+{self.context_tokens} tokens, at most {self.max_tokens}"
        return f"<Request {self.id} of {self.tenant}, {self.stage.value}, {sizes}, deadline {self.deadline:g}>"
