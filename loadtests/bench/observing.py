"""The cost of observation in the router: metrics, log, journal, traces, and ways to scrape it. See `METHOD`."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from time import perf_counter
from typing import Annotated

import msgspec
from prometheus_client import generate_latest

from loadtests.bench.moods import MOODS, in_mood
from loadtests.bench.silenced import EVERYTHING
from loadtests.bench.stand import CONNECTIONS, TENANTS, Router, of_tenants, router_before, standing
from loadtests.bench.stub import stub
from loadtests.cluster.usage import cores, cpu_s, pinned
from loadtests.load.closed import closed_number
from loadtests.load.figures import Quantiles, quantiles
from loadtests.load.rates import Same, at_rates
from loadtests.report.figure import Figure, summary
from loadtests.report.page import figures_table
from loadtests.report.progress import Say
from loadtests.report.result import Result
from services.core.outcome import Outcome
from services.router.telemetry.metrics import RouterMetrics
from services.runtime.exposition import Registry, page_of

MIN_SHARE = 0.95
"""Target: share of the unobserved router's throughput; of the unscraped router's, for ways to scrape."""
MIN_TRACED_SHARE = 0.75
TARGETS = {"everything": MIN_SHARE, "everything, and all traced": MIN_TRACED_SHARE}
RATE = 200.0
LOADS_A_MOOD = 5
LONGER = 4
"""Factor of the requests for a router that exports traces: its wait for the export costs time, too."""
EXPORT_S = 1.3
METHOD = """\
**Observed.** Routers that differ in their observation, before one stub that answers at once: chat completions of
sixteen tenants, {requests:,} a round over 32 connections, {rounds} rounds, each router once in every round and in
another order. `nothing` has no metrics, no journal and no log line for a request; `everything` is the default router,
its log written to a file. Traced means exported to a collector that accepts everything. All run the Python sources,
since nothing can be taken out of the compiled ones; what they spend is counted by `instructions`.

The cost of a request is the processor time of the router's process, threads included. A router has one core, so its
throughput is the reciprocal of that cost; the figure is the unobserved router's cost over the observed one's. Each cost
is the mean of the cheapest quarter of the rounds, since other load on the machine only makes a round more expensive.
Exports after a round count in its cost. Requests a second of wall time are for the record.

**Prometheus.** The default router under the same load, while its metrics are read in the named way. Latency is measured
afterwards with the same reads: Poisson arrivals, 200 a second, {seconds:g} s each, from the intended time. "Gone" is no
reads at all. The eight that read a byte a second are cut off after ten seconds, and reconnect.

