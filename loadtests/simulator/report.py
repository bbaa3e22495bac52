"""How a run went: one `PolicyReport` per policy, load and seed. Plain frozen data, ready for JSON.

What counts is a *distinct* request: one that a client wanted answered, however often it asked. Each ends exactly once,
in one field of its `Ledger`. Only those that first arrived in the counting window (after the warm-up, before the
cool-down) are counted; rates are per second of that window. An answer after its deadline is not goodput.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of one quantity; None where there was no sample. Within 1 %."""

    count: int = 0
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the workers can do at most: a closed loop, one client a slot, directly at the workers, on the same mix."""

    requests_per_s: float
    cost_per_s: float
    slots: int
    prompt_weight: float
    """Cost of a prompt token: 1."""
    completion_weight: float
    """Cost of a token of the answer: worker time relative to a prompt token's, at full slots."""
    service_s: float
    """Mean time that a request held its slot."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """How every distinct request ended. The fields add up to `distinct`, or the run would have failed."""

    distinct: int = 0
    attempts: int = 0
    """Offers, retries included."""
    on_time: int = 0
    late: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    """At the door, by outcome."""
    evicted: Mapping[str, int] = field(default_factory=dict)
    """Admitted, then dropped from the queue, by outcome. A deadline that passes in the queue is one of these."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """After using a worker, by outcome."""
    gone_waiting: int = 0
    """The client left before its deadline, while it waited."""
    gone_running: int = 0
    """The client left before its deadline, while a worker answered."""

    @property
    def rejected_total(self) -> int:
        return sum(self.rejected.values())

    @property
    def evicted_total(self) -> int:
        return sum(self.evicted.values())

    @property
    def failed_total(self) -> int:
        return sum(self.failed.values())

    @property
    def ended(self) -> int:
        """Must be `distinct`."""
        told = self.rejected_total + self.evicted_total + self.failed_total
        return self.on_time + self.late + told + self.gone_waiting + self.gone_running


@dataclass(frozen=True, slots=True)
class TenantReport:
    """One tenant; or one group of them, where a scenario has more than 200 tenants (`tenants` says how many)."""

    name: str
    tenant_class: str
    weight: float
    tenants: int
    ledger: Ledger
    offered_per_s: float
    goodput_per_s: float
    goodput_cost_per_s: float
    served_cost_share: float
    """Of all cost that was served to anyone, on time or late."""
    on_time_share: float | None
    """Of its distinct requests."""
    latency_s: Quantiles
    """Of answers, late ones included, from the attempt's arrival to its last token."""
    first_token_s: Quantiles
    wait_s: Quantiles
    """From the attempt's arrival to its start on a worker."""


@dataclass(frozen=True, slots=True)
class Work:
    """Where the workers' time went, in slot-seconds within the counting window."""

    available_s: float
    """Slots that were up, times seconds."""
    busy_s: float
    useful_s: float
    """For answers that were on time."""

    @property
    def utilisation(self) -> float:
        return self.busy_s / self.available_s if self.available_s else 0.0

    @property
    def wasted_share(self) -> float:
        """Of busy time: for answers that nobody got, or got late."""
        return 1.0 - self.useful_s / self.busy_s if self.busy_s else 0.0


@dataclass(frozen=True, slots=True)
class Hints:
    """Retry hints, and what became of those who obeyed."""

    given: int = 0
    obeyed: int = 0
    """Attempts that came back when their hint said."""
    first_obeyed: int = 0
    """Of these, the first return of each distinct request."""
    first_obeyed_admitted: int = 0

    @property
    def first_admitted_share(self) -> float | None:
        return self.first_obeyed_admitted / self.first_obeyed if self.first_obeyed else None


