"""What the matrix plays: a scenario's file, as real processes play it, under its name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loadtests.cluster.stand import Shape
from loadtests.load.capacity import Capacity
from loadtests.load.figures import Quantiles
from loadtests.load.plan import Tenant
from loadtests.runs.matrix.staging import names_of, shape_of, tenants_of
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
    "outage_frozen", "outage_killed",
)  # fmt: skip
"""The scenarios of the published page, in its order."""


@dataclass(frozen=True, eq=False)
class Case:
    """A scenario under its name, staged for real processes."""

    name: str
    scenario: Scenario

    @property
    def title(self) -> str:
        """As the page has it."""
        return self.scenario.title

    @property
    def shape(self) -> Shape:
        """Of the workers."""
        return shape_of(self.scenario)

    @property
    def tenants(self) -> tuple[str, ...]:
        """The names of all."""
        return names_of(self.scenario)

    @property
    def may_be_cut(self) -> frozenset[str]:
        """The tenants whose answers may be made shorter rather than refused."""
        groups = {group.name for group in self.scenario.tenants if group.may_clamp or group.max_level}
        return frozenset(name for name in self.tenants if name.rpartition("-")[0] in groups or name in groups)

    @property
    def asks(self) -> bool:
        """Whether the tenants ask about documents. A scenario does so whole, or not at all."""
        return any(group.ask for group in self.scenario.tenants)

    def is_for(self, subject: Subject) -> bool:
        """Whether it says something of the subject."""
        return subject.plays(asks=self.asks, may_be_cut=bool(self.may_be_cut))

    @property
    def hurts(self) -> bool:
        """Whether workers fail on purpose: then failures and wasted work are no fault of the gateway's alone."""
        return any(group.failures for group in self.scenario.workers)

    @property
    def changes(self) -> bool:
        """Whether the load changes during the run."""
        return any(isinstance(group.arrivals, Open) and group.arrivals.phases for group in self.scenario.tenants)

    def seconds(self, *, alone: bool) -> float:
        """All of its loads together. `alone`: with those of the tenants that are measured alone first."""
        return self.scenario.duration_s * (1 + (len(self.scenario.alone) if alone else 0))

    def faster(self, pace: float) -> Case:
        """The same in a share of the time, all moments in proportion: for a test of the machinery."""
        return Case(self.name, retimed(self.scenario, lambda second: second * pace))


def case(name: str, changes: Changes | None = None) -> Case:
    """Raises LabError where the file has a fault, or where real processes cannot play it."""
    made = Case(Path(name).stem, on_stage(name, "processes", changes))
    if {group.ask for group in made.scenario.tenants} not in ({0.0}, {1.0}):
        raise LabError(f"{made.name}: real processes ask about documents in all requests, or in none.")
    tenants_of(made.scenario, Capacity(1.0, made.shape.answer_tokens, Quantiles()))  # any capacity: can they be made?
    return made


def deadlines(tenants: tuple[Tenant, ...], shape: Shape) -> Deadlines:
    """What somebody who tunes a gateway by hand knows of them.

    What is told as the shortest leaves time for a usual answer, so an answer that takes longer takes more off it.
    """
    usual_ms = 1000 * shape.service_s
    longer = {tenant.name: tenant.answer_tokens.median * shape.step_ms - usual_ms for tenant in tenants}
    return Deadlines(
        longest_ms=max(tenant.deadline_ms for tenant in tenants),
        shortest_ms=min(tenant.deadline_ms - WAIT_IN_SERVICES * max(0.0, longer[tenant.name]) for tenant in tenants),
    )
