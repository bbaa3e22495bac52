"""The promises, held in short: one seed, seconds instead of minutes, so margins are wider where a row says so."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from loadtests.simulator.proof.cases import CASES, Case
from loadtests.simulator.proof.line import Line, Look
from loadtests.simulator.proof.observe import Seen, observe
from loadtests.simulator.proof.rows import ROWS

SEED = 1
DURATIONS_S = {
    "equal at 2x": 10,
    "equal at 10x": 12,
    "equal at 20x": 9,
    "unknown lengths at 10x": 120,
    "300 tenants at 10x": 12,
    "mixed deadlines at 3x": 12,
    "neighbour of equal size at 50x": 9,
    "no neighbour": 20,
    "long against short": 12,
    "burst": 47,
    "retry storm": 66,
    "hints": 25,
    "ladder": 40,
}
"""How long each case lasts here."""
ON_EIGHT_SLOTS = {"equal at 2x", "equal at 10x", "equal at 20x", "long against short", "burst", "retry storm", "hints"}
"""With one worker where the proof has two: half of the requests."""


@dataclass(frozen=True)
class Held:
    """A line of the proof, and what it must reach here; `at` is the proof's own target where it says nothing else."""

    row: int
    name: str
    at: float | None = None


TABLE = (
    Held(1, "goodput / capacity, equal at 2x"),
    Held(1, "goodput / capacity, equal at 10x"),
    Held(1, "goodput / capacity, equal at 20x"),
    Held(1, "goodput / capacity, unknown lengths at 10x, with clamp"),
    Held(1, "goodput / capacity, unknown lengths at 10x, no clamp", 0.85),  # target .95; a few hundred answers here
    Held(2, "missed after using a worker, equal at 10x"),
    Held(2, "missed after using a worker, unknown lengths at 10x, with clamp"),
    Held(2, "missed after using a worker, unknown lengths at 10x, no clamp", 0.06),  # target .01
    Held(2, "dropped from the queue, equal at 10x"),
    Held(2, "dropped from the queue, 300 tenants at 10x"),
    Held(2, "dropped from the queue, mixed deadlines at 3x"),
    Held(2, "dropped from the queue, unknown lengths at 10x, no clamp"),
    Held(2, "dropped from the queue, long against short"),
    Held(3, "wasted worker time, unknown lengths at 10x, with clamp"),
    Held(3, "wasted worker time, unknown lengths at 10x, no clamp", 0.12),  # target .05
    Held(4, "gap / its bound, long against short"),
    Held(5, "victims' p95 / alone, neighbour of equal size at 50x", 1.4),  # target 1.3; 140 answers here
    Held(5, "victims on time, neighbour of equal size at 50x"),
    Held(6, "back at 90 % of the on-time rate, equal"),
    Held(7, "goodput from 20 s after the outage / before"),
    Held(7, "worker dispatches per distinct request"),
    Held(9, "first obeyed hints admitted, after a burst of 2 s", 0.75),  # target .80
    Held(9, "regret against the oracle, equal at 2x"),
    Held(9, "regret against the oracle, equal at 10x"),
    Held(11, "on-time answers by weight of level / without ladder"),
)


def test_every_promise_of_the_table_is_one_of_the_proof() -> None:
    for held in TABLE:
        assert set(line_of(held).cases) <= set(DURATIONS_S), held.name


@pytest.mark.parametrize("held", TABLE, ids=lambda held: f"row-{held.row}-{held.name.replace(' ', '-')}")
def test_the_promise_holds(held: Held, runs: Runs) -> None:
    line = line_of(held)
    look = Look(runs.of(line), line.judged, SEED)
    figure = line.read(look)
    assert figure is not None, "nothing was measured"
    assert line.holds(figure), f"{line.name}: {line.unit.write(figure)}, wanted {line.wanted}"


@pytest.mark.parametrize("policy", ["fifo", "round_robin_ttl_cancel"])
def test_the_proof_is_not_one_that_anything_passes(policy: str, runs: Runs) -> None:
    line = line_of(Held(1, "goodput / capacity, equal at 10x"))
    figure = line.read(Look(runs.of(line, policy), policy, SEED))
    assert figure is not None
    assert not line.holds(figure)


def line_of(held: Held) -> Line:
    row = next(row for row in ROWS if row.number == held.row)
    line = next(line for line in row.lines if line.name == held.name)
    assert line.target is not None
    return line if held.at is None else replace(line, target=held.at)


def shortened(name: str) -> Case:
    case = CASES[name].lasting(DURATIONS_S[name])
    return replace(case, sets=(*case.sets, "workers.0.count=1")) if name in ON_EIGHT_SLOTS else case


class Runs:
    """Each run is made when the first line asks for it."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, int], Seen] = {}

    def of(self, line: Line, policy: str | None = None) -> dict[tuple[str, str, int], Seen]:
        policies = {policy or line.judged} | ({"weir_without_ladder"} if line.cases == ("ladder",) else set())
        for case in line.cases:
            for name in sorted(policies):
                if (case, name, SEED) not in self._seen:
                    self._seen[case, name, SEED] = observe(shortened(case), name, SEED)
        return self._seen


@pytest.fixture(scope="module")
def runs() -> Runs:
    return Runs()
