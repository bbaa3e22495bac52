"""What every gateway is asked, byte for byte the same but for its address, and how its answers are read.

A chat completion, as the OpenAI client sends it, with the deadline under every name that one of the gateways reads:
Weir's, and LiteLLM's `x-litellm-timeout` in seconds. Whose request it is stands in the key and in `x-tenant`.

Where tenants ask about documents, one question in five is one of a few that are asked again and again, and all others
are new: a cache answers some.
"""

from __future__ import annotations

import json
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
TIMED_OUT = 408  # the gateways' own word for a wait that was too long
SHAPES = 4096
PASSAGES = 5
KNOWN, KNOWN_EVERY = 20, 5
PARTS = ("router", "worker", "cache", "database", "client", "embedder", "queue")
EVENTS = ("is down", "is slow", "is full", "drains", "comes back", "refuses a request", "misses its deadline")


class Chats:
    """Makes the requests of a run. `key` is for a gateway that knows one key only."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self._host = urlsplit(url).netloc
        self._key = key
        self._pieces = lru_cache(maxsize=SHAPES)(self._make)

    def bytes_of(self, ask: Ask, number: int) -> bytes:
        """See `loadtests.load.client.Requests`."""
        return (b"%06x" % (number % NUMBERS)).join(self._pieces(ask.tenant, ask.prompt_tokens, ask.answer_tokens))

    def _make(self, tenant: Tenant, prompt_tokens: int, answer_tokens: int) -> tuple[bytes, ...]:
        """The request, split where its number goes."""
        asked = {
            "model": MODEL,
            "messages": [{"role": "user", "content": NUMBER + " water" * (prompt_tokens - 1)}],
            "max_tokens": answer_tokens,
            "ignore_eos": True,
        }
        body = json.dumps(asked, separators=(",", ":"))
        lines = [
            f"POST {PATH} HTTP/1.1",
            f"host: {self._host}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            f"authorization: Bearer {self._key or key_of(tenant.name)}",
            f"x-tenant: {tenant.name}",
            f"x-weir-deadline-ms: {tenant.deadline_ms:g}",
            f"x-litellm-timeout: {tenant.deadline_ms / 1000:g}",
        ]
        return tuple(("\r\n".join(lines) + "\r\n\r\n" + body).encode("ascii").split(NUMBER.encode("ascii")))


def question(number: int) -> str:
    """The one of this number, about the documents that are asked about."""
    if number % KNOWN_EVERY == 0:
        number = number // KNOWN_EVERY % KNOWN
    part, event = PARTS[number % len(PARTS)], EVENTS[number // len(PARTS) % len(EVENTS)]
    return f"What happens when the {part} {event}, for the {number}. time?"


class Reply(Answer):
    """An answer of any of the gateways: 429, 503 and 408 are refusals, whatever code they carry or none."""

    __slots__ = ()

    def outcome(self) -> tuple[str, str]:
        """See `Answer.outcome`. A 408 counts as a bare 503: the gateway would not wait any longer."""
        outcome, code = super().outcome()
        if outcome != "failed:bad_status" or code in CODES:
            return outcome, code
        if self.status == TIMED_OUT or self.status in REFUSING:
            code = "bare_429" if self.status == 429 else "bare_503"
            return f"refused:{code}", code
        return outcome, code
