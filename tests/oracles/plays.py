"""The cases of the simulator's promises, shortened: each with every policy that is compared in it, and every seed.

Such a case lasts a minute or more. What matters here is that each mechanism decides, so each play ends after
some hundred offers, workers have four slots (so that these offers last for longer), and what happens at second 20 of
a case happens in its first seconds. Rates are given and not measured: they are figures of the simulated workers, and a
policy's decisions must not seem to change because those do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from loadtests.simulator.capacity import Measured
from loadtests.simulator.engine import prepare
from loadtests.simulator.promises import CHOICES, SEEDS, Case, table
from loadtests.simulator.report import Capacity
from tests.oracles.recording import Recorded

FOR_A_MINUTE = ", for a minute"
CASES = {case.name: case for case in table().cases}
OFFERS = 450
OFFERS_OF_A_MINUTE = 750
"""Of Weir, with the first seed: until estimates answer for themselves, and ladders have been climbed."""
OFFERS_OF_OTHERS = 120
"""Of the policies that Weir is compared with, and of Weir with the other seeds."""
SLICE_OFFERS = 10
"""About so many offers are played before it is looked whether there are enough."""
LASTS_S = 400.0
"""No play lasts for longer."""
UNUSED = Capacity(requests_per_s=1.0, cost_per_s=1.0, slots=1, prompt_weight=1.0, completion_weight=1.0, service_s=1.0)
"""What a report would need of it is not asked for here."""

FOUR_SLOTS = ("workers.0.count=1", "workers.0.slots=4")
TWO_AND_TWO = ("workers.0.slots=2",)
STEADY: Mapping[str, Mapping[str, float]] = {
    "equal at 1x": {"tenant": 50},
    "equal at 2x": {"tenant": 100},
    "equal at 5x": {"tenant": 250},
    "equal at 10x": {"tenant": 500},
    "equal at 20x": {"tenant": 1000},
    "300 tenants at 3x": {"tenant": 150},
    "300 tenants at 10x": {"tenant": 500},
    "mixed deadlines at 3x": {"mixed": 100, "impatient": 25, "patient": 25},
    "neighbour of equal size at 50x": {"small": 17.5, "aggressor": 2500},
    "no neighbour": {"small": 17.5},
    "neighbour ten times bigger at 10x": {"small": 17.5, "big": 50},
    "no big neighbour": {"small": 17.5},
    "long against short": {"short": 150, "long": 15},
    "long against short, weights 3 and 1": {"short": 150, "long": 15},
}
"""Requests a second of each group of tenants, at four slots that never change."""
STEPPED: Mapping[str, Mapping[str, float]] = {
    "unknown lengths at 1x": {"heavy": 3.8, "light": 1},
    "unknown lengths at 2x": {"heavy": 7.7, "light": 1.9},
    "unknown lengths at 10x": {"heavy": 38, "light": 9.6},
    "most without a limit at 10x": {"heavy": 38, "light": 9.6},
    "unknown lengths at 20x": {"heavy": 77, "light": 19},
    "long prompts against long answers": {"short": 10, "long": 3.5},
}
"""The same on the worker that batches continuously, which stays as it is."""


@dataclass(frozen=True, slots=True)
class Short:
    """How a case is played here: with which rates, and with which changes beside its own."""

    rates: Mapping[str, float]
    sets: tuple[str, ...] = ()
    offers: int = OFFERS


SHORTENED: dict[str, Short] = {
    **{name: Short(rates, FOUR_SLOTS) for name, rates in STEADY.items()},
    **{name: Short(rates, offers=OFFERS // 2) for name, rates in STEPPED.items()},
    "burst": Short(
        {"tenant": 37.5}, (*FOUR_SLOTS, "tenants.tenant.arrivals.phases=[{from_s: 2, until_s: 3, times: 13.3333}]")
    ),
    "burst of unknown lengths": Short(
        {"heavy": 2.9, "light": 0.7},
        tuple(
            f"tenants.{group}.arrivals.phases=[{{from_s: 20, until_s: 26, times: 13.3333}}]"
            for group in ("heavy", "light")
        ),
    ),
    "retry storm": Short({"tenant": 37.5}, (*TWO_AND_TWO, "workers.0.failures=[{from_s: 2, until_s: 5}]")),
    "hints": Short(
        {"tenant": 25}, (*FOUR_SLOTS, "tenants.tenant.arrivals.phases=[{from_s: 2, until_s: 3, times: 20}]")
    ),
    "ladder": Short(
        {"tenant": 6.7}, (*FOUR_SLOTS, "tenants.tenant.arrivals.phases=[{from_s: 2, until_s: 14, times: 6}]")
    ),
    "one worker of two lost": Short(
        {"tenant": 37.5}, (*TWO_AND_TWO, "workers.0.failures=[{from_s: 2, until_s: 6, workers: 1}]")
    ),
    "one worker of two slow": Short(
        {"tenant": 37.5},
        (*TWO_AND_TWO, "workers.0.failures=[{from_s: 2, until_s: 8, kind: slow, factor: 4, workers: 1}]"),
    ),
    "one slow answer": Short(
        {"patient": 8, "prompt": 4.5},
        (*FOUR_SLOTS, "workers.0.failures=[{from_s: 2, until_s: 2.2, kind: slow, factor: 40}]"),
    ),
    "a slow minute": Short(
        {"tenant": 37.5}, (*FOUR_SLOTS, "workers.0.failures=[{from_s: 2, until_s: 6, kind: slow, factor: 4}]")
    ),
    "a cold restart": Short(
        {"tenant": 37.5},
        (*FOUR_SLOTS, "workers.0.failures=[{from_s: 2, until_s: 3}, {from_s: 3, until_s: 4, kind: slow, factor: 8}]"),
    ),
    "a model that loads at its first use": Short(
        {"tenant": 37.5}, (*FOUR_SLOTS, "workers.0.failures=[{from_s: 0, until_s: 0.2, kind: slow, factor: 40}]")
    ),
}


@dataclass(frozen=True, slots=True)
class Play:
    """One case with one policy and one seed, and after how many offers it ends."""

    case: Case
    rates: Mapping[str, float]
    policy: str
    seed: int
    offers: int

    @property
    def name(self) -> str:
        return f"{self.policy}, seed {self.seed}"

    def record(self, clear: int) -> Recorded:
        """Play it. `clear` is how many decisions are kept as text."""
        scenario = self.case.at(self.seed)
        simulation = prepare(scenario, CHOICES[self.policy], Measured(UNUSED, self.rates))
        recorded = Recorded(simulation.policy, clear)
        simulation.policy = recorded  # type: ignore[assignment]  # it asks the policy for what it has not itself
        simulation._offer = recorded.offer
        slice_s, now = SLICE_OFFERS / sum(self.rates.values()), 0.0
        while recorded.offers < self.offers and now < LASTS_S:
            now += slice_s
            simulation.run_until(now)
        return recorded


def plays(name: str) -> Iterator[Play]:
    """Every play of a case."""
    case, short = CASES[name], SHORTENED[name.removesuffix(FOR_A_MINUTE)]
    shortened = msgspec.structs.replace(case, sets=(*case.sets, *short.sets), duration_s=LASTS_S)
    for policy in case.compared:
        for seed in SEEDS if policy.startswith("weir") else SEEDS[:1]:
            yield Play(shortened, short.rates, policy, seed, _offers(name, policy, seed))


def _offers(name: str, policy: str, seed: int) -> int:
    if not policy.startswith("weir") or seed != SEEDS[0]:
        return OFFERS_OF_OTHERS
    return OFFERS_OF_A_MINUTE if name.endswith(FOR_A_MINUTE) else SHORTENED[name].offers
