"""The scenarios of the matrix, as real processes play them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loadtests.cluster.stand import Shape
from loadtests.load.capacity import Capacity
from loadtests.load.figures import Quantiles
from loadtests.load.plan import Tenant
from loadtests.runs.matrix.staging import members, names_of, shape_of, tenants_of
from loadtests.runs.matrix.subjects import WAIT_IN_SERVICES, Deadlines, Subject
from loadtests.scenarios.arrivals import Open
from loadtests.scenarios.changes import Changes
from loadtests.scenarios.model import Scenario
from loadtests.scenarios.stages import on_stage, retimed
from services.cli.errors import LabError

SERIES = (
    "half", "baseline", "at_capacity", "overload_2x", "overload_5x", "overload_10x", "burst", "bursty",
    "short_deadline", "noisy_neighbour", "equal_neighbour", "narrow_neighbour", "big_neighbour", "mixed_deadlines",
    "mixed_sizes", "degradation", "degradation_documents", "slow_worker", "recovery", "retry_storm",
    "outage_frozen", "outage_killed", "outlier",
)  # fmt: skip
"""The scenarios of the published page, in its order."""
BESIDE = ("two_frontends",)
"""Scenarios with a page of their own: the matrix may take little more than an hour."""


@dataclass(frozen=True, eq=False)
class Case:
    """A named scenario for real processes."""

    name: str
    scenario: Scenario

    @property
    def title(self) -> str:
        return self.scenario.title

    @property
    def shape(self) -> Shape:
        return shape_of(self.scenario)

    @property
    def tenants(self) -> tuple[str, ...]:
        return names_of(self.scenario)

    @property
    def may_be_cut(self) -> frozenset[str]:
        """The tenants whose answers may be shortened instead of rejected."""
        groups = {group.name for group in self.scenario.tenants if group.may_clamp or group.max_level}
        return frozenset(name for name in self.tenants if name.rpartition("-")[0] in groups or name in groups)

    @property
    def asks(self) -> bool:
        """Whether the tenants ask about documents: all of them, or none."""
        return any(group.ask for group in self.scenario.tenants)

    @property
    def frontends(self) -> int:
        return self.scenario.routers.count if self.scenario.routers else 1

    @property
    def enters(self) -> dict[str, int]:
        """The frontend of each tenant, if there are several."""
        groups = self.scenario.tenants if self.frontends > 1 else ()
        return {name: group.routers[0] for group in groups for name in members(group)}

    @property
    def weights(self) -> dict[str, float]:
        """Of the tenants that have another weight than 1."""
        return {name: group.weight for group in self.scenario.tenants if group.weight != 1 for name in members(group)}

    def is_for(self, subject: Subject) -> bool:
        return subject.plays(asks=self.asks, may_be_cut=bool(self.may_be_cut), several=self.frontends > 1)

    @property
    def hurts(self) -> bool:
        """Whether workers fail on purpose, so that failures and wasted work are not the gateway's alone."""
        return any(group.failures for group in self.scenario.workers)

    @property
    def changes(self) -> bool:
        return any(isinstance(group.arrivals, Open) and group.arrivals.phases for group in self.scenario.tenants)

    def seconds(self, *, alone: bool) -> float:
        """The duration of all loads; with `alone`, of those of single tenants too."""
        return self.scenario.duration_s * (1 + (len(self.scenario.alone) if alone else 0))

    def faster(self, pace: float) -> Case:
        """The same scenario with all times scaled by `pace`, for a test of the machinery."""
        return Case(self.name, retimed(self.scenario, lambda second: second * pace))


def case(name: str, changes: Changes | None = None) -> Case:
    """Loads a scenario. Raises LabError if the file has a fault, or if real processes cannot play it."""
    made = Case(Path(name).stem, on_stage(name, "processes", changes))
    if {group.ask for group in made.scenario.tenants} not in ({0.0}, {1.0}):
        raise LabError(f"{made.name}: real processes ask about documents in all requests, or in none.")
    if made.frontends > 1 and (made.may_be_cut or any(len(group.routers) != 1 for group in made.scenario.tenants)):
        raise LabError(f"{made.name}: behind several routers, real processes play whole answers, and tenants that name "
                       "one router each in `routers`.")  # fmt: skip
    tenants_of(made.scenario, Capacity(1.0, made.shape.answer_tokens, Quantiles()))  # at any capacity; may raise
    return made


def deadlines(tenants: tuple[Tenant, ...], shape: Shape) -> Deadlines:
    """The deadlines for tuning a gateway by hand; the shortest leaves a longer answer as much less time to wait."""
    usual_ms = 1000 * shape.service_s
    longer = {tenant.name: tenant.answer_tokens.median * shape.step_ms - usual_ms for tenant in tenants}
    return Deadlines(
        longest_ms=max(tenant.deadline_ms for tenant in tenants),
        shortest_ms=min(tenant.deadline_ms - WAIT_IN_SERVICES * max(0.0, longer[tenant.name]) for tenant in tenants),
    )