@dataclass(frozen=True, slots=True)
class Fairness:
    """Between tenants, in cost divided by weight."""

    gap_cost: float | None
    """The largest difference of service over any interval in which two tenants were both backlogged."""
    gap_pair: tuple[str, str] | None
    watched: int
    """How many tenants the gap was watched for: the first 16 of the scenario at most."""
    largest_cost: float
    """Of one request that was served."""
    jain_least: float | None
    """The smallest Jain index of any 60 s, over service relative to the max-min fair share of what was served."""
    jain_mean: float | None


@dataclass(frozen=True, slots=True)
class Quality:
    """What answers on time were worth."""

    weighted_on_time: float
    """Each by the weight of its level."""
    token_weighted_on_time: float
    """Each by the share of the tokens that it would have had, uncut, that it got."""
    by_level: Mapping[int, int]
    """Answers on time by level."""
    clamped: int
    """Answers on time that ended before their natural length."""
    level_changes: int
    level_changes_per_min: float


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares of the actual waits that were at most the predicted quantile: q should come out as q."""

    count: int
    shares: Mapping[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """One value a bucket, from second 0 to the end; `per_tenant_served_cost` for the first 16 tenants."""

    bucket_s: float
    offered: tuple[int, ...]
    """Attempts, retries included."""
    on_time: tuple[int, ...]
    """By the time of the answer."""
    late: tuple[int, ...]
    refused: tuple[int, ...]
    queue_depth: tuple[int, ...]
    """At the end of the bucket."""
    running: tuple[int, ...]
    level: tuple[int, ...]
    """The deepest level of any request that was admitted in the bucket."""
    latency_p95_s: tuple[float | None, ...]
    """Of the answers in the bucket."""
    per_tenant_served_cost: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """One policy at one load with one seed."""

    title: str
    policy: str
    """Its label in the scenario."""
    seed: int
    load: float | None
    """Of the sweep; None: as the scenario says."""
    offered_load: float | None
    """Multiple of capacity that was asked for in the counting window, phases included; None with closed loops."""
    window_s: float
    capacity: Capacity
    ledger: Ledger
    tenants: tuple[TenantReport, ...]
    goodput_per_s: float
    goodput_cost_per_s: float
    work: Work
    latency_s: Quantiles
    first_token_s: Quantiles
    wait_s: Quantiles
    latency_to_deadline: Quantiles
    """Latency of answers divided by what the deadline allowed."""
    admitted: int
    """Attempts."""
    dropped_after_admission_share: float | None
    """Of admitted attempts: evicted before they started."""
    missed_after_worker_share: float | None
    """Of admitted attempts: late, or failed, after a worker had begun."""
    answers_after_deadline: int
    dispatches: int
    hints: Hints
    fairness: Fairness
    quality: Quality
    coverage: Coverage | None
    series: Series
    simulated_requests: int
    """Attempts in the whole run, outside the window too."""
    real_s: float
    """Seconds the run took on this machine; the only field that another run with the same seed does not repeat."""

    @property
    def goodput_to_capacity(self) -> float:
        """Requests on time per second, over capacity."""
        return self.goodput_per_s / self.capacity.requests_per_s

    @property
    def goodput_cost_to_capacity(self) -> float:
        """Cost served on time per second, over capacity."""
        return self.goodput_cost_per_s / self.capacity.cost_per_s

    @property
    def dispatches_per_distinct(self) -> float | None:
        return self.dispatches / self.ledger.distinct if self.ledger.distinct else None

    @property
    def simulated_per_real_s(self) -> float:
        return self.simulated_requests / self.real_s if self.real_s else 0.0

    def to_json(self) -> dict[str, Any]:
        """All of it, with what follows from it, in types that JSON has."""
        plain: dict[str, Any] = _plain(asdict(self))
        plain["goodput_to_capacity"] = self.goodput_to_capacity
        plain["goodput_cost_to_capacity"] = self.goodput_cost_to_capacity
        plain["dispatches_per_distinct"] = self.dispatches_per_distinct
        plain["work"] |= {"utilisation": self.work.utilisation, "wasted_share": self.work.wasted_share}
        plain["hints"]["first_admitted_share"] = self.hints.first_admitted_share
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
