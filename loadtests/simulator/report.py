"""The results of a run: a `PolicyReport` per policy, load and seed, as frozen data for JSON.

A *distinct* request is a request with all its retries. Each ends in exactly one field of the `Ledger`. Only requests
that first arrived in the counting window (after warm-up, before cool-down) count; rates are per second of that window.
An answer after its deadline is not goodput.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of one quantity, within 1 %; None without samples."""

    count: int = 0
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """The workers' capacity for the scenario's mix, measured in a closed loop (capacity.py)."""

    requests_per_s: float
    cost_per_s: float
    slots: int
    prompt_weight: float
    """Cost per prompt token."""
    completion_weight: float
    """Cost per completion token: worker time relative to a prompt token's, with all slots busy."""
    service_s: float
    """Mean seconds that a request holds a slot."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """How the distinct requests ended. The ends add up to `distinct`; otherwise the run raises LedgerError."""

    distinct: int = 0
    attempts: int = 0
    """Retries included."""
    on_time: int = 0
    late: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    """At admission, by outcome."""
    evicted: Mapping[str, int] = field(default_factory=dict)
    """Dropped from the queue, expired ones included, by outcome."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """After a start on a worker, by outcome."""
    gone_waiting: int = 0
    """The client left the queue before the deadline."""
    gone_running: int = 0
    """The client left before the deadline, after the start on a worker."""

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
        """Equals `distinct`."""
        by_outcome = self.rejected_total + self.evicted_total + self.failed_total
        return self.on_time + self.late + by_outcome + self.gone_waiting + self.gone_running


@dataclass(frozen=True, slots=True)
class TenantReport:
    """One tenant; in scenarios with more than 200 tenants, a group of `tenants` tenants."""

    name: str
    tenant_class: str
    weight: float
    tenants: int
    ledger: Ledger
    offered_per_s: float
    goodput_per_s: float
    goodput_cost_per_s: float
    served_cost_share: float
    """Of the cost served to all tenants, on time or late."""
    on_time_share: float | None
    latency_s: Quantiles
    """From the attempt's arrival to the last token, late answers included."""
    first_token_s: Quantiles
    wait_s: Quantiles
    """From the attempt's arrival to its start on a worker."""


@dataclass(frozen=True, slots=True)
class Work:
    """Worker time in slot-seconds, within the counting window."""

    available_s: float
    """Slots of workers that are up, times seconds."""
    busy_s: float
    useful_s: float
    """For answers that were on time."""

    @property
    def utilisation(self) -> float:
        return self.busy_s / self.available_s if self.available_s else 0.0

    @property
    def wasted_share(self) -> float:
        """Share of busy time for answers that were late or reached no client."""
        return 1.0 - self.useful_s / self.busy_s if self.busy_s else 0.0


@dataclass(frozen=True, slots=True)
class Hints:
    """Retry hints, and the attempts that obeyed them."""

    given: int = 0
    obeyed: int = 0
    """Attempts at the hinted time."""
    first_obeyed: int = 0
    """Of these, the first of each distinct request."""
    first_obeyed_admitted: int = 0

    @property
    def first_admitted_share(self) -> float | None:
        return self.first_obeyed_admitted / self.first_obeyed if self.first_obeyed else None


@dataclass(frozen=True, slots=True)
class Fairness:
    """Fairness between tenants, in cost divided by weight. See fairness.py."""

    gap_cost: float | None
    """The largest gap between two backlogged tenants."""
    gap_pair: tuple[str, str] | None
    watched: int
    """Number of tenants in the gap: the first 16 at most."""
    largest_cost: float
    """The largest cost of one served request, not divided by weight."""
    jain_min: float | None
    """The smallest Jain index of a window of 60 s."""
    jain_mean: float | None


@dataclass(frozen=True, slots=True)
class Quality:
    """The value of answers on time."""

    weighted_on_time: float
    """Sum of the weights of their levels."""
    token_weighted_on_time: float
    """Sum of their lengths, each over its length without degradation."""
    by_level: Mapping[int, int]
    """Answers on time by level."""
    clamped: int
    """Answers on time that degradation made shorter."""
    level_changes: int
    level_changes_per_min: float


@dataclass(frozen=True, slots=True)
class Coverage:
    """Share of the waits within each predicted quantile q; ideal is q."""

    count: int
    shares: Mapping[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """A value per bucket from second 0 on; `per_tenant_served_cost` for the first 16 tenants."""

    bucket_s: float
    offered: tuple[int, ...]
    """Attempts."""
    on_time: tuple[int, ...]
    """In the bucket of the answer."""
    late: tuple[int, ...]
    refused: tuple[int, ...]
    queue_depth: tuple[int, ...]
    """At the end of the bucket."""
    running: tuple[int, ...]
    level: tuple[int, ...]
    """The deepest level of an admitted request."""
    latency_p95_s: tuple[float | None, ...]
    per_tenant_served_cost: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class RoutersReport:
    """What concerns several routers only."""

    routers: int
    over_slots: int
    """Requests that reached a worker without a slot for them."""
    idle_share: float
    """Slots that were idle while a request waited at any router, of all slots."""
    messages_a_request: Mapping[str, float]
    """For each request that was sent to a worker: asks and grants that were sent alone, and exchanges."""
    gap_bound_cost: float | None
    """The bound on `fairness.gap_cost` for its pair."""


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """One policy at one load with one seed."""

    title: str
    policy: str
    """Label in the scenario."""
    seed: int
    load: float | None
    """Of the sweep; None without a sweep."""
    offered_load: float | None
    """Distinct requests in the counting window, as a multiple of capacity; None with closed loops."""
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
    """Latency of answers over their deadline's length."""
    admitted: int
    """Attempts."""
    dropped_after_admission_share: float | None
    """Of admitted attempts: dropped before the start."""
    missed_after_worker_share: float | None
    """Of admitted attempts: late or failed after the start."""
    answers_after_deadline: int
    dispatches: int
    hints: Hints
    fairness: Fairness
    quality: Quality
    coverage: Coverage | None
    series: Series
    simulated_requests: int
    """Attempts in the whole run."""
    real_s: float
    """Wall time; the only field that differs between runs with the same seed."""
    routers: RoutersReport | None = None
    """None with one router."""

    @property
    def goodput_to_capacity(self) -> float:
        return self.goodput_per_s / self.capacity.requests_per_s

    @property
    def goodput_cost_to_capacity(self) -> float:
        return self.goodput_cost_per_s / self.capacity.cost_per_s

    @property
    def dispatches_per_distinct(self) -> float | None:
        return self.dispatches / self.ledger.distinct if self.ledger.distinct else None

    @property
    def simulated_per_real_s(self) -> float:
        return self.simulated_requests / self.real_s if self.real_s else 0.0

    def to_json(self) -> dict[str, Any]:
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
