"""How large a run is, and the durations that its judgement depends on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loadtests.judging.nonces import nonce, right, tokens

LOAD = 2.0
"""Times the capacity."""
DEADLINE_S = 4.0
GRACE_S = 0.25
"""How far an end may exceed its deadline."""
TTL_S = 0.75
"""How long the lease of a router lives that holds slots of a few workers: `services.core.leases.times.ttl_s`."""
AGAIN_WITHIN_S = TTL_S + 1.0
"""After the end of a fault, slots must be in use again."""
WATCHED_S = 1.25
"""How long they are then looked at, before the next fault."""
SETTLE_S = 5.0
"""Between the last fault of a group and the calm that is judged: debts of the faults are paid."""
WAITING = 8
"""Requests wait if more than these are open and at no worker; fewer may be on their way."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """After `per_group` faults `calm_s` seconds are without any. In the end the store is frozen for `frozen_s`."""

    routers: int = 4
    workers: int = 4
    faults: int = 60
    per_group: int = 12
    warm_s: float = 15.0
    calm_s: float = 20.0
    frozen_s: float = 60.0
    requests: int = 20_000
    seed: int = 1
    slots: int = 8
    step_ms: float = 45.0
    jitter: float = 0.1

    def scaled(self, faults: int) -> Sizes:
        """The same with this many faults, and as many requests for each."""
        return replace(self, faults=faults, requests=max(1, self.requests * faults // self.faults))

    @property
    def all_slots(self) -> int:
        return self.workers * self.slots

    @property
    def service_s(self) -> float:
        """From a request's arrival at a worker to its end: it joins at the next step."""
        return self.step_ms * (ANSWER_TOKENS + 0.5) / 1000

    @property
    def per_s(self) -> float:
        """Offered requests a second."""
        return LOAD * self.all_slots / self.service_s

    @property
    def is_whole(self) -> bool:
        """Whether its figures may be published, and shares and light tenants have targets."""
        if self.routers < FULL.routers:
            return False
        return self.faults >= FULL.faults and self.calm_s >= FULL.calm_s and self.frozen_s >= FULL.frozen_s

    @property
    def takes_s(self) -> float:
        """Estimated seconds."""
        groups = -(-self.faults // self.per_group)
        return START_S + self.warm_s + self.faults * FAULT_S + groups * (SETTLE_S + self.calm_s) + self.frozen_s

    @property
    def limit_s(self) -> float:
        """A run that is not over after so long is given up."""
        return OVERDUE * self.takes_s


ANSWER_TOKENS = len(tokens(right(nonce(1))))
START_S, FAULT_S = 12.0, 4.8
OVERDUE = 3.0
"""Times its estimate: processes start slowly on a machine that does other things."""
FULL = Sizes()
QUICK = Sizes(
    routers=2, workers=2, faults=4, per_group=4, warm_s=4.0, calm_s=4.0, frozen_s=3.0, requests=500
)  # fmt: skip
