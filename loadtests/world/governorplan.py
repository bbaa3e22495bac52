"""The governor's part of a scenario: size, jobs (a twentieth of the requests), faults, with its own random source."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Literal

from loadtests.world.faults import GOVERNOR_FAULTS
from services.governor.protocol import OVERHEAD_BYTES
from services.governor.upload import MAX_PAYLOAD_BYTES

if TYPE_CHECKING:
    from loadtests.world.scenario import Scenario

SHARE = 0.05
"""Jobs per request in the storm."""
TAIL_JOBS = 5
"""Jobs in the calm phase: few enough that all find a slot."""
LINE_BYTES = 4096
TOTAL_BYTES = MAX_PAYLOAD_BYTES + LINE_BYTES + OVERHEAD_BYTES + 100_000
"""Room for one largest payload and all small ones."""

Manner = Literal["whole", "leaves", "half", "greedy"]
"""whole: follows the protocol. leaves: disconnects. half: half-closes within a line. greedy: declares the largest
payload and sends none of it.
"""


@dataclass(slots=True, frozen=True)
class JobAsk:
    """One job. Times in seconds; `begins_s` counts from the moment the cluster is up.

    `client_timeout_s`: the limit for retries after a yield. `chunks`: pieces of the payload. `sends_ttl`: whether the
    client sends its time limit.
    """

    begins_s: float
    machine: int
    manner: Manner
    client_timeout_s: float
    chunks: int
    pings: bool
    sends_ttl: bool
    leaves_after_s: float
    of_tail: bool

    @property
    def reply_within_s(self) -> float:
        """The client's limit for the end of its job, with room for faults.

        Without a stated limit the job gets the backend's own, which is as long again, from its last frame on.
        """
        return (1.5 if self.sends_ttl else 2.5) * self.client_timeout_s


@dataclass(slots=True)
class GovernorPlan:
    """`router`: jobs go to the router; otherwise they only take `job_s`."""

    cap: int = 4
    router: bool = False
    job_s: float = 0.05
    connections: int = 64
    jobs: list[JobAsk] = field(default_factory=list)
    faults: list[tuple[str, float, float]] = field(default_factory=list)
    """Kind, begin, duration."""


def governor_plan(made: Scenario, storm: tuple[float, float], size: int) -> GovernorPlan:
    """The plan of a seed. `storm`: begin and duration of the scenario's storm."""
    rng = Random(f"governor {made.seed}")
    begins_s, storm_s = storm
    plan = GovernorPlan(cap=rng.choice((1, 1, 2, 4)), router=rng.random() < 0.5, connections=rng.choice((8, 64)))
    count = max(4, round(SHARE * size))
    lasts_s = min(storm_s, rng.choice((0.2, 1.0, 1.0)) * storm_s)
    times = rng.choice((0.3, 1.0, 3.0, 6.0))
    plan.job_s = min(max(times * plan.cap * lasts_s / count, 0.005), made.deadline_s / 10)
    leaver_share, half_share = rng.choice((0.0, 0.05, 0.2)), rng.choice((0.0, 0.05))
    greedy_share = rng.choice((0.0, 0.0, 0.2))
    moments = [begins_s + rng.random() * lasts_s for _ in range(count)]
    moments += [rng.random() * made.deadline_s for _ in range(2)]
    for moment in sorted(moments):
        chance = rng.random()
        manner: Manner = "whole"
        if chance < leaver_share:
            manner = "leaves"
        elif chance < leaver_share + half_share:
            manner = "half"
        elif chance < leaver_share + half_share + greedy_share:
            manner = "greedy"
        plan.jobs.append(_job(made, rng, moment, manner))
    for number in range(TAIL_JOBS):
        moment = made.calm_from_s + number * made.deadline_s / TAIL_JOBS
        plan.jobs.append(_job(made, rng, moment, "whole", of_tail=True))
    if rng.random() < 0.5:
        for _ in range(rng.randint(1, 2)):
            begins = begins_s + rng.random() * lasts_s
            lasts = min(rng.choice((0.05, 0.3, 1.0)), made.faults_end_s - begins)
            plan.faults.append((rng.choice(tuple(GOVERNOR_FAULTS)), begins, lasts))
    return plan


def _job(made: Scenario, rng: Random, moment: float, manner: Manner, *, of_tail: bool = False) -> JobAsk:
    return JobAsk(
        begins_s=moment,
        machine=rng.randrange(made.machines),
        manner=manner,
        client_timeout_s=made.deadline_s,
        chunks=rng.randint(1, 3),
        pings=rng.random() < 0.1,
        sends_ttl=rng.random() < 0.5,
        leaves_after_s=rng.random() * made.deadline_s / 2,
        of_tail=of_tail,
    )
