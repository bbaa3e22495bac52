"""The six storms: what each is for, what it does, and what to look at while it does it.

Loads are multiples of capacity, so that a laptop and a large machine see the same picture. Tenants have names that no
one else in the lab uses, so that the router's counters for them are this run's alone; only `redis_gone` asks as the
tenant whose documents `weir up` ingests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from loadtests.storm.plan import Chapter, Load, Manners, Plan, Question, Step, Trouble
from loadtests.storm.sliders import DEADLINE, LEAVING, SECONDS, intensity
from services.contracts.storm import Slider

EQUALS = ("anna", "ben", "chloe")
CROWD = "crowd"
STANDSTILL = 50.0
"""As good as an outage: a step takes a second and more."""

Values = Mapping[str, float]
Need = Literal["faults", "redis"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One button. `needs`: what the bench must be able to switch for it."""

    name: str
    title: str
    caption: str
    watch: tuple[str, ...]
    sliders: tuple[Slider, ...]
    plan: Callable[[Values], Plan]
    needs: Need | None = None


def manners(values: Values, **others: float) -> Manners:
    """Answers after the deadline are late; half a deadline later everybody has left."""
    deadline_s = values.get("deadline_ms", DEADLINE.default) / 1000
    return Manners(
        deadline_s,
        patience_s=deadline_s * others.get("patience", 1.5),
        leaving_share=values.get("leaving", 0.0) / 100,
        retries=int(values.get("retries", 0)),
        obeys_hints=bool(values.get("obey_hints", 0)),
    )


def _equals(*steps: tuple[float, float]) -> tuple[Load, ...]:
    """Three tenants who ask for the same; the multiples are of all together."""
    shared = tuple(Step(from_s, times / len(EQUALS)) for from_s, times in steps)
    return tuple(Load(tenant, shared) for tenant in EQUALS)


def _steady(values: Values) -> Plan:
    return Plan(
        values["seconds"],
        _equals((0.0, values["intensity"])),
        (Chapter(0.0, "steady load"),),
        manners=manners(values),
    )


def _burst(values: Values) -> Plan:
    seconds = values["seconds"]
    begin, end = seconds * 0.25, seconds * 0.6
    return Plan(
        seconds,
        _equals((0.0, 0.5), (begin, values["intensity"]), (end, 0.5)),
        (Chapter(0.0, "before the burst"), Chapter(begin, "the burst"), Chapter(end, "after the burst")),
        manners=manners(values),
    )


def _noisy(values: Values) -> Plan:
    seconds = values["seconds"]
    begin, end = seconds * 0.2, seconds * 0.75
    quiet = tuple(Load(tenant, (Step(0.0, 0.15),)) for tenant in EQUALS[:2])
    noisy = Load(CROWD, (Step(0.0, 0.15), Step(begin, values["intensity"]), Step(end, 0.15)))
    return Plan(
        seconds,
        (*quiet, noisy),
        (Chapter(0.0, "everybody is quiet"), Chapter(begin, "crowd is loud"), Chapter(end, "everybody is quiet again")),
        manners=manners(values),
    )


def _retry_storm(values: Values) -> Plan:
    seconds = values["seconds"]
    begin = seconds * 0.2
    end = min(begin + values["outage_s"], seconds * 0.6)
    return Plan(
        seconds,
        _equals((0.0, values["intensity"])),
        (Chapter(0.0, "before the outage"), Chapter(begin, "the outage"), Chapter(end, "after the outage")),
        manners=manners(values, patience=1.0),
        troubles=(Trouble("all_workers", begin, end, STANDSTILL),),
    )


def _slow_worker(values: Values) -> Plan:
    seconds = values["seconds"]
    begin, end = seconds * 0.25, seconds * 0.7
    return Plan(
        seconds,
        _equals((0.0, values["intensity"])),
        (
            Chapter(0.0, "all are well"),
            Chapter(begin, "one worker is slow"),
            Chapter(end, "all are well again"),
        ),
        manners=manners(values),
        troubles=(Trouble("one_worker", begin, end, values["slow_factor"]),),
    )


