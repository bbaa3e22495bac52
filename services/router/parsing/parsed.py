"""What the body of a request asks for, in one shape for every route. It never changes after it was parsed."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from services.contracts.generate import Message


class Format(Enum):
    """Whose words the client speaks. ASK is Weir's own and never passes through."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    ASK = "ask"


class RetrievalQuery(msgspec.Struct, frozen=True):
    """What retrieval is asked before the answer."""

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
    """Fields of `body` that change what it costs, or whose it is: to be judged before it goes anywhere (`fields`)."""


NOT_PARSED = ParsedRequest(Format.CHAT, None, None, 0, stream=False)
"""In place of the body of a request that has none here, or none any more."""
NOT_PARSED_STREAM = ParsedRequest(Format.CHAT, None, None, 0, stream=True)
