"""The requests of a run: `/ask` and chat, unary and streamed.

Each has a nonce that its right answer repeats. The nonce is also its `x-request-id`, the key in the logs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any
from urllib.parse import urlsplit

from loadtests.cluster.making import ASK, CHAT
from loadtests.cluster.stand import key_of
from loadtests.judging.answers import Received, Verdict, judge
from loadtests.judging.nonces import NONCE, nonce, prompt, right
from loadtests.load.answer import MAX_BODY_BYTES, Answer
from loadtests.load.arrivals import Ask
from loadtests.load.connection import Exchange
from loadtests.load.plan import Plan, Step, Tenant

ASK_SHARE = 0.3
STREAM_SHARE = 0.5
MAX_TOKENS = 120
TOP_K = 2
ROUTES = {CHAT: "/v1/chat/completions", ASK: "/ask"}
WITHOUT_DOCUMENTS = (
    "This is Weir's simulated engine: it has the latency of a language model, and no knowledge of its own. "
    "You asked about {nonce}. No document stood in the prompt, so there is nothing to quote."
)


class Questions:
    """See `loadtests.load.client.Requests`. Each number has a nonce; `first` keeps the nonces of two clients apart."""

    __slots__ = ("_first", "_host")

    def __init__(self, url: str, first: int = 1) -> None:
        self._host = urlsplit(url).netloc
        self._first = first

    def bytes_of(self, ask: Ask, number: int) -> bytes:
        word = nonce(self._first + number)
        body = json.dumps(asked_of(ask.tenant.name, word, stream=ask.stream)).encode()
        deadline = f"x-weir-deadline-ms: {ask.tenant.deadline_ms:g}"
        return posted(
            self._host, ROUTES[ask.tenant.name], body, word, deadline, f"authorization: Bearer {ask.tenant.key}"
        )


def asked_of(tenant: str, word: str, *, stream: bool) -> dict[str, Any]:
    common = {"max_tokens": MAX_TOKENS, "stream": stream}
    if tenant == ASK:
        return {"query": word, "top_k": TOP_K, **common}
    return {"messages": [{"role": "user", "content": prompt(word)}], **common}


def posted(host: str, path: str, body: bytes, id: str, *more: str) -> bytes:
    """The bytes of a POST request; `more` are further header lines."""
    lines = (
        f"POST {path} HTTP/1.1", f"host: {host}", "content-type: application/json", f"content-length: {len(body)}",
        f"x-request-id: {id}", *more,
    )  # fmt: skip
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class Kept(Answer):
    """An answer that keeps its bytes, at most MAX_BODY_BYTES, for the verdict."""

    __slots__ = ("_kept", "raw")

    def __init__(self) -> None:
        super().__init__()
        self.raw: list[bytes] = []
        self._kept = 0

    def body(self, data: bytes) -> bool:
        self._kept += len(data)
        if self._kept <= MAX_BODY_BYTES:
            self.raw.append(data)
        return super().body(data)


def word_of(exchange: Exchange) -> str:
    """The nonce in the bytes of the request. Raises RuntimeError if there is none."""
    found = NONCE.search(exchange.request)
    if found is None:
        raise RuntimeError("a request without a nonce")
    return found[0].decode()


def verdict_on(exchange: Exchange) -> Verdict:
    """The verdict on an answer; `/ask` has two right ones. Raises RuntimeError if its bytes were not kept."""
    answer, word = exchange.answer, word_of(exchange)
    if not isinstance(answer, Kept):
        raise RuntimeError(f"{answer!r} was not kept")
    texts = [right(word)]
    if exchange.request.startswith(b"POST /ask "):
        texts.append(WITHOUT_DOCUMENTS.format(nonce=word))
    received = Received(answer.status, b"".join(answer.raw), answer.streamed, ended=not exchange.failure)
    return judge(received, word, MAX_TOKENS, texts)


def plan_of(seconds: float, per_s: float, deadline_ms: float, seed: int) -> Plan:
    """The tenants `chat` and `ask`. The arrivals come from `asks`, whose count is exact."""
    shares = {CHAT: 1 - ASK_SHARE, ASK: ASK_SHARE}
    tenants = tuple(
        Tenant(
            name, (Step(0, per_s * share),), deadline_ms=deadline_ms, stream=STREAM_SHARE, key=key_of(name)
        )
        for name, share in shares.items()
    )  # fmt: skip
    return Plan(seconds=seconds, tenants=tenants, seed=seed, warmup_s=0, cooldown_s=0)


def asks(plan: Plan, count: int) -> Iterator[Ask]:
    """`count` requests at uniformly drawn moments: a Poisson process, conditioned on its number of arrivals."""
    chance = Random(f"asks:{plan.seed}")
    by_name = {tenant.name: tenant for tenant in plan.tenants}
    for at_s in sorted(chance.uniform(0, plan.seconds) for _ in range(count)):
        name = ASK if chance.random() < ASK_SHARE else CHAT
        yield Ask(at_s, by_name[name], 16, MAX_TOKENS, chance.random() < STREAM_SHARE)
