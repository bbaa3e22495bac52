"""A tenant's account: its configuration, its bounds, what it has queued and running, and its charges.

Queues are bounded per tenant and in all, in three units: requests bound the bookkeeping, cost bounds the wait, bytes
bound the memory. Only `QueueUsage` counts them, so a request is in all counts or in none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import TYPE_CHECKING

from services.core.request import Request

if TYPE_CHECKING:
    from services.core.pool import Flow


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Upper bounds of a queue: requests, their cost in token-equivalents, their size in bytes."""

    requests: int
    cost_tokens: float = inf
    bytes: float = inf

    def __post_init__(self) -> None:
        if self.requests < 1 or not self.cost_tokens > 0 or not self.bytes > 0:
            raise ValueError(f"bounds must leave room for one request, got {self}")


@dataclass(frozen=True, slots=True)
class ClassSpec:
    """A class of tenants: its weight among classes, and its minimum share (`floor`, from 0 to below 1)."""

    name: str
    weight: float = 1.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.weight < inf or not 0 <= self.floor < 1:
            raise ValueError(f"class {self.name}: weight must be above 0, floor in [0, 1), got {self}")


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """A tenant's configuration."""

    id: str
    bounds: QueueBounds
    weight: float = 1.0
    class_name: str = "default"

    def __post_init__(self) -> None:
        if not 0 < self.weight < inf:
            raise ValueError(f"tenant {self.id}: weight must be above 0 and finite, got {self.weight}")


class QueueLimit(Enum):
    """The bound that a request would exceed. The value is the reason of the rejection."""

    TENANT_REQUESTS = "tenant_requests"
    TENANT_COST = "tenant_cost"
    TENANT_BYTES = "tenant_bytes"
    REQUESTS = "platform_requests"
    COST = "platform_cost"
    BYTES = "platform_bytes"

    @property
    def of_tenant(self) -> bool:
        """Whether it is a bound of the tenant, not of the platform."""
        return self in TENANT_LIMITS


class QueueUsage:
    """What is queued, and its bounds."""

    __slots__ = ("bounds", "bytes", "cost_tokens", "requests")

    def __init__(self, bounds: QueueBounds) -> None:
        self.bounds = bounds
        self.requests = 0
        self.cost_tokens = 0.0
        self.bytes = 0

    def limit_exceeded_by(self, request: Request) -> int | None:
        """The bound that one more request would exceed: 0 requests, 1 cost, 2 bytes. None if it fits."""
        bounds = self.bounds
        if self.requests >= bounds.requests:
            return 0
        if self.cost_tokens + request.charge_tokens > bounds.cost_tokens:
            return 1
        return 2 if self.bytes + request.bytes > bounds.bytes else None

    def never_fits(self, request: Request) -> bool:
        """Whether the request would exceed a bound even in an empty queue."""
        return request.charge_tokens > self.bounds.cost_tokens or request.bytes > self.bounds.bytes

    def take(self, request: Request) -> None:
        """Add a queued request to the counts."""
        self.requests += 1
        self.bytes += request.bytes
        self.cost_tokens += request.charge_tokens

    def give_back(self, request: Request) -> None:
        """Remove a request from the counts."""
        left = self.requests = self.requests - 1
        self.bytes -= request.bytes
        if left:
            assert left > 0, f"{request!r} was counted out and not in: {self!r}"
            assert self.bytes >= 0, f"{request!r} took more bytes along than it brought: {self!r}"
            self.cost_tokens -= request.charge_tokens
        else:
            assert not self.bytes, f"nothing waits, and {self!r} is left of {request!r}"
            self.cost_tokens = 0.0  # sums of floats drift

    def __repr__(self) -> str:
        return (
            f"<QueueUsage {self.requests} requests, {self.cost_tokens:g} tokens, {self.bytes} bytes of {self.bounds}>"
        )


TENANT_LIMITS = (QueueLimit.TENANT_REQUESTS, QueueLimit.TENANT_COST, QueueLimit.TENANT_BYTES)
PLATFORM_LIMITS = (QueueLimit.REQUESTS, QueueLimit.COST, QueueLimit.BYTES)


class TenantAccount:
    """A tenant's weight, class, bounds, queued and running requests, and queues."""

    __slots__ = ("class_name", "configured", "flows", "id", "others", "running", "usage", "weight")

    def __init__(self, spec: TenantSpec, configured: bool) -> None:
        self.id = spec.id
        self.weight = spec.weight
        self.class_name = spec.class_name
        self.configured = configured
        self.usage = QueueUsage(spec.bounds)
        self.running = 0
        self.flows: dict[str, Flow] = {}
        """Its queues in its own class, by pool."""
        self.others: dict[tuple[str, str], Flow] = {}
        """Its queues in other classes, by pool and class: lower ones that it asked for, and former ones."""

    def change(self, spec: TenantSpec) -> None:
        """Set weight, class and bounds. Queued requests keep their queue."""
        if spec.class_name != self.class_name:
            self.others |= {(pool, self.class_name): flow for pool, flow in self.flows.items()}
            again = [key for key in self.others if key[1] == spec.class_name]
            self.flows = {key[0]: self.others.pop(key) for key in again}
        self.weight, self.class_name, self.usage.bounds = spec.weight, spec.class_name, spec.bounds

    def all_flows(self) -> Iterator[Flow]:
        """All queues of the tenant."""
        yield from self.flows.values()
        yield from self.others.values()

    def flows_in(self, pool: str) -> Iterator[Flow]:
        """The tenant's queues in one pool."""
        if pool in self.flows:
            yield self.flows[pool]
        yield from (flow for (name, _), flow in self.others.items() if name == pool)

    @property
    def charged(self) -> float:
        """All charges in token-equivalents, less refunds, over its queues."""
        return sum([flow.charged for flow in self.all_flows()], 0.0)

    @property
    def busy(self) -> bool:
        """Whether the tenant has a queued or running request."""
        return self.running > 0 or self.usage.requests > 0

    def __repr__(self) -> str:
        waits, runs = self.usage.requests, self.running
        flows = list(self.flows.values())
        return f"<TenantAccount {self.id}: {waits} wait, {runs} run, charged {self.charged:g}, {flows}>"
