"""The arrivals of a scenario, from its seed alone: the same for every policy.

Each group (each tenant, for gamma arrivals) has its own random generator, seeded by its name; policies and workers have
others. Requests are made chunk by chunk, so memory does not grow with their number. Changing rates use time rescaling:
gaps are drawn at rate 1 and stretched by the cumulative rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from operator import attrgetter
from random import Random
from typing import Protocol

from loadtests.load.traces import Part, replayed
from loadtests.scenarios.arrivals import Closed, Gamma, OnOff, Open, Trace
from loadtests.scenarios.distributions import Exponential, Sampler
from loadtests.scenarios.model import PolicyChoice, Scenario, TenantGroup
from loadtests.simulator.accounts import Account
from loadtests.simulator.clients import Sizes, Tenant, tenants_of
from loadtests.simulator.job import Job

CHUNK_REQUESTS = 8192
MAX_ACCOUNTS = 200
_by_arrival = attrgetter("arrived_at")

Number = Callable[[], int]


def rates(arrivals: Open, rate_per_s: float) -> Iterator[tuple[float, float]]:
    """Endless pieces of (until second, requests per second)."""
    at = 0.0
    for until, times in _halves(arrivals):
        while at < until:
            end, more = _phase(arrivals, at)
            at = min(end, until)
            yield at, rate_per_s * times * more


def _halves(arrivals: Open) -> Iterator[tuple[float, float]]:
    """Pieces of (until second, times the mean rate): on and off in turn, or one without end."""
    if not isinstance(arrivals, OnOff):
        yield math.inf, 1.0
        return
    period_s = arrivals.on_s + arrivals.off_s
    for number in count():
        yield number * period_s + arrivals.on_s, period_s / arrivals.on_s
        yield (number + 1) * period_s, 0.0


def _phase(arrivals: Open, at: float) -> tuple[float, float]:
    """(until second, times the usual rate) of the piece that `at` is in."""
    for phase in arrivals.phases:
        if at < phase.from_s:
            return phase.from_s, 1.0
        if at < phase.until_s:
            return phase.until_s, phase.times
    return math.inf, 1.0


class Stream:
    """Open arrivals at a rate. Several tenants share one stream; each arrival draws its tenant."""

    __slots__ = ("_at", "_chance", "_gap", "_pieces", "_rate", "_sizes", "_tenants", "_until")

    def __init__(self, group: TenantGroup, tenants: Sequence[Tenant], rate_per_s: float, seed: str) -> None:
        assert isinstance(group.arrivals, Open)
        self._tenants = tenants
        self._chance = chance = Random(seed)
        self._sizes = Sizes(group, chance, seed)
        self._gap = _gaps(group.arrivals, chance)
        self._pieces = rates(group.arrivals, rate_per_s)
        self._at = 0.0
        self._until, self._rate = next(self._pieces)
        self._advance(self._gap())

    def _advance(self, gap: float) -> None:
        while gap >= (self._until - self._at) * self._rate:
            gap -= (self._until - self._at) * self._rate
            self._at = self._until
            self._until, self._rate = next(self._pieces)
        self._at += gap / self._rate

    def fill(self, until: float, jobs: list[Job], number: Number) -> None:
        """Append the requests before `until`."""
        tenants, sizes, gap = self._tenants, self._sizes.job, self._gap
        several, draw = len(tenants), self._chance.random
        while self._at < until:
            tenant = tenants[int(draw() * several)] if several > 1 else tenants[0]
            jobs.append(sizes(number(), tenant, self._at))
            self._advance(gap())


def _gaps(arrivals: Open, chance: Random) -> Sampler:
    """Draws gaps with mean 1."""
    if isinstance(arrivals, Gamma):
        shape, gamma = arrivals.cv**-2, chance.gammavariate
        scale = 1.0 / shape
        return lambda: gamma(shape, scale)
    return Exponential(kind="exponential", mean=1.0).sampler(chance)


class Replay:
    __slots__ = ("_due", "_rest", "_scale", "_sizes", "_tenants")

    def __init__(self, trace: Trace, part: Part, tenants: Mapping[str, Tenant], sizes: Sizes, speed: float) -> None:
        self._tenants = tenants
        self._sizes = sizes
        self._scale = trace.token_scale
        self._rest = replayed(part, speed, repeat=trace.repeat)
        self._due = next(self._rest, None)

    def fill(self, until: float, jobs: list[Job], number: Number) -> None:
        """Append the requests before `until`."""
        scale = self._scale
        while self._due is not None:
            at, row = self._due
            if at >= until:
                return
            prompt, completion = (round(tokens * scale) or 1 for tokens in (row.prompt_tokens, row.completion_tokens))
            jobs.append(self._sizes.job(number(), self._tenants[row.client], at, prompt, completion))
            self._due = next(self._rest, None)


class ClosedLoop(Protocol):
    clients: int

    def think(self) -> float:
        """Draws the seconds until a client's next request."""
        ...

    def next_active(self, client: int, at: float) -> float:
        """When this client is next active, from `at` on; infinity for never."""
        ...

    def draw(self, number: int, client: int, now: float) -> Job:
        """The client's next request."""
        ...


