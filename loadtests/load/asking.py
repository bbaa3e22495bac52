"""A request as bytes. Everything that does not change between two requests of a tenant is made once.

Each prompt begins with its own number, so that no cache and no prefix affinity makes one request of them all. Numbers
and words are one token each to the simulated engine's tokenizer, and close to one to a real one.

A trace has thousands of lengths, and prompts of many kilobytes: what is kept has no prompt in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from loadtests.load.arrivals import Ask
from loadtests.load.plan import MAX_TOKENS, Tenant

NUMBER = "######"  # where the number goes: six hexadecimal digits
NUMBERS = 16**6
REST = "@@@@@@"  # where the rest of the prompt goes
WORD = b" water"
WORDS = WORD * MAX_TOKENS
NO_DEADLINE_MS = 120_000  # a plain worker behind a plain proxy is not told a deadline: this is its longest
CACHED_SHAPES = 4096


class Shape(NamedTuple):
    """A request without its length, its number and the rest of its prompt."""

    head: bytes
    until_the_rest: list[bytes]  # split where the number goes
    end: bytes
    body_bytes: int


class Asking:
    """Makes the requests of a run."""

    __slots__ = ("_path", "_route", "_shapes", "_url")

    def __init__(self, url: str, route: str) -> None:
        self._url = url
        self._path, self._route = _ROUTES[route]
        self._shapes: dict[tuple[str, int, bool], Shape] = {}

    def bytes_of(self, ask: Ask, number: int) -> bytes:
        """The whole request; `number` tells it from all others of the run, tries included."""
        key = (ask.tenant.name, ask.answer_tokens, ask.stream)
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= CACHED_SHAPES:
                self._shapes.clear()
            shape = self._shapes[key] = self._shape(ask)
        rest = WORDS[: len(WORD) * (ask.prompt_tokens - 1)]
        told = (b"%06x" % (number % NUMBERS)).join(shape.until_the_rest)
        return b"%b%d%b%b%b" % (shape.head, shape.body_bytes + len(rest), told, rest, shape.end)

    def _shape(self, ask: Ask) -> Shape:
        tenant = ask.tenant
        body = json.dumps(self._route(NUMBER + REST, ask.answer_tokens, ask.stream, tenant), separators=(",", ":"))
        until_the_rest, end = body.split(REST)
        numbered = ("\r\n\r\n" + until_the_rest).encode("ascii").split(NUMBER.encode("ascii"))
        return Shape(_head(self._url, self._path, ask), numbered, end.encode("ascii"), len(body) - len(REST))


class Questions:
    """Questions to `/ask` in words of their own, for what is asked more than once. See `client.Requests`."""

    __slots__ = ("_passages", "_url", "_words")

    def __init__(self, url: str, words: Callable[[int], str], passages: int) -> None:
        self._url = url
        self._words = words
        self._passages = passages

    def bytes_of(self, ask: Ask, number: int) -> bytes:
        """The question of this number, for at most so many passages."""
        said = {"query": self._words(number), "top_k": self._passages, "max_tokens": ask.answer_tokens}
        body = json.dumps(said).encode()
        return b"%b%d\r\n\r\n%b" % (_head(self._url, "/ask", ask), len(body), body)


def _head(url: str, path: str, ask: Ask) -> bytes:
    """Up to the number that says how long the body is."""
    parts, tenant = urlsplit(url), ask.tenant
    lines = [
        f"POST {parts.path.rstrip('/')}{path} HTTP/1.1",
        f"host: {parts.netloc}",
        "content-type: application/json",
        f"x-tenant: {tenant.name}",
        f"x-weir-deadline-ms: {ask.deadline_ms:.10g}",
        *([f"authorization: Bearer {tenant.key}"] if tenant.key else []),
        "content-length: ",
    ]
    return "\r\n".join(lines).encode("ascii")


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
