"""Whether an answer comes in time, whatever is wrong: every condition under the same open load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from loadtests.bench.client import closed_loop
from loadtests.bench.retrieval.corpus import questions
from loadtests.bench.retrieval.faults import CONDITIONS, Condition
from loadtests.bench.retrieval.load import ANEW, KNOWN, NEW, Questions, Seen, offered
from loadtests.bench.retrieval.stand import BUDGET_MS, Service, Stand
from loadtests.report.figure import Figure

BOUND_MS = 1.25 * BUDGET_MS
RATES = {KNOWN: 20.0, ANEW: 10.0, NEW: 10.0}  # a second; two in four need a vector, which is what takes the processors
KNOWN_QUESTIONS = 20
LATE_MS = 5.0  # from here on the client's own lateness is worth a word
KNOW_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Line:
    """One condition, and how its questions fared."""

    condition: str
    seen: Seen
    recovered_s: float


async def measure(
    stand: Stand, seconds: float, *, wanted: Sequence[Condition] = CONDITIONS, say: Callable[[str], None]
) -> list[Line]:
    """Each condition in turn, from health to health."""
    new = questions()
    known = [next(new) for _ in range(KNOWN_QUESTIONS)]
    lines = []
    async with stand.service(by_wire=True) as service:
        asked = Questions(service.port, known, new, BUDGET_MS)
        for condition in wanted:
            await know(service, asked)
            async with condition.begin(stand) as strike:
                seen = await offered(asked, service.port, RATES, seconds, strike=strike)
            lines.append(Line(condition.name, seen, await service.until_well()))
            say(f"{condition.name}: p99 {seen.quantile_ms(0.99):.0f} ms; {seen.mix}")
    return lines


async def know(service: Service, asked: Questions) -> None:
    """Ask what is known until all of it is in the cache."""
    loop = asyncio.get_running_loop()
    until = loop.time() + KNOW_WITHIN_S
    for request in asked.each_known():
        source = ""
        while source != "cache" and loop.time() < until:
            tally = await closed_loop(service.port, request, 1, 0.01, judge=source_of)
            source = next(reversed(tally.verdicts), "")


def source_of(body: bytes) -> str:
    """Where a reply says its passages came from; an error says nothing of it."""
    _, _, rest = body.partition(b'"source":"')
    return rest.partition(b'"')[0].decode() or "error"


def figures(lines: Sequence[Line]) -> Iterator[Figure]:
    """The quantile that is promised, by condition; the mix is its note."""
    for line in lines:
        name = f"p99 with {line.condition}"
        yield Figure(name, line.seen.quantile_ms(0.99), "ms", BOUND_MS, at_least=False, note=note(line.seen))


def note(seen: Seen) -> str:
    """Sources, reasons, and what was not as it should be."""
    parts = [f"p50 {seen.quantile_ms(0.5):.0f} ms; {seen.mix}"]
    if seen.unanswered:
        parts.append(f"{seen.unanswered} of {seen.asked} were not answered")
    late_ms = seen.late_quantile_ms(0.99)
    if late_ms >= LATE_MS:
        parts.append(f"the client itself was up to {late_ms:.0f} ms late (p99)")
    return "; ".join(parts)
