"""The requests of a run: `/ask` and chat, whole and streamed, each with a nonce that its right answer repeats."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from loadtests.cluster.stand import key_of
from loadtests.load.arrivals import Ask
from loadtests.load.connection import Exchange
from loadtests.load.plan import Plan, Step, Tenant
from loadtests.runs.nonces import asking
from loadtests.runs.nonces.asking import heard, posted, word_of
from loadtests.runs.nonces.judge import Verdict, judge
from loadtests.runs.nonces.prompt import prompt, right

CHAT, ASK = "chat", "ask"
ASK_SHARE = 0.3
STREAM_SHARE = 0.5
MAX_TOKENS = 120
TOP_K = 2
ROUTES = {CHAT: "/v1/chat/completions", ASK: "/ask"}
WITHOUT_DOCUMENTS = (
    "This is Weir's simulated engine: it has the latency of a language model, and no knowledge of its own. "
    "You asked about {nonce}. No document stood in the prompt, so there is nothing to quote."
)


class Questions(asking.Questions):
    """For both routes. The nonce is the request's `x-request-id` too, by which the router's log knows it."""

    __slots__ = ()

    def _about(self, word: str, ask: Ask) -> bytes:
        return posted(self._host, ROUTES[ask.tenant.name], _asked(word, ask), ask.tenant, f"x-request-id: {word}")


def _asked(word: str, ask: Ask) -> dict[str, Any]:
    common = {"max_tokens": MAX_TOKENS, "stream": ask.stream}
    if ask.tenant.name == ASK:
        return {"query": word, "top_k": TOP_K, **common}
    return {"messages": [{"role": "user", "content": prompt(word)}], **common}


def verdict_on(exchange: Exchange) -> Verdict:
    """What a client may believe of it. `/ask` has two right answers: with passages, and without any."""
    word = word_of(exchange)
    texts = [right(word)]
    if exchange.request.startswith(b"POST /ask "):
        texts.append(WITHOUT_DOCUMENTS.format(nonce=word))
    return judge(heard(exchange), word, MAX_TOKENS, texts)


def plan_of(seconds: float, per_s: float, deadline_ms: float, seed: int) -> Plan:
    """Who asks: the tenants `chat` and `ask`. The arrivals are `asks`, which are exactly as many as were wanted."""
    shares = {CHAT: 1 - ASK_SHARE, ASK: ASK_SHARE}
    tenants = tuple(
        Tenant(
            name, (Step(0, per_s * share),), deadline_ms=deadline_ms, stream=STREAM_SHARE, key=key_of(name)
        )
        for name, share in shares.items()
    )  # fmt: skip
    return Plan(seconds=seconds, tenants=tenants, seed=seed, warmup_s=0, cooldown_s=0)


def asks(plan: Plan, count: int) -> Iterator[Ask]:
    """So many requests at moments drawn evenly: what a Poisson process is, once it is known how many there were."""
    chance = Random(f"asks:{plan.seed}")
    by_name = {tenant.name: tenant for tenant in plan.tenants}
    for at_s in sorted(chance.uniform(0, plan.seconds) for _ in range(count)):
        name = ASK if chance.random() < ASK_SHARE else CHAT
        yield Ask(at_s, by_name[name], 16, MAX_TOKENS, chance.random() < STREAM_SHARE)
