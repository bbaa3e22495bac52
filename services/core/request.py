"""What the core knows of a request: sizes, times, limits set by the client, and its state.

The caller sets the fields above the separator; the core writes those below it while the request is queued and runs.
All mechanisms share the one object, so a decision copies nothing. All times are seconds on the clock of `now`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.core.pool import Flow


class Stage(Enum):
    """The state of a request. It only moves to the right: new, waiting, running, ended (or straight to ended)."""

    NEW = "new"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


UNLIMITED = 2**31
"""The granted length of an answer that ends where its model ends it."""

NEW, WAITING, RUNNING, ENDED = Stage.NEW, Stage.WAITING, Stage.RUNNING, Stage.ENDED
"""Short names: the lookup of an enum's member is slow, and every step needs stages."""


@dataclass(slots=True, eq=False)
class Request:
    """One request for one answer, compared by identity."""

    id: str | int
    tenant: str
    arrived_at: float
    deadline: float
    prompt_tokens: int
    """Estimated at admission, counted before it starts. Without `context_tokens`."""
    max_tokens: int
    """The longest answer that the client asks for; of an open-ended request the longest that is likely."""
    context_tokens: int = 0
    """Tokens that retrieval is expected to add to the prompt at level 0."""
    bytes: int = 0
    """Memory that the request holds while it is queued."""
    pool: str = "default"
    """The workers that can serve it: those of its model."""
    max_level: int = 0
    """The deepest degradation level that its tenant allows."""
    may_clamp: bool = False
    """Whether its answer may be cut to what fits before the deadline."""
    ready: bool = True
    """Whether it can start now; False while its retrieval runs."""
    start_by: float = inf
    """The latest start that its client accepts; `now` asks for a free slot or a rejection. The time of its own
    retrieval does not count: the limit is measured from when the request is ready."""
    first_token_by: float = inf
    """The deadline of its first token. For a stream this is what the user sees."""
    class_name: str = ""
    """A class below its tenant's own to be served in. Any other name leaves it in its tenant's own."""
    open_ended: bool = False
    """Whether the client sets no limit of the answer."""

    # ---- written by the core

    stage: Stage = Stage.NEW
    level: int = 0
    """The degradation level that it was admitted at."""
    read_tokens: int = 0
    """Tokens that its worker is to prefill: the prompt and the context at its level. 0 once prefilled."""
    read_before_tokens: float = 0.0
    """Unread tokens of others at the workers of its pool when it started."""
    granted_tokens: int = 0
    """The limit of its answer: `max_tokens` after its level and the clamp; `UNLIMITED` for none."""
    charge_tokens: float = 0.0
    """Its charge in token-equivalents: estimated until it is settled."""
    deferred_tokens: float = 0.0
    """The part of its charge that its tenant is charged at its end, not at its start: an answer of unknown length."""
    flow: Flow = field(init=False, repr=False)
    """The queue that it was put into. Set when it is admitted."""
    expires_at: float = 0.0
    """While it is queued: the latest start for its deadline, its first token or its client's limit on the wait."""
    expires_for: str = "deadline"
    """What `expires_at` stands for, and why it was evicted: "deadline", "first_token" or "patience"."""
    predicted_wait_s: float = 0.0
    predicted_as_new: bool = False
    """Whether it was predicted to go ahead of the round: the errors of such waits are kept apart."""
    counted_wait_s: float = 0.0
    """The wait in seconds that admission counted with, which may be more cautious; 0 in an idle pool."""
    counted_service_s: float = 0.0
    """The service time in seconds that admission counted with."""
    sequence: int = 0
    """Order of arrival in the scheduler; breaks ties between equal deadlines."""
    cold_start: bool = False
    """Whether it was admitted without a length estimate, and must not be evicted by one."""
    found_slot: bool = False
    """Whether it found a free slot: no estimate may reject or cut it. False again once it has waited for a slot."""
    length_quantile: float = 0.5
    """The quantile of its tenant's lengths that it was judged by."""
    queued_at: float = 0.0
    ready_at: float = 0.0
    """When its retrieval was done; 0 if it arrived ready."""
    started_at: float = 0.0
    slot_at: float = 0.0
    """When it has its slot: at its start, or when the slot was expected to be free if it was sent ahead."""
    ends_at: float = 0.0
    """When its slot is expected to be free again, by the estimate at its start."""
    first_token_at: float = 0.0
    full_s: float = 0.0
    """The estimator's count, at the start, of the seconds in which the slots were full."""

    def sent_ahead(self, slot_at: float) -> None:
        """It was sent to its worker before its slot is free: at about this time."""
        if slot_at > self.slot_at:
            self.ends_at += slot_at - self.slot_at
            self.slot_at = slot_at

    @property
    def planned_tokens(self) -> int:
        """The length of the answer that time and memory are planned for, once it has been granted one."""
        return self.granted_tokens if self.granted_tokens < self.max_tokens else self.max_tokens

    @property
    def due_at(self) -> float:
        """The earlier of first token and deadline. Its tenant's queue is in this order."""
        return self.deadline if self.deadline <= self.first_token_by else self.first_token_by

    def __repr__(self) -> str:
        sizes = f"{self.prompt_tokens}+{self.context_tokens} tokens, at most {self.max_tokens}"
        return f"<Request {self.id} of {self.tenant}, {self.stage.value}, {sizes}, deadline {self.deadline:g}>"
