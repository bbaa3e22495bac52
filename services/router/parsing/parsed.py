"""The parsed body of a request, in one immutable form for all routes."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from services.contracts.generate import Message


class Format(Enum):
    """The API of the request. ASK is Weir's own and never passes through."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    ASK = "ask"


class RetrievalQuery(msgspec.Struct, frozen=True):
    query: str
    top_k: int
    cache_ttl_s: float | None


class ParsedRequest(msgspec.Struct, frozen=True):
    """A parsed request. `body` is the client's own JSON, for workers that speak its format."""

    format: Format
    tenant: str | None
    model: str | None
    max_tokens: int
    stream: bool
    messages: list[Message] | None = None
    prompt: str | None = None
    retrieval: RetrievalQuery | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    ignore_eos: bool = False
    include_usage: bool = False
    body: dict[str, Any] | None = None
    costly: tuple[str, ...] = ()
    """Fields of `body` with a rule in `fields`, to be judged before the request is sent anywhere."""


NOT_PARSED = ParsedRequest(Format.CHAT, None, None, 0, stream=False)
"""The value for a request whose body is not parsed yet, or is dropped."""
NOT_PARSED_STREAM = ParsedRequest(Format.CHAT, None, None, 0, stream=True)
