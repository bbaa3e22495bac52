"""Counters and histograms of a run; their size does not grow with the number of requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from loadtests.simulator.histogram import Histogram
from loadtests.simulator.job import Job
from loadtests.simulator.report import Hints, Ledger, Quality, Series, Work
from services.core.outcome import Outcome


class LedgerError(AssertionError):
    """A request ended twice or never: a bug in the simulator or the policy."""


@dataclass(slots=True, eq=False, repr=False)
class Account:
    """The counts of one tenant. See `report.Ledger`."""

    distinct: int = 0
    attempts: int = 0
    admitted: int = 0
    dispatches: int = 0
    on_time: int = 0
    late: int = 0
    dropped: int = 0
    missed: int = 0
    rejected: dict[Outcome, int] = field(default_factory=dict)
    evicted: dict[Outcome, int] = field(default_factory=dict)
    failed: dict[Outcome, int] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=lambda: {"waiting": 0, "running": 0})
    hints: int = 0
    obeyed: int = 0
    first_obeyed: int = 0
    first_obeyed_admitted: int = 0
    by_level: dict[int, int] = field(default_factory=dict)
    clamped: int = 0
    token_weighted: float = 0.0
    served_cost: float = 0.0
    on_time_cost: float = 0.0
    latency_s: Histogram = field(default_factory=Histogram)
    latency_to_deadline: Histogram = field(default_factory=Histogram)
    first_token_s: Histogram = field(default_factory=Histogram)
    wait_s: Histogram = field(default_factory=Histogram)

    def came_back(self, job: Job, *, admitted: bool) -> None:
        """A client obeyed a retry hint."""
        self.obeyed += 1
        if job.obeyed == 1:
            self.first_obeyed += 1
            self.first_obeyed_admitted += admitted

    def answered(self, now: float, job: Job, cost: float) -> None:
        """A client has its whole answer."""
        latency_s = now - job.arrived_at
        self.latency_s.add(latency_s)
        self.latency_to_deadline.add(latency_s / (job.deadline - job.arrived_at))
        self.served_cost += cost
        if now > job.deadline:
            self.late += 1
            self.missed += 1
            return
        self.on_time += 1
        self.on_time_cost += cost
        self.by_level[job.level] = self.by_level.get(job.level, 0) + 1
        self.clamped += job.worker_tokens < job.wanted_tokens
        self.token_weighted += job.worker_tokens / job.wanted_tokens

    def ledger(self) -> Ledger:
        kinds = (self.rejected, self.evicted, self.failed)
        rejected, evicted, failed = ({outcome.value: count for outcome, count in each.items()} for each in kinds)
        return Ledger(
            self.distinct,
            self.attempts,
            self.on_time,
            self.late,
            rejected,
            evicted,
            failed,
            self.gone["waiting"],
            self.gone["running"],
        )

    def hint_counts(self) -> Hints:
        return Hints(self.hints, self.obeyed, self.first_obeyed, self.first_obeyed_admitted)

    def quality(self, weights: tuple[float, ...], level_changes: int, minutes: float) -> Quality:
        weighted = sum(weights[min(level, len(weights) - 1)] * count for level, count in self.by_level.items())
        by_level = dict(sorted(self.by_level.items()))
        per_min = level_changes / minutes
        return Quality(weighted, self.token_weighted, by_level, self.clamped, level_changes, per_min)

    def merge(self, other: Account) -> None:
        for name in (each.name for each in fields(self)):
            mine, its = getattr(self, name), getattr(other, name)
            if isinstance(mine, Histogram):
                mine.merge(its)
            elif isinstance(mine, dict):
                for key, count in its.items():
                    mine[key] = mine.get(key, 0) + count
            else:
                setattr(self, name, mine + its)

    def __repr__(self) -> str:
        return f"<Account of {self.distinct} requests, {self.on_time} on time>"


def merged(accounts: Iterable[Account]) -> Account:
    total = Account()
    for account in accounts:
        total.merge(account)
    return total


class Bucket(NamedTuple):
    """One bucket. See `Series`."""

    offered: int
    on_time: int
    late: int
    refused: int
    queue_depth: int
    running: int
    level: int
    latency_p95_s: float | None


class Timeline:
    """Counts of the current bucket, and the past ones."""

    __slots__ = ("bucket_s", "buckets", "late", "latency_s", "level", "offered", "on_time", "refused", "served")

    def __init__(self, bucket_s: float) -> None:
        self.bucket_s = bucket_s
        self.buckets: list[Bucket] = []
        self.served: dict[str, list[float]] = {}
        self.offered = self.on_time = self.late = self.refused = self.level = 0
        self.latency_s = Histogram()

    def watch(self, tenants: Iterable[str]) -> None:
        """Keep the served cost of these tenants."""
        self.served = {name: [0.0] for name in tenants}

    def serve(self, tenant: str, cost: float) -> None:
        costs = self.served.get(tenant)
        if costs is not None:
            costs[-1] += cost

    def answer(self, latency_s: float, *, on_time: bool) -> None:
        self.latency_s.add(latency_s)
        self.on_time += on_time
        self.late += not on_time

    def close_bucket(self, queue_depth: int, running: int) -> None:
        counts = self.offered, self.on_time, self.late, self.refused, queue_depth, running, self.level
        self.buckets.append(Bucket(*counts, self.latency_s.quantile(0.95)))
        self.offered = self.on_time = self.late = self.refused = self.level = 0
        self.latency_s = Histogram()
        for costs in self.served.values():
            costs.append(0.0)

    @property
    def offered_total(self) -> int:
        return sum((bucket.offered for bucket in self.buckets), self.offered)

    def series(self) -> Series:
        buckets = self.buckets
        return Series(
            self.bucket_s,
            offered=tuple(bucket.offered for bucket in buckets),
            on_time=tuple(bucket.on_time for bucket in buckets),
            late=tuple(bucket.late for bucket in buckets),
            refused=tuple(bucket.refused for bucket in buckets),
            queue_depth=tuple(bucket.queue_depth for bucket in buckets),
            running=tuple(bucket.running for bucket in buckets),
            level=tuple(bucket.level for bucket in buckets),
            latency_p95_s=tuple(bucket.latency_p95_s for bucket in buckets),
            per_tenant_served_cost={name: tuple(costs[: len(buckets)]) for name, costs in self.served.items()},
        )


class WorkTime:
    """Slot-seconds within the counting window."""

    __slots__ = ("_available_s", "_busy_s", "_from_s", "_seen_at", "_slots", "_until_s", "_useful_s")

    def __init__(self, from_s: float, until_s: float) -> None:
        self._from_s, self._until_s = from_s, until_s
        self._available_s = self._busy_s = self._useful_s = 0.0
        self._slots = 0
        self._seen_at = 0.0

    def slots(self, now: float, slots: int) -> None:
        """The number of slots that are up changed."""
        self._available_s += self._slots * self._within(self._seen_at, now)
        self._slots, self._seen_at = slots, now

    def used(self, job: Job, *, useful: bool) -> None:
        """A job left its worker."""
        if job.ran_until <= job.ran_from:
            return
        inside = self._within(job.ran_from, job.ran_until) / (job.ran_until - job.ran_from)
        self._busy_s += job.used_s * inside
        self._useful_s += job.used_s * inside * useful

    def _within(self, from_s: float, until_s: float) -> float:
        return max(0.0, min(until_s, self._until_s) - max(from_s, self._from_s))

    def total(self, now: float) -> Work:
        self.slots(now, self._slots)
        return Work(self._available_s, self._busy_s, self._useful_s)


def check(accounts: Mapping[str, Account], live: int) -> None:
    """Raises LedgerError unless every distinct request ended exactly once."""
    if live:
        raise LedgerError(f"{live} requests never ended")
    for name, account in accounts.items():
        ledger = account.ledger()
        if ledger.ended != ledger.distinct:
            raise LedgerError(f"{name}: {ledger.distinct} requests, but {ledger.ended} ends: {ledger}")
