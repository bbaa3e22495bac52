"""A request as bytes. Everything that does not change between two requests of a tenant is made once.

Each prompt begins with its own number, so that no cache and no prefix affinity makes one request of them all. Numbers
and words are one token each to the simulated engine's tokenizer, and close to one to a real one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from loadtests.openloop.arrivals import Ask
from loadtests.openloop.plan import Tenant

NUMBER = "######"  # where the number goes: six hexadecimal digits
NUMBERS = 16**6
NO_DEADLINE_MS = 120_000  # a plain worker behind a plain proxy is not told a deadline: this is its longest
CACHED_SHAPES = 4096


class Asking:
    """Makes the requests of a run."""

    __slots__ = ("_host", "_made", "_path", "_prefix", "_route")

    def __init__(self, url: str, route: str) -> None:
        parts = urlsplit(url)
        self._host = parts.netloc
        self._prefix = parts.path.rstrip("/")
        self._path, self._route = _ROUTES[route]
        self._made: dict[tuple[str, int, int, bool], list[bytes]] = {}

    def bytes_of(self, ask: Ask, number: int) -> bytes:
        """The whole request; `number` tells it from all others of the run, tries included."""
        shape = (ask.tenant.name, ask.prompt_tokens, ask.answer_tokens, ask.stream)
        pieces = self._made.get(shape)
        if pieces is None:
            if len(self._made) >= CACHED_SHAPES:
                self._made.clear()
            pieces = self._made[shape] = self._make(ask)
        return (b"%06x" % (number % NUMBERS)).join(pieces)

    def _make(self, ask: Ask) -> list[bytes]:
        """The request, split where its number goes."""
        tenant = ask.tenant
        prompt = NUMBER + " water" * (ask.prompt_tokens - 1)
        body = json.dumps(self._route(prompt, ask.answer_tokens, ask.stream, tenant), separators=(",", ":"))
        lines = [
            f"POST {self._prefix}{self._path} HTTP/1.1",
            f"host: {self._host}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            f"x-tenant: {tenant.name}",
            f"x-weir-deadline-ms: {tenant.deadline_ms:g}",
            *([f"authorization: Bearer {tenant.key}"] if tenant.key else []),
        ]
        return ("\r\n".join(lines) + "\r\n\r\n" + body).encode("ascii").split(NUMBER.encode("ascii"))


Body = Callable[[str, int, bool, Tenant], dict[str, Any]]


def _completion(prompt: str, answer_tokens: int, stream: bool, tenant: Tenant) -> dict[str, Any]:
    return {"prompt": prompt, **_sampling(answer_tokens, stream)}


def _chat(prompt: str, answer_tokens: int, stream: bool, tenant: Tenant) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}], **_sampling(answer_tokens, stream)}


def _sampling(answer_tokens: int, stream: bool) -> dict[str, Any]:
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    return {"max_tokens": answer_tokens, "ignore_eos": True, **options}


def _ask(prompt: str, answer_tokens: int, stream: bool, tenant: Tenant) -> dict[str, Any]:
    return {"query": prompt, "max_tokens": answer_tokens, "stream": stream, "tenant": tenant.name}


def _generate(prompt: str, answer_tokens: int, stream: bool, tenant: Tenant) -> dict[str, Any]:
    return {
        "id": f"load-{NUMBER}",
        "tenant": tenant.name,
        "deadline_ms": NO_DEADLINE_MS,
        "max_tokens": answer_tokens,
        "prompt": prompt,
        "stream": False,
        "ignore_eos": True,
    }


_ROUTES: dict[str, tuple[str, Body]] = {
    "completions": ("/v1/completions", _completion),
    "chat": ("/v1/chat/completions", _chat),
    "ask": ("/ask", _ask),
    "generate": ("/generate", _generate),
}
