"""The requests that a Weir worker can answer: one text in, one text out.

Most requests are of this kind, and are read at the speed of C. What does not fit is read again as the wide types of
`contracts/openai.py`, which describe the API; the fault found here is then what a Weir worker answers it with.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from services.contracts.openai import (
    MAX_MESSAGES,
    MAX_TEXT_CHARS,
    MAX_TEXTS,
    MaxTokens,
    ModelName,
    Seed,
    StreamOptions,
    TenantName,
)

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class TextPart(msgspec.Struct, frozen=True):
    type: Literal["text"]
    text: str


class PlainMessage(msgspec.Struct, frozen=True):
    """`content` may be missing for the roles assistant, tool and function."""

    role: Role
    content: str | list[TextPart] | None = None
    tool_calls: None = None
    function_call: None = None


class PlainSampling(msgspec.Struct, frozen=True, kw_only=True):
    model: ModelName | None = None
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=1)] | None = None
    stop: str | Annotated[list[str], Meta(max_length=4)] | None = None
    seed: Seed | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    tenant: TenantName | None = None


class PlainChat(PlainSampling, frozen=True, kw_only=True):
    messages: Annotated[list[PlainMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]


class PlainCompletion(PlainSampling, frozen=True, kw_only=True):
    prompt: str | Annotated[list[str], Meta(min_length=1, max_length=1)]


OwnText = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT_CHARS)]


class PlainEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    """What Weir's own embedder takes."""

    input: OwnText | Annotated[list[OwnText], Meta(min_length=1, max_length=MAX_TEXTS)]
    model: ModelName | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=8192)] | None = None
