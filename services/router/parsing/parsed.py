"""The parsed body of a request, in one immutable form for all routes."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from services.contracts.generate import Message
from services.runtime.errors import BadInput


class Format(Enum):
    """The API of the request. ASK is Weir's own and never passes through."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    ASK = "ask"


class RetrievalQuery(msgspec.Struct, frozen=True):
    query: str
    top_k: int
    cache_ttl_s: float | None


class Special(msgspec.Struct, frozen=True):
    """What makes a request more than one plain text for one answer: it is judged and priced (`fields.judge`)."""

    fields: tuple[str, ...] = ()
    """Fields of the body with a rule in `fields`."""
    fault: BadInput | None = None
    """Why a Weir worker cannot read messages, prompt or sampling; None if it can."""
    prompts: int = 1
    choices: int = 1
    """The most answers that come back: prompts times `n`."""
    more_bytes: int = 0
    """Bytes of text in the prompt beside `messages` and `prompt`: tool calls, further prompts."""
    more_tokens: int = 0
    """Token ids, and the estimate for pictures, sounds and files."""
    no_answer: bool = False
    """`max_tokens` is 0: the prompt is wanted back (`echo`), and nothing after it."""


class ParsedRequest(msgspec.Struct, frozen=True):
    """A parsed request. `body` is the client's own JSON, for workers that speak its format."""

    format: Format
    tenant: str | None
    model: str | None
    max_tokens: int | None
    """The limit of the answer that the client names."""
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
    sent: bytes = b""
    """`body` as the client sent it; empty for a special request that a Weir worker cannot read."""
    special: Special | None = None
    """None for most requests."""


NOT_PARSED = ParsedRequest(Format.CHAT, None, None, 0, stream=False)
"""The value for a request whose body is not parsed yet, or is dropped."""
NOT_PARSED_STREAM = ParsedRequest(Format.CHAT, None, None, 0, stream=True)