**The page** is the router's part of the metrics for sixteen tenants and `other` with six outcomes each, written in this
process.
"""


class Options(msgspec.Struct, frozen=True):
    rounds: Annotated[int, msgspec.Meta(ge=1, le=1000, description="how often each router is loaded")] = 40
    requests: Annotated[int, msgspec.Meta(ge=100, description="requests of a round")] = 1600
    seconds: Annotated[float, msgspec.Meta(ge=0.5, le=60, description="how long latency is measured")] = 4.0


QUICK = {"rounds": 2, "requests": 200, "seconds": 0.5}


@dataclass(frozen=True)
class Variant:
    """How a router is observed: the parts that are off, and its settings."""

    silent: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def settle_s(self) -> float:
        """Seconds after a load until the exports are done."""
        return EXPORT_S if self.settings else 0.0


@dataclass
class Costs:
    """Of each round: microseconds of processor time a request, and requests a second of wall time."""

    cpu_us: list[float] = field(default_factory=list)
    per_second: list[float] = field(default_factory=list)

    @property
    def undisturbed(self) -> float:
        """The mean of the cheapest quarter of the rounds: other load only makes them more expensive."""
        ordered = sorted(self.cpu_us)
        return statistics.mean(ordered[: max(1, len(ordered) // 4)])

    async def round(self, router: Router, requests: int, settle_s: float = 0.0) -> None:
        cpu_before_s = cpu_s(router.pid)
        results = await closed_number(router.port, of_tenants(router.port), CONNECTIONS, requests)
        await asyncio.sleep(settle_s)
        spent_s = cpu_s(router.pid) - cpu_before_s
        results.only(200)
        answered = results.statuses[200]
        self.cpu_us.append(spent_s / answered * 1e6)
        self.per_second.append(answered / results.wall_s)


def variants(traces_url: str) -> dict[str, Variant]:
    """The variants by name. The others are compared with the first."""
    exported = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": traces_url}
    share = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"}
    return {
        "nothing": Variant(EVERYTHING),
        "everything": Variant(),
        "all but metrics": Variant(("metrics",)),
        "all but the log": Variant(("log",)),
        "all but the journal": Variant(("journal",)),
        "everything, and 1 % traced": Variant(settings={**exported, **share}),
        "everything, and all traced": Variant(settings=exported),
    }


async def measure(options: Options, say: Say) -> Result:
    figures = page_written()
    figures += compared(await _observed(options, say))
    figures += moods_compared(*await _scraped(options, say))
    return result(figures, options)


async def _observed(options: Options, say: Say) -> dict[str, Costs]:
    async with AsyncExitStack() as stack:
        stack.enter_context(pinned(cores()[1]))
        stub_port, collector = [await stack.enter_async_context(stub()) for _ in range(2)]  # a stub accepts all traces
        chosen = variants(f"http://127.0.0.1:{collector}")
        routers = {}
        for name, variant in chosen.items():
            words = ("loadtests.bench.silenced", ",".join(variant.silent))
            settings = {"PROBE_INTERVAL_S": "5", "WEIR_CODE": "python", **variant.settings}
            routers[name] = await stack.enter_async_context(router_before(stub_port, settings, words=words))
            await Costs().round(routers[name], options.requests // 4)  # warm-up
        costs = {name: Costs() for name in chosen}
        names = list(chosen)
        for at in range(options.rounds):
            for name in [*names[at % len(names) :], *names[: at % len(names)]]:
                settle_s = chosen[name].settle_s
                requests = options.requests * (LONGER if settle_s else 1)
                await costs[name].round(routers[name], requests, settle_s)
            say(f"round {at + 1} of {options.rounds}")
    return costs


def compared(costs: Mapping[str, Costs]) -> list[Figure]:
    (first, alone), *others = costs.items()
    figures = [Figure(f"observed: {first}", alone.undisturbed, "us of CPU a request", note=_wall(alone))]
    for name, cost in others:
        note = f"{cost.undisturbed:.1f} us of CPU a request; {_wall(cost)}"
        share = alone.undisturbed / cost.undisturbed
        figures.append(Figure(f"observed: {name}", share, "of the throughput", TARGETS.get(name), note=note))
    return figures


def _wall(cost: Costs) -> str:
    return f"{max(cost.per_second):,.0f} requests/s of wall time, at best"


async def _scraped(options: Options, say: Say) -> tuple[dict[str, Costs], dict[str, list[Quantiles]]]:
    costs = {name: Costs() for name in MOODS}
    waits: dict[str, list[Quantiles]] = {name: [] for name in MOODS}
    rounds = max(2, options.rounds // 8)
    async with standing({"PROBE_INTERVAL_S": "5"}) as router:
        await Costs().round(router, options.requests)
        for at in range(rounds):
            for name, mood in MOODS.items():
                async with in_mood(mood, router.metrics_port):
                    for _ in range(LOADS_A_MOOD):
                        await costs[name].round(router, options.requests)
                    ask = Same(of_tenants(router.port)[0])
                    ledger = await at_rates(router.port, {"bench": RATE}, ask, options.seconds)
                waits[name].append(quantiles(row.latency_s for row in ledger.rows))
            say(f"round {at + 1} of {rounds}")
    return costs, waits


def moods_compared(costs: Mapping[str, Costs], waits: Mapping[str, Sequence[Quantiles]]) -> list[Figure]:
    """The throughput of each way to scrape as a share of that without scrapes, and its latency."""
    quiet = next(iter(costs))
    figures = []
    for name, cost in costs.items():
        p50, p99 = min(each.p50 for each in waits[name]), min(each.p99 for each in waits[name])
        note = f"p50 {p50:.2f} ms, p99 {p99:.2f} ms at {RATE:g}/s, at best"
        if name == quiet:
            figures.append(Figure(f"Prometheus {name}", cost.undisturbed, "us of CPU a request", note=note))
        else:
            share = costs[quiet].undisturbed / cost.undisturbed
            figures.append(Figure(f"Prometheus: {name}", share, "of the throughput", MIN_SHARE, note=note))
    return figures


def page_written() -> list[Figure]:
    """The time to write a page of seventeen tenants with six outcomes each, by both writers."""
    registry = Registry()
    metrics = RouterMetrics(registry)
    for tenant in [*(f"tenant-{number}" for number in range(TENANTS)), "other"]:
        metrics.expect(tenant)
        for outcome in list(Outcome)[:6]:
            metrics.ended(tenant, outcome, 0.3)
    lines = page_of(registry).count(b"\n")
    ours, theirs = _ms(lambda: page_of(registry)), _ms(lambda: generate_latest(registry))
    return [
        Figure("a page for Prometheus", ours, "ms", note=f"{lines:,} lines, on the event loop at each scrape"),
        Figure("for scale: the same by prometheus_client", theirs, "ms"),
    ]


def _ms(write: Callable[[], object], times: int = 15) -> float:
    write()
    took = []
    for _ in range(times):
        began = perf_counter()
        write()
        took.append((perf_counter() - began) * 1000)
    return statistics.median(took)


def result(figures: Sequence[Figure], options: Options) -> Result:
    method = METHOD.format(requests=options.requests, rounds=options.rounds, seconds=options.seconds)
    blocks = [summary(figures), figures_table(figures), "## How it is measured\n\n" + method]
    return Result("The cost of observation", {"observing": figures}, blocks)
