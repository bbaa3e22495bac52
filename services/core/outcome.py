"""How a request ends: the `outcome` label of every metric, and the key of the refusal table.

`REJECTED` had no place in a queue, `EVICTED` had one and lost it, `FAILED` used a worker in vain. Their costs differ,
so they are kept apart, as in llm-d's router.
"""

from __future__ import annotations

from enum import Enum, StrEnum


class Ending(Enum):
    """What a request had used when it ended."""

    SERVED = "served"
    REJECTED = "rejected"
    EVICTED = "evicted"
    FAILED = "failed"


class Outcome(StrEnum):
    """All ways in which a request ends. The value is the metric label and, for rejections, the `error.code`."""

    SERVED = "served"
    TENANT_QUEUE_FULL = "tenant_queue_full"
    RATE_LIMITED = "rate_limit_exceeded"
    YIELD = "yield"
    DEADLINE_INFEASIBLE = "deadline_infeasible"
    DEADLINE_EXPIRED = "deadline_expired"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    NO_CAPACITY = "no_capacity"
    DRAINING = "draining"
    UPSTREAM_FAILED = "upstream_failed"
    POISON = "poison_request"
    MODEL_NOT_FOUND = "model_not_found"
    BAD_INPUT = "invalid_request"
    CLIENT_GONE = "client_gone"
    INTERNAL = "internal_error"

    @property
    def ending(self) -> Ending:
        """What the request had used: nothing, unless the outcome says otherwise."""
        return _ENDINGS.get(self, Ending.REJECTED)


_ENDINGS = {
    Outcome.SERVED: Ending.SERVED,
    Outcome.DEADLINE_EXPIRED: Ending.EVICTED,
    Outcome.DEADLINE_EXCEEDED: Ending.FAILED,
    Outcome.UPSTREAM_FAILED: Ending.FAILED,
    Outcome.POISON: Ending.FAILED,
    Outcome.CLIENT_GONE: Ending.FAILED,
    Outcome.INTERNAL: Ending.FAILED,
}
