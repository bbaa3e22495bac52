"""What a client asked, in one shape for every route. What of it changes on the way to a worker is in `Call`."""

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


class Lookup(msgspec.Struct, frozen=True):
    """What is to be looked up before the answer."""

    query: str
    top_k: int
    cache_ttl_s: float | None


class Asked(msgspec.Struct, frozen=True):
    """A parsed request. `body` is the client's own JSON, for workers that speak its format."""

    format: Format
    tenant: str | None
    model: str | None
    max_tokens: int
    stream: bool
    messages: list[Message] | None = None
    prompt: str | None = None
    lookup: Lookup | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    ignore_eos: bool = False
    include_usage: bool = False
    body: dict[str, Any] | None = None
    costly: tuple[str, ...] = ()
    """Fields of `body` that change what it costs, or whose it is: to be judged before it goes anywhere (`fields`)."""
