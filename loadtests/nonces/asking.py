"""The questions of a run as bytes, and what is kept of each answer."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from loadtests.nonces.judge import Heard, Verdict, judge
from loadtests.nonces.prompt import NONCE, nonce, prompt
from loadtests.openloop.answer import MAX_BODY_BYTES, Answer
from loadtests.openloop.arrivals import Ask
from loadtests.openloop.connection import Exchange

MAX_TOKENS = 40
PATH = "/v1/chat/completions"


class Questions:
    """A nonce for every number; `first` keeps two runs apart."""

    __slots__ = ("_first", "_host")

    def __init__(self, url: str, first: int = 1) -> None:
        self._host = urlsplit(url).netloc
        self._first = first

    def bytes_of(self, ask: Ask, number: int) -> bytes:
        """See `openloop.client.Requests`."""
        asked: dict[str, Any] = {
            "messages": [{"role": "user", "content": prompt(nonce(self._first + number))}],
            "max_tokens": MAX_TOKENS,
            "stream": ask.stream,
        }
        body = json.dumps(asked).encode()
        lines = [
            f"POST {PATH} HTTP/1.1",
            f"host: {self._host}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            f"x-weir-deadline-ms: {ask.tenant.deadline_ms:g}",
            *([f"authorization: Bearer {ask.tenant.key}"] if ask.tenant.key else []),
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
    """What a client may believe of it. The request's own bytes say which nonce it carried."""
    answer, asked = exchange.answer, NONCE.search(exchange.request)
    if not isinstance(answer, Kept) or asked is None:
        raise RuntimeError(f"{answer!r} was not asked or not kept")
    heard = Heard(answer.status, b"".join(answer.raw), answer.streamed, ended=not exchange.failure)
    return judge(heard, asked[0].decode(), MAX_TOKENS)