class ArrivalPlan(Protocol):
    tenants: list[Tenant]
    accounts: dict[str, Account]
    loops: list[ClosedLoop]
    chunk_s: float
    number: Number
    """Returns a number that is unique in the run."""

    def until(self, until: float) -> list[Job]:
        """The next open arrivals, those before `until`, in order."""
        ...


class Loop:
    """A closed group; requests are drawn when they arrive."""

    __slots__ = ("_arrivals", "_think", "clients", "sizes", "tenants")

    def __init__(self, group: TenantGroup, tenants: Sequence[Tenant], seed: str) -> None:
        assert isinstance(group.arrivals, Closed)
        chance = Random(seed)
        self._arrivals = group.arrivals
        self.clients = group.arrivals.max_clients
        self.tenants = tenants
        self._think = group.arrivals.think_s.sampler(chance)
        self.sizes = Sizes(group, chance, seed)

    def think(self) -> float:
        return self._think()

    def next_active(self, client: int, at: float) -> float:
        arrivals = self._arrivals
        if not arrivals.phases:
            return at
        edges = sorted({edge for phase in arrivals.phases for edge in (phase.from_s, phase.until_s)})
        return next((edge for edge in (at, *edges) if edge >= at and client < arrivals.at(edge)[0]), math.inf)

    def draw(self, number: int, client: int, now: float) -> Job:
        return self.sizes.job(number, self.tenants[client % len(self.tenants)], now)


class Plan:
    """All arrivals of a scenario, its tenants and their accounts."""

    def __init__(
        self, scenario: Scenario, group_rates: Mapping[str, float], *, seed: int, choice: PolicyChoice | None = None
    ) -> None:
        self.tenants: list[Tenant] = []
        self.accounts: dict[str, Account] = {}
        self.loops: list[ClosedLoop] = []
        self._streams: list[Stream | Replay] = []
        self.number = count(1).__next__
        self._choice = choice
        self._detailed = scenario.tenant_count <= MAX_ACCOUNTS
        for group in scenario.tenants:
            self._add(group, group_rates.get(group.name, 0.0), f"{seed}/{group.name}")
        total = sum(group_rates.values())
        self.chunk_s = min(10.0, max(0.05, CHUNK_REQUESTS / total)) if total else 10.0

    def _add(self, group: TenantGroup, rate_per_s: float, seed: str) -> None:
        arrivals = group.arrivals
        if isinstance(arrivals, Trace):
            self._add_trace(group, arrivals, rate_per_s, seed)
            return
        tenants = [self._tenant(name, group) for name in tenants_of(group)]
        if isinstance(arrivals, Closed):
            self.loops.append(Loop(group, tenants, seed))
        elif isinstance(arrivals, Gamma):
            share = rate_per_s / len(tenants)
            self._streams += [Stream(group, [tenant], share, f"{seed}/{place}") for place, tenant in enumerate(tenants)]
        else:
            self._streams.append(Stream(group, tenants, rate_per_s, seed))

    def _add_trace(self, group: TenantGroup, trace: Trace, rate_per_s: float, seed: str) -> None:
        part = trace.part()
        clients = dict.fromkeys(row.client for row in part.rows)
        if trace.by_client:
            tenants = {client: self._tenant(f"{group.name}-{client or 'all'}", group) for client in clients}
        else:
            tenants = dict.fromkeys(clients, self._tenant(group.name, group))
        sizes = Sizes(group, Random(seed), seed)
        self._streams.append(Replay(trace, part, tenants, sizes, rate_per_s / part.per_s))

    def _tenant(self, name: str, group: TenantGroup) -> Tenant:
        account = self.accounts.setdefault(name if self._detailed else group.name, Account())
        max_level, may_clamp = group.max_level, group.may_clamp
        if self._choice is not None:
            limit, clamp = self._choice.max_level, self._choice.may_clamp
            max_level = max_level if limit is None else min(max_level, limit)
            may_clamp = may_clamp if clamp is None else clamp
        tenant = Tenant(name, group, account, max_level, may_clamp)
        self.tenants.append(tenant)
        return tenant

    def until(self, until: float) -> list[Job]:
        jobs: list[Job] = []
        for stream in self._streams:
            stream.fill(until, jobs, self.number)
        jobs.sort(key=_by_arrival)
        return jobs
