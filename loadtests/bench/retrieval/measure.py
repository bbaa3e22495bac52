"""Measures retrieval: every condition under the same open load, throughput, and the cost of its embedder."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from loadtests.bench.retrieval.corpus import questions
from loadtests.bench.retrieval.faults import CONDITIONS
from loadtests.bench.retrieval.load import KNOWN, NEW, REFRESHED, Questions, Seen, offered
from loadtests.bench.retrieval.stand import BUDGET_MS, Service, Stand
from loadtests.cluster.usage import rss_mb
from loadtests.load.closed import LoopResults, closed_loop, closed_number, post
from loadtests.paths import ROOT
from loadtests.report.figure import Figure, at_most
from loadtests.report.progress import Say

BOUND_MS = 1.25 * BUDGET_MS
RATES = {
    KNOWN: 20.0,
    REFRESHED: 10.0,
    NEW: 10.0,
}  # a second; two in four need a vector, which takes most processor time
KNOWN_QUESTIONS = 20
LATE_MS = 5.0  # from here on the client's own lateness is noted
KNOW_WITHIN_S = 20.0
CACHED_PER_S, UNCACHED_PER_S = 1_500, 300
CLIENTS = (1, 16)
FAST_QUESTIONS = 100
DOCUMENTS = ROOT / "docs" / "decisions"


@dataclass(frozen=True, slots=True)
class Line:
    condition: str
    seen: Seen
    recovered_s: float


async def conditions(stand: Stand, seconds: float, say: Say) -> list[Line]:
    """Each condition in turn, starting from a healthy service."""
    new = questions()
    known = [next(new) for _ in range(KNOWN_QUESTIONS)]
    lines = []
    async with stand.service(by_wire=True) as service:
        asked = Questions(service.port, known, new, BUDGET_MS)
        for name, condition in CONDITIONS.items():
            await know(service, asked)
            async with AsyncExitStack() as struck:
                strike = partial(struck.enter_async_context, condition(stand))
                seen = await offered(asked, service.port, RATES, seconds, strike=strike)
            lines.append(Line(name, seen, await service.until_well()))
            say(f"{name}: p99 {seen.quantile_ms(0.99):.0f} ms; {seen.mix}")
    return lines


async def know(service: Service, asked: Questions) -> None:
    """Ask the known questions until all of them are in the cache."""
    loop = asyncio.get_running_loop()
    until = loop.time() + KNOW_WITHIN_S
    for request in asked.each_known():
        source = ""
        while source != "cache" and loop.time() < until:
            (source,) = (await closed_number(service.port, [request], 1, 1, judge=source_of)).verdicts


def source_of(body: bytes) -> str:
    """The source that a reply names; `error` if it names none."""
    _, _, rest = body.partition(b'"source":"')
    return rest.partition(b'"')[0].decode() or "error"


def figures(lines: Sequence[Line]) -> list[Figure]:
    return [_in_time(f"p99 with {line.condition}", line.seen) for line in lines]


def _in_time(name: str, seen: Seen) -> Figure:
    return at_most(name, seen.quantile_ms(0.99), BOUND_MS, "ms", note(seen))


def note(seen: Seen) -> str:
    parts = [f"p50 {seen.quantile_ms(0.5):.0f} ms; {seen.mix}"]
    if seen.unanswered:
        parts.append(f"{seen.unanswered} of {seen.asked} were not answered")
    late_ms = seen.late_quantile_ms(0.99)
    if late_ms >= LATE_MS:
        parts.append(f"the client itself was up to {late_ms:.0f} ms late (p99)")
    return "; ".join(parts)


async def speed(stand: Stand, seconds: float) -> list[Figure]:
    """With precomputed vectors: closed loops of one client and of several, then an open one at each target."""
    new = questions(seed=11)
    async with stand.service(precomputed=True) as service:
        asked = Questions(service.port, [next(new) for _ in range(FAST_QUESTIONS)], new, BUDGET_MS)
        await know(service, asked)
        known = itertools.cycle(asked.each_known())
        loads = [
            ("cached", "cache", CACHED_PER_S, lambda: next(known), CLIENTS),
            ("uncached", "db", UNCACHED_PER_S, asked.next_new, CLIENTS),
            ("uncached, by vectors only", "db", None, lambda: asked.next_new(hybrid=False), CLIENTS[-1:]),
        ]
        found = []
        for name, source, target, request, numbers in loads:
            for clients in numbers:
                results = await closed_loop(service.port, request, clients, seconds, judge=source_of)
                found.append(_throughput(name, results, clients, source, target))
        for name, kind, rate in (("cached", KNOWN, CACHED_PER_S), ("uncached", NEW, UNCACHED_PER_S)):
            await service.until_well()
            await know(service, asked)
            seen = await offered(asked, service.port, {kind: float(rate)}, seconds)
            found.append(_in_time(f"{name}, an open loop at {rate:,}/s: p99", seen))
    return found


def _throughput(kind: str, results: LoopResults, clients: int, wanted: str, target: float | None) -> Figure:
    """Counts only answers from `wanted`. A single client waits for each answer, so it has no target."""
    others = results.per_second - results.rate_of(wanted)
    note_text = f"p50 {results.quantile_ms(0.5):.1f} ms, p99 {results.quantile_ms(0.99):.1f} ms"
    if others:
        note_text += f"; {others:,.0f}/s more were answered within their budget without a result for lack of time"
    name = f"{kind}, precomputed vectors, {clients} client{'s' if clients > 1 else ''}"
    return Figure(name, results.rate_of(wanted), "requests/s", target if clients > 1 else None, note=note_text)


async def embedder(stand: Stand, seconds: float) -> list[Figure]:
    """One short question, an ingest of this project's decision records, and idle memory."""
    async with stand.service() as service:
        idle_mb = rss_mb(service.pid)
        asked = _embeddings(service.port)
        one = await closed_loop(service.port, lambda: next(asked), 1, seconds)
        grown = f"{rss_mb(service.pid):.0f} MB after embedding"
    return [
        at_most("idle memory, embedder included", idle_mb, 400, "MB", grown),
        Figure("embedding one question, p50", one.quantile_ms(0.5), "ms", note=f"{one.per_second:,.0f}/s"),
        await _ingest(stand),
    ]


def _embeddings(port: int) -> Iterator[bytes]:
    for number in itertools.count(1):
        text = f"What happens when the worker drains, for the {number}. time?"
        yield post(port, "/embed", json.dumps({"input": [text]}).encode())


async def _ingest(stand: Stand) -> Figure:
    """Chunks a second of a first ingest (reading, embedding and writing), as the ingester reports it."""
    arguments = ["-m", "services.retrieval.ingest", str(DOCUMENTS), "--tenant", "documents", "--progress", "json"]
    env = {**os.environ, **stand.environment()}
    child = await asyncio.create_subprocess_exec(sys.executable, *arguments, env=env, stdout=asyncio.subprocess.PIPE)
    output, _ = await child.communicate()
    report = json.loads(output.splitlines()[-1])
    note = f"{report['embedded']} chunks of {report['added']} documents in {report['seconds']:.1f} s"
    return Figure("ingest", report["embedded"] / report["seconds"], "chunks/s", note=note)