def _redis_gone(values: Values) -> Plan:
    seconds = values["seconds"]
    begin, end = seconds * 0.3, seconds * 0.7
    return Plan(
        seconds,
        (Load("demo", (Step(0.0, values["intensity"]),)),),
        (Chapter(0.0, "the cache answers"), Chapter(begin, "the cache is silent"), Chapter(end, "the cache is back")),
        question=Question("ask", prompt_tokens=400),
        manners=manners(values),
        troubles=(Trouble("cache", begin, end),),
    )


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "steady",
            "Steady load",
            "Three tenants ask for the same amount, together less than the workers can do. Nothing special happens: "
            "this is what a healthy system looks like.",
            (
                "Lines stay short, and answers come well before their deadline.",
                "Move the load past 1: some requests are refused at once, and those that are taken still come in time.",
            ),
            (intensity("Load", 0.1, 2.0, 0.7), LEAVING, DEADLINE, SECONDS),
            _steady,
        ),
        Scenario(
            "burst",
            "Burst",
            "Three tenants ask for half of what the workers can do. Then, for a third of the run, they ask for several "
            "times as much as can be done, and then for half again.",
            (
                "With admission on, answers first become shorter, then the excess is refused at the door; "
                "what is taken comes before its deadline.",
                "With admission off, the line fills, and the workers' time goes into answers that miss their deadline.",
                "After the burst: how long until answers are on time again.",
            ),
            (intensity("Load at the peak", 1.0, 20.0, 5.0), LEAVING, DEADLINE, SECONDS),
            _burst,
        ),
        Scenario(
            "noisy_neighbour",
            "Noisy neighbour",
            "anna and ben ask for little. Then crowd, a tenant like them, asks for several times what the workers can "
            "do.",
            (
                "With fairness on, anna and ben are answered on time as before, and crowd's own excess is refused.",
                "With fairness off (first come, first served), crowd's line is everybody's line.",
            ),
            (intensity("What crowd asks for", 1.0, 20.0, 5.0), DEADLINE, SECONDS),
            _noisy,
        ),
        Scenario(
            "retry_storm",
            "Retry storm",
            "The load fits. For a few seconds the workers stand nearly still, and clients whose deadline passes ask "
            "again, at once. Then the workers are well again.",
            (
                "How soon answers are on time after the outage.",
                "With cancellation off, the workers go on computing answers for clients that have left.",
                "Clients that obey the hints come back one after the other instead of all together.",
            ),
            (
                intensity("Load", 0.1, 1.5, 0.75),
                Slider("outage_s", "Length of the outage", 2, 10, 1, 6, "s"),
                Slider("retries", "Further tries of each client", 0, 5, 1, 3),
                Slider("obey_hints", "Clients wait as long as they are told", 0, 1, 1, 0, kind="switch"),
                DEADLINE,
                SECONDS,
            ),
            _retry_storm,
            needs="faults",
        ),
        Scenario(
            "slow_worker",
            "Slow worker",
            "One worker becomes several times slower than the others, and later recovers. Nobody tells the router.",
            (
                "Requests move to the other workers, and fewer stand at the slow one.",
                "Answers of the slow worker may miss their deadline while the router learns how slow it is.",
            ),
            (
                intensity("Load", 0.1, 2.0, 0.5),
                Slider("slow_factor", "How many times as slow", 2, 20, 1, 8, "x"),
                DEADLINE,
                SECONDS,
            ),
            _slow_worker,
            needs="faults",
        ),
        Scenario(
            "redis_gone",
            "Redis gone",
            "Clients ask about the ingested documents, the same questions again and again, so that most passages come "
            "from the cache. Then the cache stops answering for a while.",
            (
                "Where passages come from: the cache, and while it is silent the database.",
                "Answers go on, and their latency hardly changes: the cache is given a few milliseconds and no more.",
            ),
            (intensity("Load", 0.1, 1.5, 0.5), DEADLINE, SECONDS),
            _redis_gone,
            needs="redis",
        ),
    )
}
