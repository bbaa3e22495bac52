"""Plays the matrix: for each scenario its workers and their capacity first, then every subject before them.

Each result is kept at once. An error is reported, and the next subject is played.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter

import msgspec

from loadtests.cluster import cpu
from loadtests.cluster.stack import retrieval_over
from loadtests.cluster.stand import Stand, stand
from loadtests.load import capacity
from loadtests.load.capacity import Capacity
from loadtests.paths import ROOT
from loadtests.report.console import why
from loadtests.report.progress import Say
from loadtests.runs.matrix.cases import Case, deadlines
from loadtests.runs.matrix.cell import Cell
from loadtests.runs.matrix.play import CALM_S, Played, play
from loadtests.runs.matrix.reading import seconds
from loadtests.runs.matrix.setup import Setup
from loadtests.runs.matrix.staging import tenants_of
from loadtests.runs.matrix.subjects import WEIR, Subject

WORKER = "loadtests.runs.matrix.worker"
CORPUS = ROOT / "docs" / "architecture"
BUDGET = {"RETRIEVAL_BUDGET_MS": "500"}
"""A generous budget, since client, services and stores share the processors."""
RETRIEVAL = {**BUDGET, "CACHE_TTL_S": "300"}
MAX_PLAYS = 2
CALM_WITHIN_S = 10.0
MEASURE_S, WARM_UP_S = 3.0, 1.0
MEASURED_SERVICES = 6
"""The capacity is measured for at least as many service times."""
WORKERS_START_S = 3.0
OVERHEAD_S = 4.0
"""Overhead of each load: the start of the subject, and the rest of a deadline."""
SPARE_S = 180.0

Keep = Callable[[Cell], None]
Job = tuple[Case, Subject]
Stands = Callable[[Case], AbstractAsyncContextManager[Stand]]
"""Workers for a case without a subject; or a given stack."""


@asynccontextmanager
async def workers_of(case: Case) -> AsyncIterator[Stand]:
    """Starts workers, and retrieval with its stores if the case asks about documents."""
    async with AsyncExitStack() as leaving:
        made = await leaving.enter_async_context(stand(case.shape, case.tenants, router=False, worker=WORKER))
        made.frontends, made.weights = case.frontends, case.weights
        if case.asks:
            retrieval = await leaving.enter_async_context(retrieval_over(CORPUS, case.tenants, RETRIEVAL))
            made.settings = {"RETRIEVAL_URL": retrieval.url, **BUDGET}
        yield made


@dataclass
class Playing:
    """One run of the command. `pace` shortens everything, for a test of the machinery.

    `doing` and `takes_s` are for the progress report: the current job, and the estimated time of all.
    """

    stands: Stands
    jobs: Sequence[Job]
    say: Say
    keep: Keep
    machine: str
    pace: float = 1.0
    doing: str = ""
    takes_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.takes_s = planned_s(self.jobs, self.pace)
        self._began = perf_counter()

    async def all(self) -> None:
        for case in dict.fromkeys(case for case, _ in self.jobs):
            self.say(f"\n{case.title}: {case.scenario.question}")
            subjects = [subject for each, subject in self.jobs if each is case]
            try:
                async with self.stands(case) as made:
                    await self._case(made, case, subjects)
            except (OSError, RuntimeError, ExceptionGroup) as error:
                for subject in subjects:
                    self.keep(self._failed(case, subject, why(error)))

    async def _case(self, made: Stand, case: Case, subjects: Sequence[Subject]) -> None:
        seconds = max(MEASURE_S * self.pace, MEASURED_SERVICES * made.shape.service_s)
        measured = await capacity.measure(made, seconds, WARM_UP_S * self.pace)
        self.say(f"  {made.shape}: {measured.per_s:.1f} answers/s, service p50 {measured.service_ms.p50:.0f} ms")
        for subject in subjects:
            self.say(f"  {subject.title}  ({self._position(case, subject)})")
            self.keep(await self._believable(made, case, subject, measured))

    async def _believable(self, made: Stand, case: Case, subject: Subject, measured: Capacity) -> Cell:
        """Plays it once, and again if the client itself was late: such a run measured the machine."""
        cell = await self._played(made, case, subject, measured)
        for plays in range(2, MAX_PLAYS + 1):
            if cell.fault or cell.believable or self.pace < 1:
                break
            self.say("    again: the client itself was late")
            await cpu.calm(CALM_WITHIN_S)
            again = await self._played(made, case, subject, measured)
            cell = cell if again.fault else msgspec.structs.replace(again, plays=plays)
        return cell

    async def _played(self, made: Stand, case: Case, subject: Subject, measured: Capacity) -> Cell:
        staged = case.faster(self.pace)
        within_s = 3 * staged.seconds(alone=True) + SPARE_S
        limits = deadlines(tenants_of(case.scenario, measured), made.shape)
        try:
            async with (
                asyncio.timeout(within_s),
                subject.standing(made, case.tenants, case.may_be_cut, limits) as asked,
            ):
                setup = Setup(asked, measured, lambda text: self.say(f"  {text}"), subject.key, case.asks, case.enters)
                await setup.warm_up(case.tenants, subject.warm_up_s * self.pace)
                done = await play(setup, staged, pace=self.pace, alone=subject is WEIR)
                return self._cell(case, subject, setup, done)
        except TimeoutError:
            return self._failed(case, subject, f"not over after {within_s:.0f} s")
        except (OSError, RuntimeError, ExceptionGroup) as error:
            return self._failed(case, subject, why(error))

    def _cell(self, case: Case, subject: Subject, setup: Setup, done: Played) -> Cell:
        run = done.run
        return Cell(
            scenario=case.name,
            subject=subject.name,
            capacity_per_s=setup.capacity.per_s,
            service_ms=setup.capacity.service_ms.p50,
            rows=done.rows,
            seconds=seconds(run),
            figures=done.figures,
            requests=len(run.ledger.rows),
            gateway_ms=1000 * run.used.cpu.router_s / max(1, len(run.ledger.rows)),
            client_late=max(each.figures.generator_late for each in setup.runs),
            others=run.used.cpu.others,
            believable=all(each.figures.valid for each in setup.runs),
            machine=self.machine,
        )

    def _failed(self, case: Case, subject: Subject, fault: str) -> Cell:
        self.say(f"    could not be played: {fault.splitlines()[0]}")
        return Cell(case.name, subject.name, fault=fault, machine=self.machine)

    def _position(self, case: Case, subject: Subject) -> str:
        at = list(self.jobs).index((case, subject))
        left_s = planned_s(self.jobs[at:], self.pace)
        self.doing = f"{at + 1} of {len(self.jobs)}, {case.name} by {subject.title}"
        self.takes_s = perf_counter() - self._began + left_s
        return f"{at + 1} of {len(self.jobs)}, about {clock(left_s)} left"


def planned_s(jobs: Sequence[Job], pace: float) -> float:
    loads = sum(case.seconds(alone=subject is WEIR) + CALM_S + OVERHEAD_S + subject.warm_up_s for case, subject in jobs)
    measuring = len({case.name for case, _ in jobs}) * (MEASURE_S + WARM_UP_S + WORKERS_START_S)
    return pace * (loads + measuring)


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
