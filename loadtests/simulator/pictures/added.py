"""An error that is added beside one that is multiplied: the same predictions and waits, four ways to a q95.

One run gives, for every request that started, the wait that was expected at its door and the wait that came. Each way
then predicts each wait from those before it. A good q95 is long enough for 95 of 100, and no longer than it must be:
so both are told, the share within and the mean of what was predicted. Weir's own way also learns from those who
expired, which the others here do not see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from loadtests.simulator import engine
from loadtests.simulator.job import Job
from loadtests.simulator.pictures.recipes import Runs
from services.core.quantile import Rolling

Q = 0.95
WINDOW = 200
ENOUGH = 20
LEAST_S = 0.04
"""Half a service time of the small requests: predictions below it have no ratio worth having."""


@dataclass(frozen=True, slots=True)
class Start:
    """One request that started."""

    at: float
    tenant: str
    expected_s: float
    published_s: float
    waited_s: float


@dataclass(slots=True)
class Told:
    """How a way to a q95 did."""

    predicted_s: list[float] = field(default_factory=list)
    within: int = 0

    def add(self, predicted_s: float, start: Start) -> None:
        self.predicted_s.append(predicted_s)
        self.within += start.waited_s <= predicted_s

    def __str__(self) -> str:
        count = len(self.predicted_s)
        return f"{self.within / count:.1%}, {1000 * sum(self.predicted_s) / count:,.0f} ms"


Predict = Callable[[Start, Rolling], float]
Error = Callable[[Start], float | None]


@dataclass(frozen=True, slots=True)
class Way:
    """Whose errors, what an error is, and how it is used."""

    key: Callable[[Start], str]
    error: Error
    predict: Predict

    def run(self, starts: list[Start], group: str) -> Told:
        """Learns from all, and is judged by what it tells the tenants of this group."""
        told, windows = Told(), dict[str, Rolling]()
        for start in starts:
            window = windows.setdefault(self.key(start), Rolling(WINDOW))
            if len(window) >= ENOUGH and start.tenant.startswith(group):
                told.add(self.predict(start, window), start)
            if (error := self.error(start)) is not None:
                window.add(error)
        return told


def _ratio(start: Start) -> float | None:
    return start.waited_s / start.expected_s if start.expected_s >= LEAST_S else None


def _any_ratio(start: Start) -> float | None:
    return start.waited_s / start.expected_s if start.expected_s > 0 else None


def _times(start: Start, window: Rolling) -> float:
    return start.expected_s * (window.quantile(Q) or 1.0)


def _times_clamped(start: Start, window: Rolling) -> float:
    return start.expected_s * min(3.0, max(1.0, window.quantile(Q) or 1.0))


def _plus(start: Start, window: Rolling) -> float:
    return max(0.0, start.expected_s + (window.quantile(Q) or 0.0))


WAYS: Mapping[str, Way] = {
    "times a ratio between 1 and 3, of the class": Way(lambda start: "", _ratio, _times_clamped),
    "times a ratio, of the tenant": Way(lambda start: start.tenant, _any_ratio, _times),
    "plus an error, of the class": Way(lambda start: "", lambda start: start.waited_s - start.expected_s, _plus),
    "plus an error, of the tenant": Way(
        lambda start: start.tenant, lambda start: start.waited_s - start.expected_s, _plus
    ),
}
MIXES = {
    "the small beside ten times bigger requests": (Runs("big_neighbour", loads=(10,)), "small"),
    "four equal tenants, 3x": (Runs("sweep", loads=(3,), duration_s=60), "tenant"),
    "the light of unknown lengths, 10x": (Runs("unknown_lengths_10x", duration_s=300), "light"),
}


def table() -> str:
    """A row for each way, a column for each mix: the share within, and the mean of what was predicted."""
    columns: list[list[str]] = []
    for runs, group in MIXES.values():
        starts = _starts(runs)
        told = [way.run(starts, group) for way in WAYS.values()]
        columns.append([str(each) for each in (*told, _published(starts, group))])
    rows = zip((*WAYS, "plus an error of the tenant and kind, at a level that moves (Weir)"), *columns, strict=True)
    head = [f"| q95 of the wait = the expected wait ... | {' | '.join(MIXES)} |", "|---|" + "---:|" * len(MIXES)]
    return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows)])


def _published(starts: Sequence[Start], group: str) -> Told:
    told = Told()
    for start in starts:
        if start.tenant.startswith(group):
            told.add(start.published_s, start)
    return told


def _starts(runs: Runs) -> list[Start]:
    scenario = runs.read()
    if scenario.sweep:
        scenario = scenario.at_load(scenario.sweep.loads[0])
    starts: list[Start] = []

    def ended(now: float, job: Job, why: str) -> None:
        if job.started_at > 0:
            waited_s, published_s = job.started_at - job.arrived_at, job.forecast[-1]
            starts.append(Start(job.started_at, job.tenant, job.predicted_wait_s, published_s, waited_s))

    engine.run(scenario.with_seed(scenario.runs[0]), scenario.policies[0], ended=ended)
    return sorted(starts, key=lambda start: start.at)
