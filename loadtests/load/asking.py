"""Requests as bytes. The parts that are equal for a tenant's requests are built once.

Each prompt begins with its own number, so that neither a cache nor prefix affinity can merge requests. To the simulated
engine's tokenizer a number or word is one token; to a real one it is close to one. Traces have thousands of lengths and
long prompts, so a cached shape holds no prompt.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from loadtests.load.arrivals import Ask
from loadtests.load.plan import MAX_TOKENS, Tenant

NUMBER = "######"  # placeholder of the number: six hexadecimal digits
NUMBERS = 16**6
REST = "@@@@@@"  # placeholder of the rest of the prompt
WORD = b" water"
WORDS = WORD * MAX_TOKENS
NO_DEADLINE_MS = 120_000  # the upper bound for a plain worker behind a plain proxy, which receives no deadline
CACHED_SHAPES = 4096


class Shape(NamedTuple):
    """A request without its content-length, its number and the rest of its prompt."""

    head: bytes
    until_the_rest: list[bytes]  # split where the number goes
    end: bytes
    body_bytes: int


class Asking:
    __slots__ = ("_path", "_route", "_shapes", "_url")

    def __init__(self, url: str, route: str) -> None:
        self._url = url
        self._path, self._route = _ROUTES[route]
        self._shapes: dict[tuple[str, int, bool], Shape] = {}

    def bytes_of(self, ask: Ask, number: int) -> bytes:
        """The whole request. `number` is unique in the run; a retry has its own unless its tenant repeats bytes."""
        key = (ask.tenant.name, ask.answer_tokens, ask.stream)
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= CACHED_SHAPES:
                self._shapes.clear()
            shape = self._shapes[key] = self._shape(ask)
        rest = WORDS[: len(WORD) * (ask.prompt_tokens - 1)]
        begin = (b"%06x" % (number % NUMBERS)).join(shape.until_the_rest)
        return b"%b%d%b%b%b" % (shape.head, shape.body_bytes + len(rest), begin, rest, shape.end)

    def _shape(self, ask: Ask) -> Shape:
        tenant = ask.tenant
        body = json.dumps(self._route(NUMBER + REST, ask.answer_tokens, ask.stream, tenant), separators=(",", ":"))
        until_the_rest, end = body.split(REST)
        numbered = ("\r\n\r\n" + until_the_rest).encode("ascii").split(NUMBER.encode("ascii"))
        return Shape(_head(self._url, self._path, ask), numbered, end.encode("ascii"), len(body) - len(REST))


class Questions:
    """Questions to `/ask` that may repeat, from a list of texts. See `client.Requests`."""

    __slots__ = ("_passages", "_url", "_words")

    def __init__(self, url: str, words: Callable[[int], str], passages: int) -> None:
        self._url = url
        self._words = words
        self._passages = passages

    def bytes_of(self, ask: Ask, number: int) -> bytes:
        """The question with this number, for at most `passages` passages."""
        question = {"query": self._words(number), "top_k": self._passages, "max_tokens": ask.answer_tokens}
        body = json.dumps(question).encode()
        return b"%b%d\r\n\r\n%b" % (_head(self._url, "/ask", ask), len(body), body)


def _head(url: str, path: str, ask: Ask) -> bytes:
    """The head up to the value of content-length."""
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
