"""The benchmarks and their interface.

A benchmark is a module with a function `measure`, possibly a coroutine function. It returns figures with their targets,
or a `Result`: figures by part, and a page. Its parameters are any of these, by name:

    seconds     the duration of each load
    options     a struct: the benchmark's command-line options, with limits and defaults
    say         called with progress messages

`QUICK` are the options of a short run that tests the benchmark itself.
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
    seconds: Annotated[float, msgspec.Meta(ge=0.2, le=60, description="duration of each load")] = 4.0


class NoOptions(msgspec.Struct, frozen=True):
    """The options of a benchmark that has none."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One benchmark. `takes_s`: estimated seconds of a full run. `runs`: repetitions; the figures are medians."""

    about: str
    takes_s: float
    module: str = ""
    runs: int = 1
    brief: Mapping[str, Any] = field(default_factory=dict)
    """Its fixed options as a part of docs/results/bench.md."""
    brief_s: float = 0.0
    """The estimated seconds with these; 0: the same as `takes_s`."""


BENCHES: Mapping[str, Bench] = {
    "router": Bench("one core before a stub: throughput, rejections, streams, added latency, memory", 120, runs=3),
    "retrieval": Bench(
        "in time despite slow stores, retrievals a second, and the cost of embedding",
        600,
        "retrieval.bench",
        brief={"rows": 5_000, "seconds": 3.0},
    ),
    "worker": Bench("a simulated worker whose model takes no time", 12),
    "startup": Bench("`weir up` with an empty DATA_DIR, and a second time", 60),
    "simulator": Bench("requests that the simulator processes in a second of one core", 20),
    "world": Bench("requests that the whole system in virtual time processes in a second of one core", 10),
    "ablation": Bench("what each statistical refinement of the core is worth, in every scenario", 1500),
    "core": Bench("microseconds of a decision, and of each mechanism of the core", 45),
    "governor": Bench(
        "speed, limits of memory and connections, and a burst",
        170,
        "governor.bench",
        brief_s=20,
        brief={"only": ["speed", "burst"], "seconds": 2.0, "rounds": 1, "stub_s": 2.0, "back_s": 0.1, "crowd": 0},
    ),
    "generator": Bench("requests that the open loop sends from one core, and their lateness", 15),
    "edge": Bench("processor time of an HTTP request whose handler does almost nothing", 30),
    "profile": Bench("where the router's time goes: py-spy samples", 40),
    "steps": Bench("bytecode instructions of a request in the router", 30),
    "instructions": Bench("machine instructions of a request in the router; needs valgrind", 60),
    "console": Bench("the cost of the console in the router", 90),
    "gateways": Bench("Weir beside HAProxy, sglang-router and vllm-router, each on one core before stubs", 420),
    "processes": Bench("a router of one process and of several on one port, each pinned to a core", 60),
    "sockets": Bench("how two processes share a port: the spread of connections, and losses as they are replaced", 90),
    "observing": Bench("the cost of metrics, log, journal, traces and Prometheus in the router", 300),
    "batching": Bench("the gain and the cost of batching on real models; needs torch", 350, "batching.bench"),
    "recall": Bench("recall and latency of the search, compared with an exact one", 900, "search.recall"),
    "hybrid": Bench("ranking by vectors, by words, and by both", 180, "search.hybrid"),
    "semantic": Bench("error rate of a semantic cache, and the cost of a lookup", 60, "search.semantic"),
    "engine_process": Bench("the cost of an engine in its own process", 20),
}
"""By name; the module has the same name unless the entry says another."""

PARTS = (
    "router", "retrieval", "worker", "startup", "simulator", "world", "core", "governor", "generator",
)  # fmt: skip
"""The parts of docs/results/bench.md, in order."""


def module(name: str) -> ModuleType:
    """Imports the benchmark's module on demand: some need torch."""
    return import_module(f"{PACKAGE}.{BENCHES[name].module or name}")


def options(name: str) -> type[msgspec.Struct]:
    takes = inspect.signature(module(name).measure, eval_str=True).parameters
    if "options" in takes:
        return cast("type[msgspec.Struct]", takes["options"].annotation)
    return Seconds if "seconds" in takes else NoOptions


def quick(name: str) -> Mapping[str, Any]:
    return cast(
        "Mapping[str, Any]", getattr(module(name), "QUICK", {"seconds": 0.5} if options(name) is Seconds else {})
    )


def measured(name: str, given: Mapping[str, Any], say: Say) -> Result:
    """Runs one benchmark. Raises msgspec.ValidationError for an unknown option or a value out of bounds."""
    chosen, runs = msgspec.convert(given, options(name), strict=False), BENCHES[name].runs
    found = []
    for at in range(runs):
        if runs > 1:
            say(f"run {at + 1} of {runs}")
        found.append(_once(name, chosen, say))
    first = found[0]
    return first if isinstance(first, Result) else _result(name, first if runs == 1 else median(cast(Any, found)))


def _once(name: str, chosen: msgspec.Struct, say: Say) -> Result | list[Figure]:
    measure = module(name).measure
    given = {"seconds": getattr(chosen, "seconds", None), "options": chosen, "say": say}
    found = measure(**{name: given[name] for name in inspect.signature(measure).parameters})
    return cast("Result | list[Figure]", run(found) if inspect.iscoroutine(found) else found)


def _result(name: str, figures: list[Figure]) -> Result:
    return Result(f"Figures: {name}", {name: figures}, [summary(figures), figures_table(figures)])
