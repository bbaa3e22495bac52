"""The clients: one open loop for each router, on a network of its own beside it, and nothing is tried twice.

So a request whose router is gone is hit, and is counted. Every request has a nonce, which is also its `x-request-id`.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit

from loadtests.cluster.stand import key_of
from loadtests.judging.nonces import nonce, prompt
from loadtests.load.answer import Answer
from loadtests.load.arrivals import Ask
from loadtests.load.client import Client
from loadtests.load.connection import Exchange
from loadtests.load.ledger import GAVE_UP, Ledger, Row
from loadtests.load.plan import MAX_SECONDS, Plan, Step, Tenant
from loadtests.runs.integrity.questions import Kept, posted, verdict_on, word_of
from loadtests.runs.many.record import Entry
from loadtests.runs.many.sizes import ANSWER_TOKENS, DEADLINE_S, Sizes
from loadtests.runs.many.tenants import ASKERS, ingress

STREAM_SHARE = 0.5
MAX_TOKENS = ANSWER_TOKENS + 2
ROUTE = "/v1/chat/completions"
FIRST_APART = 10_000_000
"""Between the first request numbers of two clients, so that no nonce is used twice."""
LATE_S = 0.02


class Questions:
    """See `loadtests.load.client.Requests`."""

    __slots__ = ("_first", "_host")

    def __init__(self, url: str, first: int) -> None:
        self._host = urlsplit(url).netloc
        self._first = first

    def bytes_of(self, ask: Ask, number: int) -> bytes:
        word = nonce(self._first + number)
        asked = {
            "messages": [{"role": "user", "content": prompt(word)}], "max_tokens": MAX_TOKENS, "stream": ask.stream,
        }  # fmt: skip
        deadline = f"x-weir-deadline-ms: {ask.deadline_ms:g}"
        key = f"authorization: Bearer {ask.tenant.key}"
        return posted(self._host, ROUTE, json.dumps(asked).encode(), word, deadline, key)


class Listener:
    """Keeps what became of each request of one router. `record` is `loadtests.load.client.Listen`."""

    def __init__(self, router: str) -> None:
        self.entries: list[Entry] = []
        self._router = router

    def record(self, row: Row, exchange: Exchange) -> None:
        answer = exchange.answer
        sent_s = exchange.ended_at if exchange.sent_at is None else exchange.sent_at
        entry = Entry(
            word_of(exchange), row.tenant, self._router, sent_s, exchange.ended_at, verdict_on(exchange), answer.status,
            code_of(answer), exchange.failure == GAVE_UP, row.lag_s,
        )  # fmt: skip
        self.entries.append(entry)


def code_of(answer: Answer) -> str:
    """The code of a rejection, or of the event that ends a stream; empty for an answer, and where there is none."""
    return answer.outcome()[1] if answer.status else ""


def plan_of(sizes: Sizes, router: int) -> Plan:
    """The arrivals at one router, until the run stops them."""
    per_s = sizes.per_s * ingress(sizes.routers)[router]
    tenants = tuple(
        Tenant(
            asker.name, (Step(0.0, per_s * asker.part),), deadline_ms=DEADLINE_S * 1000, stream=STREAM_SHARE,
            key=key_of(asker.name),
        )
        for asker in ASKERS
    )  # fmt: skip
    return Plan(MAX_SECONDS, tenants, seed=sizes.seed * 1000 + router, warmup_s=0, cooldown_s=0)


class Asking:
    """`urls`: of the routers, by name."""

    def __init__(self, sizes: Sizes, urls: dict[str, str]) -> None:
        self._clients: list[Client] = []
        self._listeners: list[Listener] = []
        self._ledgers: list[Ledger] = []
        for number, (name, url) in enumerate(urls.items()):
            listener, questions = Listener(name), Questions(url, 1 + number * FIRST_APART)
            plan = plan_of(sizes, number)
            self._listeners.append(listener)
            self._clients.append(Client(plan, url, requests=questions, answer=Kept, listen=listener.record))

    async def run(self) -> None:
        """Send until `stop`, and wait for every end."""
        self._ledgers = list(await asyncio.gather(*(client.run() for client in self._clients)))

    def stop(self) -> None:
        for client in self._clients:
            client.stop()

    @property
    def entries(self) -> list[Entry]:
        return [entry for listener in self._listeners for entry in listener.entries]

    @property
    def unasked(self) -> int:
        return sum(client.unasked for client in self._clients)

    @property
    def late(self) -> int:
        return sum(row.late_s > LATE_S for row in self._rows())

    @property
    def verdicts(self) -> Counter[str]:
        return Counter(entry.verdict.value for listener in self._listeners for entry in listener.entries)

    def _rows(self) -> Iterator[Row]:
        for ledger in self._ledgers:
            yield from ledger.rows
