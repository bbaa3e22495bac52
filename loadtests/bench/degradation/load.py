"""Questions to `/ask` that arrive whatever becomes of those before them, and what is kept of each answer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from loadtests.bench.degradation.corpus import TENANT
from loadtests.load.answer import Answer
from loadtests.load.arrivals import Ask
from loadtests.load.client import Client
from loadtests.load.connection import Exchange
from loadtests.load.figures import Quantiles, quantiles
from loadtests.load.ledger import LATE, ON_TIME, Ledger, Row
from loadtests.load.plan import Plan, Step, Tenant
from services.core.ladder import LADDER

ANSWER_TOKENS = 48
TOP_K = 5
KNOWN = 20  # questions that are asked again and again
KNOWN_EVERY = 5
BIN_S = 1.0

PARTS = ("router", "worker", "cache", "database", "client", "embedder", "queue")
EVENTS = ("is down", "is slow", "is full", "drains", "comes back", "refuses a request", "misses its deadline")


class _Told(msgspec.Struct):
    retrieval_source: str = ""
    citations: list[object] = []


V = TypeVar("V")

_told = msgspec.json.Decoder(_Told).decode


def question(number: int) -> str:
    """The one of this number: every fifth is one of a few, all others are asked once."""
    if number % KNOWN_EVERY == 0:
        number = number // KNOWN_EVERY % KNOWN
    part, event = PARTS[number % len(PARTS)], EVENTS[number // len(PARTS) % len(EVENTS)]
    return f"What happens when the {part} {event}, for the {number}. time?"


class Questions:
    """See `loadtests.load.client.Requests`. No two runs of a bench ask the same, but for the few."""

    def __init__(self, url: str, first: int) -> None:
        self._host = urlsplit(url).netloc
        self._first = first

    def bytes_of(self, ask: Ask, number: int) -> bytes:
        body = json.dumps(fields(self._first + number)).encode()
        head = (
            f"POST /ask HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
            f"x-weir-deadline-ms: {ask.tenant.deadline_ms:g}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def fields(number: int) -> dict[str, object]:
    """What is asked of `/ask`."""
    return {"query": question(number), "tenant": TENANT, "top_k": TOP_K, "max_tokens": ANSWER_TOKENS}


class Kept(Answer):
    """An answer that also remembers where its passages came from."""

    __slots__ = ("_raw",)

    def __init__(self) -> None:
        super().__init__()
        self._raw = b""

    def body(self, data: bytes) -> bool:
        self._raw += data
        return super().body(data)

    def told(self) -> tuple[str, int]:
        """Source, and number of passages."""
        said = _told(self._raw)
        return said.retrieval_source, len(said.citations)


@dataclass
class Run:
    """One load on one router. Quantiles are those of answers, from the moment at which each should have been sent."""

    offered_per_s: float
    on_time_per_s: float
    worth_per_s: float
    with_passages_per_s: float
    refused: float
    expired: float
    failed: float
    answers_ms: Quantiles
    levels: Mapping[int, float]
    sources: Mapping[str, float]
    passages: float
    level_over_time: Sequence[tuple[float, float]]
    generator_late: float
    late_answers: int


async def ask(url: str, per_s: float, deadline_ms: float, seconds: float, warm_up_s: float, first: int) -> Run:
    """Ask so often for so long; what arrived after the warm-up and before the last second is counted.

    The same load always arrives at the same moments; its questions begin with number `first`.
    """
    tenant = Tenant(TENANT, (Step(0, per_s),), deadline_ms=deadline_ms)
    plan = Plan(seconds=seconds, tenants=(tenant,), route="ask", seed=1, warmup_s=warm_up_s, cooldown_s=1.0)
    told: dict[int, tuple[str, int]] = {}

    def listen(row: Row, exchange: Exchange) -> None:
        answer = exchange.answer
        if row.status == 200 and isinstance(answer, Kept) and not exchange.failure:
            told[row.number] = answer.told()

    ledger = await Client(plan, url, requests=Questions(url, first), answer=Kept, listen=listen).run()
    return figures(plan, ledger, told)


def figures(plan: Plan, ledger: Ledger, told: Mapping[int, tuple[str, int]]) -> Run:
    """What a ledger says; `told` has source and number of passages of the answers."""
    begin, end = plan.window
    rows = [row for row in ledger.rows if begin <= row.intended_s < end]
    served = [row for row in rows if row.ending in (ON_TIME, LATE)]
    on_time = [row for row in served if row.ending == ON_TIME]
    many, over_s = max(1, len(rows)), end - begin
    refused = sum(row.ending.startswith("refused:") for row in rows)
    return Run(
        offered_per_s=len(rows) / over_s,
        on_time_per_s=len(on_time) / over_s,
        worth_per_s=sum(LADDER[row.level].worth for row in on_time) / over_s,
        with_passages_per_s=sum(told[row.number][1] > 0 for row in on_time) / over_s,
        refused=refused / many,
        expired=sum(row.ending == "refused:deadline_expired" for row in rows) / many,
        failed=(len(rows) - refused - len(served)) / many,
        answers_ms=quantiles(row.latency_s for row in served),
        levels=_shares(row.level for row in served),
        sources=_shares(told[row.number][0] for row in served),
        passages=sum(told[row.number][1] for row in served) / max(1, len(served)),
        level_over_time=_over_time(ledger, told, plan.seconds),
        generator_late=sum(row.late_s * 1000 > plan.late_ms for row in ledger.rows) / max(1, len(ledger.rows)),
        late_answers=len(served) - len(on_time),
    )


def _shares(values: Iterable[V]) -> dict[V, float]:
    count = Counter(values)
    return {value: number / count.total() for value, number in sorted(count.items(), key=str)}


def _over_time(ledger: Ledger, told: Mapping[int, tuple[str, int]], seconds: float) -> list[tuple[float, float]]:
    """The mean level of the answers to what arrived in each second."""
    bins: dict[int, list[int]] = {}
    for row in ledger.rows:
        if row.number in told:
            bins.setdefault(int(row.intended_s / BIN_S), []).append(row.level)
    return [(place * BIN_S, sum(levels) / len(levels)) for place, levels in sorted(bins.items())]
