"""Rounds of the same load on each router in turn, and what their medians come to."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from prometheus_client import generate_latest

from loadtests.bench.client import open_loop
from loadtests.bench.observing.collector import collecting
from loadtests.bench.observing.moods import MOODS, in_mood
from loadtests.bench.observing.stand import TENANTS, Router, Variant, ask, questions, standing
from loadtests.bench.observing.subject import EVERYTHING
from loadtests.report.figure import Figure
from loadtests.report.progress import Say
from services.core.outcome import Outcome
from services.router.observing.metrics import RouterMetrics
from services.runtime.exposition import Registry, page_of

LEAST_SHARE = 0.95
"""Of what the unobserved router does."""
LATENCY_RATE = 200
LOADS_A_MOOD = 5
LONGER = 4
"""So many times the requests for a router that is watched until it has exported: at rest it costs something, too."""


def variants(traces_url: str) -> dict[str, Variant]:
    """The first is what the others are compared with."""
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


async def observed(rounds: int, requests: int, say: Say) -> list[Figure]:
    """What each way to be observed leaves of the unobserved router's throughput."""
    with tempfile.TemporaryDirectory() as folder, collecting() as traces_url:
        async with standing(variants(traces_url), Path(folder)) as routers:
            for router in routers:
                await ask(router, requests // 4)  # warm
            for at in range(rounds):
                for router in [*routers[at % len(routers) :], *routers[: at % len(routers)]]:
                    cpu_us, per_second = await ask(router, requests * (LONGER if router.settle_s else 1))
                    router.cpu_us.append(cpu_us)
                    router.per_second.append(per_second)
                say(f"round {at + 1} of {rounds}")
    return list(compared(routers))


def compared(routers: list[Router]) -> list[Figure]:
    """Each against the first."""
    first, *others = routers
    alone = undisturbed(first.cpu_us)
    figures = [Figure(f"observed: {first.name}", alone, "us of CPU a request", note=_wall(first))]
    for router in others:
        cost = undisturbed(router.cpu_us)
        target = LEAST_SHARE if router.name == "everything" else None
        note = f"{cost:.1f} us of CPU a request; {_wall(router)}"
        figures.append(Figure(f"observed: {router.name}", alone / cost, "of the throughput", target, note=note))
    return figures


def undisturbed(costs: list[float]) -> float:
    """The mean of the cheapest quarter of the rounds: whoever else is busy on the machine only makes them dearer."""
    ordered = sorted(costs)
    return statistics.mean(ordered[: max(1, len(ordered) // 4)])


def _wall(router: Router) -> str:
    return f"{max(router.per_second):,.0f} requests/s by the clock, at best"


async def scraped(rounds: int, requests: int, seconds: float, say: Say) -> list[Figure]:
    """What each mood of Prometheus leaves of the throughput when nobody scrapes, and what it adds to the latency."""
    with tempfile.TemporaryDirectory() as folder:
        async with standing({"everything": Variant()}, Path(folder)) as (router,):
            cost: dict[str, list[float]] = {name: [] for name in MOODS}
            p99: dict[str, list[float]] = {name: [] for name in MOODS}
            p50: dict[str, list[float]] = {name: [] for name in MOODS}
            await ask(router, requests)
            for at in range(rounds):
                for name, mood in MOODS.items():
                    async with in_mood(mood, router.metrics_port):
                        cost[name] += [(await ask(router, requests))[0] for _ in range(LOADS_A_MOOD)]
                        tally = await open_loop(router.port, questions(router.port)[0], LATENCY_RATE, seconds)
                    p50[name].append(tally.quantile_ms(0.5))
                    p99[name].append(tally.quantile_ms(0.99))
                say(f"round {at + 1} of {rounds}")
    return list(moods_compared(cost, p50, p99))


def moods_compared(
    cost: dict[str, list[float]], p50: dict[str, list[float]], p99: dict[str, list[float]]
) -> list[Figure]:
    """Against Prometheus gone."""
    quiet = next(iter(cost))
    alone = undisturbed(cost[quiet])
    figures = []
    for name, costs in cost.items():
        latency = f"p50 {min(p50[name]):.2f} ms, p99 {min(p99[name]):.2f} ms at {LATENCY_RATE}/s, at best"
        if name == quiet:
            figures.append(Figure(f"Prometheus {name}", alone, "us of CPU a request", note=latency))
        else:
            share = alone / undisturbed(costs)
            figures.append(Figure(f"Prometheus: {name}", share, "of the throughput", LEAST_SHARE, note=latency))
    return figures


def page_written() -> list[Figure]:
    """A page of seventeen tenants, six outcomes of each, by both writers."""
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
