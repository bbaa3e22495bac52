"""Playing the series: a scenario at a time, its capacity first, then every policy; each result is kept as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from loadtests.cluster import cpu
from loadtests.cluster.stand import Stand
from loadtests.load import capacity
from loadtests.load.capacity import Capacity
from loadtests.report.console import why
from loadtests.runs.drill import Drill
from loadtests.runs.matrix.cell import Cell, Row
from loadtests.runs.matrix.plays import CALM_S, Stage
from loadtests.runs.matrix.policies import WEIR, Policy, in_force
from loadtests.runs.matrix.reading import seconds
from loadtests.runs.matrix.scenarios import Scenario

MOST_PLAYS = 2
CALM_WITHIN_S = 10.0
MEASURE_S, WARM_UP_S = 3.0, 1.0
OVERHEAD_S = 1.0  # of each: who stands before the workers is changed, and the rest of a deadline is waited for
SPARE_S = 60.0

Say = Callable[[str], None]
Keep = Callable[[Cell], None]
Job = tuple[Scenario, Policy]


@dataclass
class Playing:
    """One run of the command. `pace` shortens everything for a test of the machinery."""

    stand: Stand
    jobs: Sequence[Job]
    say: Say
    keep: Keep
    machine: str
    pace: float = 1.0

    async def all(self) -> None:
        """Every job, in the order of the scenarios."""
        for scenario in dict.fromkeys(scenario for scenario, _ in self.jobs):
            self.say(f"\n{scenario.title}: {scenario.question}")
            policies = [policy for each, policy in self.jobs if each is scenario]
            try:
                measured = await capacity.measure(self.stand, MEASURE_S * self.pace, WARM_UP_S * self.pace)
            except (OSError, RuntimeError) as error:
                for policy in policies:
                    self.keep(self._failed(scenario, policy, why(error)))
                continue
            self.say(f"  capacity {measured.per_s:.1f} answers/s, service p50 {measured.service_ms.p50:.0f} ms")
            for policy in policies:
                await self._one(scenario, policy, measured)

    async def _one(self, scenario: Scenario, policy: Policy, measured: Capacity) -> None:
        """Once, and once more if the client itself was late: such a run measured the machine."""
        self.say(f"  {policy.title}  ({self._left(scenario, policy)})")
        cell = await self._played(scenario, policy, measured)
        for plays in range(2, MOST_PLAYS + 1):
            if cell.fault or cell.believable or self.pace < 1:
                break
            self.say("    once more: the client itself was late")
            await cpu.calm(CALM_WITHIN_S)
            again = await self._played(scenario, policy, measured)
            cell = cell if again.fault else msgspec.structs.replace(again, plays=plays)
        self.keep(cell)

    async def _played(self, scenario: Scenario, policy: Policy, measured: Capacity) -> Cell:
        """What goes wrong is told, and the next has its turn."""
        within_s = self.pace * 3 * scenario.seconds + SPARE_S
        deadlines = scenario.deadlines(self.stand.shape)
        try:
            async with asyncio.timeout(within_s), in_force(policy, self.stand, deadlines) as stand:
                drill = Drill(stand, measured, lambda text: self.say(f"  {text}"), policy.route)
                stage = Stage(drill, policy is WEIR, self.pace)
                return self._told(scenario, policy, stage, await scenario.play(stage))
        except TimeoutError:
            return self._failed(scenario, policy, f"not over after {within_s:.0f} s")
        except (OSError, RuntimeError, ExceptionGroup) as error:
            return self._failed(scenario, policy, why(error))

    def _told(self, scenario: Scenario, policy: Policy, stage: Stage, rows: list[Row]) -> Cell:
        run = stage.run
        if run is None:
            raise RuntimeError(f"{scenario.name} has run nothing")
        return Cell(
            scenario=scenario.name,
            policy=policy.name,
            capacity_per_s=stage.drill.capacity.per_s,
            service_ms=stage.drill.capacity.service_ms.p50,
            rows=rows,
            seconds=seconds(run),
            figures=dict(stage.figures),
            requests=len(run.ledger.rows),
            gateway_ms=1000 * run.used.cpu.router_s / max(1, len(run.ledger.rows)),
            client_late=max(each.figures.generator_late for each in stage.drill.runs),
            others=run.used.cpu.others,
            believable=all(each.figures.valid for each in stage.drill.runs),
            late_answers=sum(each.figures.late_answers for each in stage.drill.runs),
            hintless=sum(each.figures.hintless for each in stage.drill.runs),
            machine=self.machine,
        )

    def _failed(self, scenario: Scenario, policy: Policy, why: str) -> Cell:
        self.say(f"    could not be played: {why.splitlines()[0]}")
        return Cell(scenario.name, policy.name, fault=why, machine=self.machine)

    def _left(self, scenario: Scenario, policy: Policy) -> str:
        """How many are left, this one included, and about how long they take."""
        at = list(self.jobs).index((scenario, policy))
        left = self.jobs[at:]
        return f"{at + 1} of {len(self.jobs)}, about {clock(planned_s(left, self.pace))} left"


def planned_s(jobs: Sequence[Job], pace: float) -> float:
    """How long they take, if none has to be played again."""
    loads = sum(scenario.seconds + CALM_S + OVERHEAD_S for scenario, _ in jobs)
    measuring = len({scenario.name for scenario, _ in jobs}) * (MEASURE_S + WARM_UP_S)
    return pace * (loads + measuring)


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
