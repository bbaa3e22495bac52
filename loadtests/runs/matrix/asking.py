"""The requests for every gateway, identical except for the address, and how answers are read.

A chat completion as the OpenAI client sends it, with the deadline under each name that a gateway reads: Weir's, and
LiteLLM's `x-litellm-timeout` in seconds. The tenant is in the key and in `x-tenant`.

If tenants ask about documents, every fifth question is one of twenty known ones, and all others are new.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from loadtests.cluster.stand import key_of
from loadtests.load.answer import REFUSING, Answer
from loadtests.load.arrivals import Ask
from loadtests.load.asking import NUMBER, NUMBERS
from loadtests.load.ledger import CODES
from loadtests.load.plan import Tenant

MODEL = "weir-sim"
PATH = "/v1/chat/completions"
TIMED_OUT = 408  # some gateways' status after a wait that was too long
SHAPES = 4096
PASSAGES = 5
KNOWN, KNOWN_EVERY = 20, 5
PARTS = ("router", "worker", "cache", "database", "client", "embedder", "queue")
EVENTS = ("is down", "is slow", "is full", "drains", "comes back", "refuses a request", "misses its deadline")


class Chats:
    """Makes the requests of a run. `key`: for a gateway with a single key. `urls`: of tenants with another address."""

    def __init__(self, url: str, key: str | None = None, urls: Mapping[str, str] | None = None) -> None:
        self._url, self._urls = url, urls or {}
        self._key = key
        self._pieces = lru_cache(maxsize=SHAPES)(self._make)

    def bytes_of(self, ask: Ask, number: int) -> bytes:
        return (b"%06x" % (number % NUMBERS)).join(self._pieces(ask.tenant, ask.prompt_tokens, ask.answer_tokens))

    def _make(self, tenant: Tenant, prompt_tokens: int, answer_tokens: int) -> tuple[bytes, ...]:
        content = {
            "model": MODEL,
            "messages": [{"role": "user", "content": NUMBER + " water" * (prompt_tokens - 1)}],
            "max_tokens": answer_tokens,
            "ignore_eos": True,
        }
        body = json.dumps(content, separators=(",", ":"))
        lines = [
            f"POST {PATH} HTTP/1.1",
            f"host: {urlsplit(self._urls.get(tenant.name, self._url)).netloc}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            f"authorization: Bearer {self._key or key_of(tenant.name)}",
            f"x-tenant: {tenant.name}",
            f"x-weir-deadline-ms: {tenant.deadline_ms:g}",
            f"x-litellm-timeout: {tenant.deadline_ms / 1000:g}",
        ]
        return tuple(("\r\n".join(lines) + "\r\n\r\n" + body).encode("ascii").split(NUMBER.encode("ascii")))


def question(number: int) -> str:
    """The question of this number, about the documents of CORPUS (see `playing`)."""
    if number % KNOWN_EVERY == 0:
        number = number // KNOWN_EVERY % KNOWN
    part, event = PARTS[number % len(PARTS)], EVENTS[number // len(PARTS) % len(EVENTS)]
    return f"What happens when the {part} {event}, for the {number}. time?"


class Reply(Answer):
    """An answer of any gateway: 429, 503 and 408 are refusals, with any code or none."""

    __slots__ = ()

    def outcome(self) -> tuple[str, str]:
        """See `Answer.outcome`. A 408 counts as a bare 503: the gateway's queue timed out."""
        outcome, code = super().outcome()
        if outcome != "failed:bad_status" or code in CODES:
            return outcome, code
        if self.status == TIMED_OUT or self.status in REFUSING:
            code = "bare_429" if self.status == 429 else "bare_503"
            return f"refused:{code}", code
        return outcome, code
