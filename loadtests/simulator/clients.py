"""Tenants of a running scenario, the sizes of their requests, and their clients' retries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from loadtests.scenarios.distributions import Sampler
from loadtests.scenarios.model import Retries, TenantGroup
from loadtests.simulator.accounts import Account
from loadtests.simulator.job import Job

MIN_DEADLINE_S = 1e-3
"""In place of a deadline of 0 seconds."""


class Tenant:
    """One tenant. Jobs refer to it, which saves lookups by name."""

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
        """Jobs in the policy's queue."""
        self.watch = -1
        """Index among the tenants whose fairness gap is measured; -1: not measured."""
        self.asked_cost = 0.0
        self.served_cost = 0.0

    def __repr__(self) -> str:
        return f"<Tenant {self.name}, {self.waiting} waiting>"


class Sizes:
    """Draws a request's sizes, deadline and client timeout with the plan's generator: no policy changes a draw."""

    __slots__ = ("_client_timeout", "_completion", "_context", "_deadline", "_impatient", "_open_ended", "_prompt")

    def __init__(self, group: TenantGroup, chance: Random, seed: str = "") -> None:
        """`seed`: of draws that are apart, so that the share of these requests changes nothing else."""
        self._impatient = (
            _shares(group.retries.impatient, Random(f"{seed}/impatient")) if group.retries.impatient else None
        )
        self._open_ended = _shares(group.open_ended, Random(f"{seed}/open ended")) if group.open_ended else None
        self._prompt = group.prompt_tokens.sampler(chance)
        self._context = group.context_tokens.sampler(chance)
        self._completion = group.completion_tokens.sampler(chance)
        self._deadline = group.deadline_s.sampler(chance)
        self._client_timeout: Sampler | None = (
            group.client_timeout_s.sampler(chance) if group.client_timeout_s else None
        )

    def job(self, number: int, tenant: Tenant, at: float, prompt: int = 0, completion: int = 0) -> Job:
        """A request that arrives at `at`; lengths other than 0 replace drawn ones."""
        deadline_s = self._deadline() or MIN_DEADLINE_S
        job = Job(
            number,
            tenant,
            at,
            prompt or int(self._prompt() + 0.5) or 1,
            int(self._context() + 0.5),
            completion or int(self._completion() + 0.5) or 1,
            deadline_s,
            deadline_s if self._client_timeout is None else self._client_timeout(),
        )
        if self._impatient is not None:
            job.impatient = self._impatient()
        if self._open_ended is not None and self._open_ended():
            job.leave_open()
        return job


def _shares(share: float, chance: Random) -> Callable[[], bool]:
    return lambda: chance.random() < share


def retry_at(now: float, job: Job, hint_s: float | None, chance: Random) -> float | None:
    """When the client retries; None for no retry."""
    retries = job.asker.retries
    if job.attempt >= retries.attempts or (retries.wait == "never" and not job.impatient):
        return None
    at = now if job.impatient else now + _wait_s(retries, job.attempt, hint_s, chance)
    return None if retries.keeps_deadline and at >= min(job.deadline, job.leaves_at) else at


def _wait_s(retries: Retries, attempt: int, hint_s: float | None, chance: Random) -> float:
    if retries.wait == "immediate":
        return 0.0
    if retries.wait == "hint" and hint_s is not None:
        return hint_s
    return chance.random() * min(retries.at_most_s, retries.base_s * 2.0**attempt)


def tenants_of(group: TenantGroup) -> Iterator[str]:
    """NAME for one tenant, NAME-0, NAME-1, ... for several."""
    if group.count == 1:
        yield group.name
    else:
        yield from (f"{group.name}-{number}" for number in range(group.count))
