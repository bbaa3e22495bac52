"""Adapter to the router's scheduler, on the simulator's clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from loadtests.scenarios.model import Scenario, TenantGroup
from loadtests.simulator.job import Job
from loadtests.simulator.policy import Policy, Refusal
from services.cli.errors import LabError
from services.core.account import ClassSpec, QueueBounds, TenantSpec
from services.core.admissioncheck import Rejection
from services.core.calibration import PUBLISHED
from services.core.choices import SchedulerSettings
from services.core.cost import Weights
from services.core.estimator import Estimator
from services.core.outcome import Outcome
from services.core.policies import Policies
from services.core.scheduler import Scheduler

POOL = "default"
MAX_CONFIGURED = 100
"""A larger group of default weight and class is not configured: its tenants are unknown, as at a real router."""


class WeirPolicy(Policy):
    """`services.core.scheduler.Scheduler` as a policy."""

    quantiles: Sequence[float] = PUBLISHED

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.cancels = scheduler.settings.policies.cancellation
        self.context_shares: Sequence[float] = tuple(
            level.context_share if level.retrieval else 0.0 for level in scheduler.settings.ladder
        )

    @property
    def level_changes(self) -> int:
        learned = self.scheduler.pools.values()
        return sum(of_class.controller.changes for of_pool in learned for of_class in of_pool.classes.values())

    def offer(self, now: float, job: Job) -> Refusal | None:
        if job.open_ended:
            job.max_tokens = self.scheduler.likely_tokens(job.tenant, job.pool)
        answer = self.scheduler.admit(now, job)
        if isinstance(answer, Rejection):
            return answer
        job.forecast = self.scheduler.forecast(job)
        return None

    def predicted(self, job: Job) -> Sequence[float]:
        return job.forecast

    def next(self, now: float) -> tuple[Job | None, Sequence[Job]]:
        return self.scheduler.next(now)  # type: ignore[return-value]  # it returns the jobs it was given

    def expire(self, now: float) -> Sequence[Job]:
        return self.scheduler.expire(now)  # type: ignore[return-value]

    def wakes_at(self) -> float:
        return self.scheduler.wakes_at()

    def leave(self, now: float, job: Job) -> None:
        if self.cancels:
            self.scheduler.leave(now, job)

    def first_token(self, now: float, job: Job) -> None:
        self.scheduler.first_token(now, job)

    def finish(self, now: float, job: Job, outcome: Outcome, prompt_tokens: int, completion_tokens: int) -> None:
        self.scheduler.finish(now, job, outcome, prompt_tokens, completion_tokens)

    def capacity(self, now: float, slots: int) -> None:
        self.scheduler.capacity(now, slots)

    def __repr__(self) -> str:
        return repr(self.scheduler)


def build(
    scenario: Scenario,
    overrides: Mapping[str, Any],
    weights: Weights,
    announced: Estimator,
    random: Callable[[], float],
) -> WeirPolicy:
    """Weir with the scenario's classes, tenants and announced estimates. Raises LabError for a wrong setting."""
    given = dict(overrides)
    tenant_bounds = _bounds("tenant_bounds", given.pop("tenant_bounds", 64))
    first = scenario.classes[0].name
    classes = tuple(ClassSpec(each.name, each.weight, each.floor) for each in scenario.classes)
    chosen: dict[str, Any] = {
        "classes": classes,
        "strict": True,
        "weights": weights,
        "unconfigured": TenantSpec("", tenant_bounds, class_name=first),
    }
    scheduler = Scheduler(_settings(chosen | given), random)
    for group in scenario.tenants:
        for name in _configured(group, first):
            scheduler.configure(TenantSpec(name, tenant_bounds, group.weight, group.tenant_class))
    scheduler.announce(POOL, announced)
    return WeirPolicy(scheduler)


def _configured(group: TenantGroup, first_class: str) -> Sequence[str]:
    is_unconfigured = group.weight == 1.0 and group.tenant_class == first_class
    if is_unconfigured and group.count > MAX_CONFIGURED:
        return ()
    return [group.name] if group.count == 1 else [f"{group.name}-{number}" for number in range(group.count)]


def _settings(given: Mapping[str, Any]) -> SchedulerSettings:
    known = {each.name for each in fields(SchedulerSettings)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise LabError(
            f"Weir has no setting {', '.join(unknown)}.", notes=(f"Its settings: {', '.join(sorted(known))}",)
        )
    values = dict(given)
    if "bounds" in values:
        values["bounds"] = _bounds("bounds", values["bounds"])
    try:
        if "policies" in values:
            values["policies"] = Policies.named(str(values["policies"]))
        return SchedulerSettings(**values)
    except (TypeError, ValueError) as error:
        raise LabError(f"A setting of Weir is wrong: {error}.") from None


def _bounds(name: str, given: Any) -> QueueBounds:
    try:
        return QueueBounds(**given) if isinstance(given, Mapping) else QueueBounds(given)
    except (TypeError, ValueError) as error:
        raise LabError(f"{name} of Weir is wrong: {error}.") from None
