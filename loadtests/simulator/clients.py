"""Tenants while a scenario runs, and what their clients do when they do not get an answer."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from loadtests.scenarios.distributions import Sampler
from loadtests.scenarios.model import Retries, TenantGroup
from loadtests.simulator.job import Job
from loadtests.simulator.tally import Account

LEAST_S = 1e-3
"""The shortest deadline."""


class Tenant:
    """One tenant. Jobs refer to it, so that nothing is looked up by name while it runs."""

    __slots__ = (
        "account",
        "asked_cost",
        "group",
        "max_level",
        "max_tokens",
        "may_clamp",
        "name",
        "retries",
        "served_cost",
        "waiting",
        "watch",
        "weight",
    )

    def __init__(self, name: str, group: TenantGroup, account: Account, max_level: int, may_clamp: bool) -> None:
        self.name = name
        self.group = group
        self.weight = group.weight
        self.account = account
        self.max_tokens = group.max_tokens
        self.max_level = max_level
        self.may_clamp = may_clamp
        self.retries = group.retries
        self.waiting = 0
        """Jobs that the policy holds for it."""
        self.watch = -1
        """Its place among those whose fairness is followed; -1: it is not."""
        self.asked_cost = 0.0
        self.served_cost = 0.0

    def __repr__(self) -> str:
        return f"<Tenant {self.name}, {self.waiting} waiting>"


class Sizes:
    """Draws what one request of a group is like. All of its chance is the plan's: no policy can change a draw."""

    __slots__ = ("_completion", "_context", "_deadline", "_patience", "_prompt")

    def __init__(self, group: TenantGroup, chance: Random) -> None:
        self._prompt = group.prompt_tokens.sampler(chance)
        self._context = group.context_tokens.sampler(chance)
        self._completion = group.completion_tokens.sampler(chance)
        self._deadline = group.deadline_s.sampler(chance)
        self._patience: Sampler | None = group.patience_s.sampler(chance) if group.patience_s else None

    def job(self, number: int, tenant: Tenant, at: float, prompt: int = 0, completion: int = 0) -> Job:
        """A request at this moment; a trace brings its own lengths."""
        deadline_s = self._deadline() or LEAST_S
        return Job(
            number,
            tenant,
            at,
            prompt or int(self._prompt() + 0.5) or 1,
            int(self._context() + 0.5),
            completion or int(self._completion() + 0.5) or 1,
            deadline_s,
            deadline_s if self._patience is None else self._patience(),
        )


def retry_at(now: float, job: Job, hint_s: float | None, chance: Random) -> float | None:
    """When its client asks again; None: it does not."""
    retries = job.asker.retries
    if job.attempt >= retries.attempts or retries.wait == "never":
        return None
    at = now + _wait_s(retries, job.attempt, hint_s, chance)
    return None if retries.keeps_deadline and at >= min(job.deadline, job.leaves_at) else at


def _wait_s(retries: Retries, attempt: int, hint_s: float | None, chance: Random) -> float:
    if retries.wait == "immediate":
        return 0.0
    if retries.wait == "hint" and hint_s is not None:
        return hint_s
    return chance.random() * min(retries.at_most_s, retries.base_s * 2.0**attempt)


def tenants_of(group: TenantGroup) -> Iterator[str]:
    """The names of a group's tenants: its own, or numbered."""
    if group.count == 1:
        yield group.name
    else:
        yield from (f"{group.name}-{number}" for number in range(group.count))
