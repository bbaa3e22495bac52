"""The benches, and what each of them is.

A bench is a module with a function `measure`, which may be a coroutine function. It gives figures, which have their
targets, or a `Result`: figures by part, and a page. It takes what it needs of these, by their names:

    seconds     how long each load lasts
    options     a struct, whose fields are the bench's options on the command line, with their bounds and defaults
    say         called with a word on how far it is

`QUICK` are the options of a short run that only shows whether all of it works.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Annotated, Any, cast

import msgspec

from loadtests.cluster.processes import run
from loadtests.report.figure import Figure, median, summary
from loadtests.report.page import figures_table
from loadtests.report.progress import Say
from loadtests.report.result import Result

PACKAGE = "loadtests.bench"


class Seconds(msgspec.Struct, frozen=True):
    """The one option of a bench that takes `seconds`."""

    seconds: Annotated[float, msgspec.Meta(ge=0.2, le=60, description="how long each load lasts")] = 4.0


class NoOptions(msgspec.Struct, frozen=True):
    """The options of a bench that leaves nothing to choose."""


@dataclass(frozen=True, slots=True)
class Bench:
    """`takes_s`: about how long a whole run takes. `runs`: how often; the figures are the medians."""

    about: str
    takes_s: float
    module: str = ""
    runs: int = 1
    brief: Mapping[str, Any] = field(default_factory=dict)
    """The options with which it is a part of docs/results/bench.md, whatever is said there."""
    brief_s: float = 0.0
    """About how long that takes; 0: as long as the whole."""


BENCHES: Mapping[str, Bench] = {
    "router": Bench("one core before a stub: throughput, refusals, streams, added latency, memory", 120, runs=3),
    "retrieval": Bench(
        "in time whatever is wrong with its stores, how many a second, and what embedding costs",
        600,
        "retrieval.bench",
        brief={"rows": 5_000, "seconds": 3.0},
    ),
    "worker": Bench("a simulated worker whose model takes no time", 12),
    "startup": Bench("`weir up` from nothing, and once more", 60),
    "simulator": Bench("requests that the simulator takes through a policy in a second of one core", 20),
    "world": Bench("requests that the whole system in virtual time takes in a second of one core", 10),
    "ablation": Bench("what each statistical refinement of the core is worth, in every scenario", 1500),
    "core": Bench("microseconds of a decision, and of each mechanism of the core", 45),
    "governor": Bench(
        "its speed, what it can be made to hold, and a burst",
        170,
        "governor.bench",
        brief_s=20,
        brief={"only": ["speed", "burst"], "seconds": 2.0, "rounds": 1, "stub_s": 2.0, "back_s": 0.1, "crowd": 0},
    ),
    "generator": Bench("what the open loop sends from one core, and how late", 15),
    "edge": Bench("processor time of an HTTP request whose handler does next to nothing", 30),
    "profile": Bench("where the router's time goes: py-spy's samples", 40),
    "steps": Bench("how many steps of the interpreter a request takes in the router", 30),
    "console": Bench("what it costs a router to be looked at", 90),
    "observing": Bench("what metrics, log, journal, traces and Prometheus cost a router", 300),
    "batching": Bench("what batching is worth on real models, and its cost; needs torch", 350, "batching.bench"),
    "recall": Bench("does the search find what an exact one finds, and how soon", 900, "search.recall"),
    "hybrid": Bench("ranking by meaning, by words, and by both", 180, "search.hybrid"),
    "semantic": Bench("how often a semantic cache would be wrong, and what a look-up costs", 60, "search.semantic"),
    "engine_process": Bench("the price of an engine in a process of its own", 20),
}
"""By name, which is that of the module, unless the bench says another."""

PARTS = (
    "router", "retrieval", "worker", "startup", "simulator", "world", "core", "governor", "generator",
)  # fmt: skip
"""Of docs/results/bench.md, in its order."""


def module(name: str) -> ModuleType:
    """It is imported when it is wanted: some need torch, and others start in no time."""
    return import_module(f"{PACKAGE}.{BENCHES[name].module or name}")


def options(name: str) -> type[msgspec.Struct]:
    """What may be chosen."""
    takes = inspect.signature(module(name).measure, eval_str=True).parameters
    if "options" in takes:
        return cast("type[msgspec.Struct]", takes["options"].annotation)
    return Seconds if "seconds" in takes else NoOptions


def quick(name: str) -> Mapping[str, Any]:
    """The options of a short run."""
    return cast(
        "Mapping[str, Any]", getattr(module(name), "QUICK", {"seconds": 0.5} if options(name) is Seconds else {})
    )


def measured(name: str, given: Mapping[str, Any], say: Say) -> Result:
    """One bench. Raises msgspec.ValidationError for an option that is none, or is out of bounds."""
    chosen, runs = msgspec.convert(given, options(name), strict=False), BENCHES[name].runs
    found = []
    for at in range(runs):
        if runs > 1:
            say(f"run {at + 1} of {runs}")
        found.append(_once(name, chosen, say))
    first = found[0]
    return first if isinstance(first, Result) else _told(name, first if runs == 1 else median(cast(Any, found)))


def _once(name: str, chosen: msgspec.Struct, say: Say) -> Result | list[Figure]:
    measure = module(name).measure
    given = {"seconds": getattr(chosen, "seconds", None), "options": chosen, "say": say}
    found = measure(**{name: given[name] for name in inspect.signature(measure).parameters})
    return cast("Result | list[Figure]", run(found) if inspect.iscoroutine(found) else found)


def _told(name: str, figures: list[Figure]) -> Result:
    return Result(f"Figures: {name}", {name: figures}, [summary(figures), figures_table(figures)])
