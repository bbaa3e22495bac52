"""The questions of a run as bytes, and what is kept of each answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from loadtests.load.answer import MAX_BODY_BYTES, Answer
from loadtests.load.arrivals import Ask
from loadtests.load.connection import Exchange
from loadtests.load.plan import Tenant
from loadtests.runs.nonces.judge import Heard, Verdict, judge
from loadtests.runs.nonces.prompt import NONCE, nonce, prompt

MAX_TOKENS = 40
PATH = "/v1/chat/completions"


class Questions:
    """A nonce for every number; `first` keeps two runs apart."""

    __slots__ = ("_first", "_host")

    def __init__(self, url: str, first: int = 1) -> None:
        self._host = urlsplit(url).netloc
        self._first = first

    def bytes_of(self, ask: Ask, number: int) -> bytes:
        """See `loadtests.load.client.Requests`."""
        return self._about(nonce(self._first + number), ask)

    def _about(self, word: str, ask: Ask) -> bytes:
        """The request whose right answer repeats this nonce."""
        asked = {
            "messages": [{"role": "user", "content": prompt(word)}], "max_tokens": MAX_TOKENS, "stream": ask.stream,
        }  # fmt: skip
        return posted(self._host, PATH, asked, ask.tenant)


def posted(host: str, path: str, asked: Mapping[str, Any], tenant: Tenant, *more: str) -> bytes:
    """A request's bytes; `more` are header lines of its own."""
    body = json.dumps(asked).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        f"host: {host}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *more,
        f"x-weir-deadline-ms: {tenant.deadline_ms:g}",
        *([f"authorization: Bearer {tenant.key}"] if tenant.key else []),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class Kept(Answer):
    """An answer whose bytes are kept, to be judged when it is over."""

    __slots__ = ("_kept", "raw")

    def __init__(self) -> None:
        super().__init__()
        self.raw: list[bytes] = []
        self._kept = 0

    def body(self, data: bytes) -> bool:
        """See `Answer.body`."""
        self._kept += len(data)
        if self._kept <= MAX_BODY_BYTES:
            self.raw.append(data)
        return super().body(data)


def verdict_on(exchange: Exchange) -> Verdict:
    """What a client may believe of it."""
    return judge(heard(exchange), word_of(exchange), MAX_TOKENS)


def word_of(exchange: Exchange) -> str:
    """The nonce with which it was asked: the request's own bytes say. Raises RuntimeError where there is none."""
    found = NONCE.search(exchange.request)
    if found is None:
        raise RuntimeError("a request without a nonce")
    return found[0].decode()


def heard(exchange: Exchange) -> Heard:
    """Its answer, to be judged. Raises RuntimeError where that was not kept."""
    answer = exchange.answer
    if not isinstance(answer, Kept):
        raise RuntimeError(f"{answer!r} was not kept")
    return Heard(answer.status, b"".join(answer.raw), answer.streamed, ended=not exchange.failure)
