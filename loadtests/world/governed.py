"""The governor's clients and faults in a play, started according to its plan."""

from __future__ import annotations

from collections import Counter
from random import Random

from loadtests.cluster.loop import SimLoop
from loadtests.world.faults import Stage
from loadtests.world.governorclient import GovernorClient, Job
from loadtests.world.governorjudge import GovernorFacts, GovernorJudge, GovernorSteps, held
from loadtests.world.metrics import counted_jobs
from loadtests.world.scenario import Fault
from loadtests.world.system import GOVERNOR, TOKEN, System
from services.governor.server import GovernorServer
from services.runtime.serve import Process


class Governed:
    """The governor's part of a play. `loops`: the client machines' loops."""

    def __init__(self, system: System, loops: list[SimLoop]) -> None:
        self.system = system
        self.simulation = system.simulation
        made = system.scenario
        self.plan = made.governor
        self.facts = GovernorFacts(self.plan, settle_s=2 * made.deadline_s)
        self._loops = loops
        self._steps = GovernorSteps(self.facts)
        system.governor.on_turn = self._steps.look
        system.governor.on_built = self._built
        self._jobs: dict[str, Job] = {}
        self._machines = [GovernorClient(loop, GOVERNOR, self._ended, auth=TOKEN, cap=self.plan.cap) for loop in loops]

    def begin(self, zero: float) -> None:
        """Schedule the whole plan from this moment on."""
        for number, ask in enumerate(self.plan.jobs):
            job = Job(number, ask, router=self.plan.router)
            self.facts.jobs.append(job)
            self._jobs[job.nonce] = job
            machine = self._machines[ask.machine]
            self.simulation.at(zero + ask.begins_s, machine.loop.call_soon, machine.send, job)
        made = self.system.scenario
        for machine in self._machines:  # a machine's idle connections may be all that the governor allows
            self.simulation.at(zero + made.calm_from_s - made.deadline_s / 2, machine.loop.call_soon, machine.make_room)
        for kind, begins_s, lasts_s in self.plan.faults:
            self.simulation.at(zero + begins_s, self._fault, kind, lasts_s)

    def received(self, nonce: str) -> bool:
        """Count a question that a worker received; False if it is not from a job."""
        if nonce not in self._jobs:
            return False
        self.facts.received[nonce] += 1
        return True

    def _fault(self, kind: str, lasts_s: float) -> None:
        chance = Random(f"{kind} {self.system.scenario.seed} {self.simulation.now}")
        stage = Stage(self.system, self._loops, chance)
        self.facts.faults.append(stage.begin(kind, lasts_s))

    def _built(self, process: Process) -> None:
        self._steps.server = process.inside  # type: ignore[assignment]

    def _ended(self, job: Job) -> None:
        self.simulation.note("client", "ends", f"{job.name} {job.end}")

    def close(self) -> None:
        for machine in self._machines:
            self.facts.garbage += machine.garbage
            machine.loop.call_soon(machine.close)

    async def settle(self) -> None:
        """Collect what the governor still holds, and its counters."""
        facts, node = self.facts, self.system.governor
        facts.starts = node.starts
        server = node.inside
        facts.left += held(server if isinstance(server, GovernorServer) else None)
        facts.ended, facts.executed, facts.yielded = await counted_jobs()

    def counts(self) -> Counter[str]:
        return Counter(f"job {job.end.split()[0]}" for job in self.facts.jobs if job.end)

    def verdicts(self, faults: list[tuple[float, float, Fault]]) -> list[str]:
        """Violations. `faults`: those of the rest of the world."""
        self.facts.faults += [(begins, ends) for begins, ends, _ in faults]
        return GovernorJudge(self.facts).verdicts()
