"""Small scenarios for the tests, and the shortest ways to run them."""

from __future__ import annotations

from typing import Any

from loadtests.scenarios.model import PolicyChoice, Scenario, parse
from loadtests.simulator import engine
from loadtests.simulator.capacity import Measured
from loadtests.simulator.job import Job
from loadtests.simulator.plan import Plan
from loadtests.simulator.policies.fifo import Fifo
from loadtests.simulator.policies.round_robin import RoundRobin
from loadtests.simulator.policy import Policy
from loadtests.simulator.report import Capacity, PolicyReport
from loadtests.simulator.simulation import Simulation
from services.core.cost import Weights

BASELINES = ("fifo", "bounded_fifo", "fifo_ttl", "round_robin_ttl", "round_robin_ttl_cancel", "vtc")
SLOTS = {"kind": "slots", "slots": 4, "prefill_tokens_per_s": 10_000, "s_per_token": 0.001, "jitter": 0.1}
STEPS = {"kind": "steps", "slots": 4, "base_ms": 10, "per_sequence_ms": 1, "per_prefill_token_ms": 0.1}
POISSON = {"kind": "poisson", "load": 0.5}


def scenario(*tenants: dict[str, Any], worker: dict[str, Any] | None = None, **others: Any) -> Scenario:
    """With defaults for everything: 10 s, one worker of four slots, one tenant at half load."""
    several = [{"name": f"t{place}", "arrivals": POISSON, **tenant} for place, tenant in enumerate(tenants or ({},))]
    raw = {"title": "test", "duration_s": 10, "warm_up_s": 0, "cool_down_s": 0, "tenants": several}
    return parse({**raw, "workers": [worker or SLOTS], **others})


def run(world: Scenario, policy: str = "fifo", **settings: Any) -> PolicyReport:
    return engine.run(world, PolicyChoice(policy=policy, settings=settings))  # type: ignore[arg-type]


def unmeasured(world: Scenario, policy: str = "fifo", ended: engine.Ended | None = None) -> PolicyReport:
    """Without the time that measuring capacity takes: all rates are in requests per second."""
    rates = {group.name: getattr(group.arrivals, "rate_per_s", 0.0) or 0.0 for group in world.tenants}
    capacity = Capacity(100.0, 1000.0, world.slots, 1.0, 2.0, 0.1)
    choice = PolicyChoice(policy=policy)  # type: ignore[arg-type]
    return engine.run(world, choice, measured=Measured(capacity, rates), ended=ended)


def ends(world: Scenario, policy: str = "fifo") -> tuple[list[tuple[float, Job, str]], PolicyReport]:
    """Each distinct request's end, and the report; unmeasured."""
    seen: list[tuple[float, Job, str]] = []
    report = unmeasured(world, policy, lambda now, job, why: seen.append((now, job, why)))
    return seen, report


class Script(Plan):
    """Arrivals that are written down: (second, prompt tokens, answer tokens, deadline in seconds)."""

    def __init__(self, world: Scenario, arrivals: list[tuple[float, int, int, float]]) -> None:
        super().__init__(world, {world.tenants[0].name: 1.0}, seed=1)
        tenant = self.tenants[0]
        self.jobs = [
            Job(number, tenant, at, prompt, 0, answer, deadline_s, deadline_s)
            for number, (at, prompt, answer, deadline_s) in enumerate(arrivals)
        ]
        self._left = list(self.jobs)

    def until(self, until: float) -> list[Job]:
        due = [job for job in self._left if job.arrived_at < until]
        self._left = self._left[len(due) :]
        return due


def play(
    arrivals: list[tuple[float, int, int, float]], *, cancels: bool = False, **others: Any
) -> tuple[Simulation, list[Job]]:
    """A script, to its end; its jobs, as they ended."""
    world = scenario({"max_tokens": 100_000}, **others)
    script = Script(world, arrivals)
    policy: Policy = RoundRobin(cancels=True) if cancels else Fifo()
    simulation = Simulation(world, script, policy, Weights(), seed=1)
    simulation.run_until(world.duration_s)
    simulation.drain()
    return simulation, script.jobs
