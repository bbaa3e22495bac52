"""How many retrievals a second, with every vector made beforehand: closed loops, and an open one at each target."""

from __future__ import annotations

import itertools

from loadtests.bench.client import Tally, closed_loop
from loadtests.bench.retrieval.budget import BOUND_MS, know, note, source_of
from loadtests.bench.retrieval.corpus import questions
from loadtests.bench.retrieval.load import KNOWN, NEW, Questions, offered
from loadtests.bench.retrieval.stand import BUDGET_MS, Stand
from loadtests.report.figure import Figure

CACHED_PER_S, UNCACHED_PER_S = 1_500, 300
CLIENTS = (1, 16)
KNOWN_QUESTIONS = 100


async def measure(stand: Stand, seconds: float) -> list[Figure]:
    """Closed loops of one client and of several, then an open one at each target."""
    new = questions(seed=11)
    figures = []
    async with stand.service(precomputed=True) as service:
        asked = Questions(service.port, [next(new) for _ in range(KNOWN_QUESTIONS)], new, BUDGET_MS)
        await know(service, asked)
        known = itertools.cycle(asked.each_known())
        for clients in CLIENTS:
            tally = await closed_loop(service.port, lambda: next(known), clients, seconds, judge=source_of)
            figures.append(_figure("cached", tally, clients, "cache", CACHED_PER_S))
        for clients in CLIENTS:
            tally = await closed_loop(service.port, asked.next_new, clients, seconds, judge=source_of)
            figures.append(_figure("uncached", tally, clients, "db", UNCACHED_PER_S))
        tally = await closed_loop(
            service.port, lambda: asked.next_new(hybrid=False), CLIENTS[-1], seconds, judge=source_of
        )
        figures.append(_figure("uncached, by meaning alone", tally, CLIENTS[-1], "db"))
        for name, kind, rate in (("cached", KNOWN, CACHED_PER_S), ("uncached", NEW, UNCACHED_PER_S)):
            await service.until_well()
            await know(service, asked)
            seen = await offered(asked, service.port, {kind: float(rate)}, seconds)
            title = f"{name}, an open loop at {rate:,}/s: p99"
            figures.append(Figure(title, seen.quantile_ms(0.99), "ms", BOUND_MS, at_least=False, note=note(seen)))
    return figures


def _figure(kind: str, tally: Tally, clients: int, wanted: str, target: float | None = None) -> Figure:
    """Only answers from there count. One client waits for one answer: what it reaches is for the record."""
    others = tally.per_second - tally.rate_of(wanted)
    told = f"p50 {tally.quantile_ms(0.5):.1f} ms, p99 {tally.quantile_ms(0.99):.1f} ms"
    if others:
        told += f"; {others:,.0f}/s more were told within their budget that there is no time"
    plural = "s" if clients > 1 else ""
    name = f"{kind}, vectors made before, {clients} client{plural}"
    return Figure(name, tally.rate_of(wanted), "requests/s", target if clients > 1 else None, note=told)
