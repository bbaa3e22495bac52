"""The traffic that the proof is about: scenarios that ship with Weir, at a load, with changes as on the command line.

So each case can be looked at alone: `weir simulate SCENARIO --load L --set ...`. What counts is what arrives from
second 3 to 3 s before the end. Loads are multiples of the capacity that is measured in the same run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loadtests.scenarios.changes import Changes, changed
from loadtests.scenarios.model import PolicyChoice, Scenario, find, load_raw, parse

OTHERS = ("fifo", "bounded_fifo", "fifo_ttl", "round_robin_ttl", "round_robin_ttl_cancel", "vtc")
ALL = ("weir", *OTHERS)
CLAMPED = ("weir_with_clamp", *ALL)
CHOICES: Mapping[str, PolicyChoice] = {
    **{name: PolicyChoice(policy=name) for name in ALL},  # type: ignore[arg-type]  # a name is a policy's
    "weir_with_clamp": PolicyChoice(policy="weir", label="weir_with_clamp", may_clamp=True),
    "weir_without_ladder": PolicyChoice(policy="weir", label="weir_without_ladder", max_level=0),
}
COUNTED = ("warm_up_s=3", "cool_down_s=3")


@dataclass(frozen=True, slots=True)
class Case:
    """One situation that policies are put into."""

    name: str
    scenario: str
    duration_s: float
    load: float | None = None
    sets: tuple[str, ...] = ()
    """Changes, as `--set` takes them."""
    without: tuple[str, ...] = ()
    """Tenants left out: to see the others alone."""
    policies: tuple[str, ...] = ALL
    trace: Path | None = None
    oracle: bool = False
    """Whether to reckon what one who knew everything could have served."""

    def at(self, seed: int) -> Scenario:
        """What to simulate."""
        changes = Changes(sets=(*COUNTED, f"duration_s={self.duration_s:g}", *self.sets), trace=self.trace)
        path = find(self.scenario)
        scenario = parse(changed(load_raw(path), changes), name=self.name, folder=path.parent)
        if self.load is not None:
            scenario = scenario.at_load(self.load)
        present = tuple(group for group in scenario.tenants if group.name not in self.without)
        return scenario.model_copy(update={"tenants": present, "sweep": None}).with_seed(seed)

    def lasting(self, duration_s: float) -> Case:
        """The same for a shorter or longer time."""
        return replace(self, duration_s=duration_s)

    @property
    def command(self) -> str:
        """How to see it with `weir simulate`, but for tenants left out."""
        parts = ["weir simulate", self.scenario, f"--duration {self.duration_s:g}"]
        if self.load is not None:
            parts.append(f"--load {self.load:g}")
        if self.trace is not None:
            parts.append(f"--trace {self.trace.name}")
        return " ".join([*parts, *(f"--set '{each}'" for each in self.sets)])


EQUAL_LOADS = (2, 5, 10, 20)
UNKNOWN_LOADS = (10, 20)
STEPS = (
    "workers=[{kind: steps, slots: 16, base_ms: 20, per_sequence_ms: 0.5, per_prefill_token_ms: 0.1,"
    " chunk_tokens: 256}]"
)


PROMPTS_AGAINST_ANSWERS = (
    STEPS,
    "tenants.short.prompt_tokens={kind: log_normal, median: 1000, p95: 2500, most: 4000}",
    "tenants.short.completion_tokens={kind: log_normal, median: 20, p95: 60, least: 1}",
    "tenants.short.deadline_s={kind: uniform, low: 20, high: 60}",
    "tenants.long.prompt_tokens=60",
    "tenants.long.deadline_s={kind: uniform, low: 20, high: 60}",
)
"""On continuous batching: one tenant's cost is all reading, the other's all writing (VTC's example)."""
BURST = (
    "tenants.heavy.arrivals.phases=[{from_s: 100, until_s: 120, times: 13.3333}]",
    "tenants.light.arrivals.phases=[{from_s: 100, until_s: 120, times: 13.3333}]",
)
EIGHT_SLOTS = ("workers.0.count=1",)
FOR_A_MINUTE = ", for a minute"


def _all() -> Iterator[Case]:
    """Every case of the proof, but for traces."""
    for load in (1, *EQUAL_LOADS):
        yield Case(f"equal at {load}x", "sweep", 16, load, oracle=load in (1, 2, 10))
    for load in (1, 2, *UNKNOWN_LOADS):
        yield Case(f"unknown lengths at {load}x", "steps_overload", 400, load, policies=CLAMPED, oracle=load != 20)
    for load in (3, 10):
        yield Case(f"300 tenants at {load}x", "many_tenants", 16, load)
    yield Case("mixed deadlines at 3x", "mixed_deadlines", 20)
    yield Case("neighbour of equal size at 50x", "noisy_neighbour", 16, 50, sets=EIGHT_SLOTS)
    yield Case("no neighbour", "noisy_neighbour", 60, sets=EIGHT_SLOTS, without=("aggressor",))
    yield Case("neighbour ten times bigger at 10x", "big_neighbour", 60, 10)
    yield Case("no big neighbour", "big_neighbour", 60, without=("big",))
    yield Case("long against short", "long_against_short", 66)
    weights = ("tenants.long.weight=3",)
    yield Case("long against short, weights 3 and 1", "long_against_short", 66, sets=weights, policies=("weir", "vtc"))
    yield Case("long prompts against long answers", "long_against_short", 200, sets=PROMPTS_AGAINST_ANSWERS)
    yield Case("burst", "burst", 60, oracle=True)
    yield Case("burst of unknown lengths", "steps_overload", 300, 0.75, sets=BURST, policies=CLAMPED)
    yield Case("retry storm", "retry_storm", 100)
    yield Case("hints", "hints", 60, policies=("weir",))
    yield Case("ladder", "ladder", 120, policies=("weir", "weir_without_ladder", *OTHERS))
    yield Case("one worker of two lost", "outage", 70, policies=("weir",))
    yield Case("one worker of two slow", "slow_worker", 80, policies=("weir",))


def _for_a_minute() -> Iterator[Case]:
    """Long enough to learn how good predictions are, and for Jain's index of 60 s. Nobody else predicts."""
    for name in ("equal at 2x", "equal at 5x", "300 tenants at 3x", "300 tenants at 10x", "mixed deadlines at 3x"):
        who = ("weir", "vtc") if name == "300 tenants at 10x" else ("weir",)
        yield replace(CASES[name], name=f"{name}{FOR_A_MINUTE}", duration_s=66.0, policies=who, oracle=False)


CASES: dict[str, Case] = {case.name: case for case in _all()}
CASES |= {case.name: case for case in _for_a_minute()}

MIXES = (
    *(f"equal at {load}x" for load in EQUAL_LOADS),
    *(f"unknown lengths at {load}x" for load in UNKNOWN_LOADS),
    "300 tenants at 3x",
    "300 tenants at 10x",
    "mixed deadlines at 3x",
    "neighbour of equal size at 50x",
    "neighbour ten times bigger at 10x",
    "long against short",
    "long prompts against long answers",
    "burst",
)
"""All kinds of traffic, with no worker failing."""
LEARNED = (
    *(case.name for case in _for_a_minute()),
    *(f"unknown lengths at {load}x" for load in UNKNOWN_LOADS),
    "neighbour ten times bigger at 10x",
    "long against short",
    "long prompts against long answers",
    "burst",
)
"""Those that last a minute or more."""


def replays(traces: Sequence[Path]) -> list[Case]:
    """A case for each trace file: as its scenario has it, for ten minutes of it."""
    return [Case(f"replay of {path.stem}", _replays(path), 600, trace=path) for path in traces]


def _replays(path: Path) -> str:
    return "servegen" if "servegen" in path.name else "azure_code"
