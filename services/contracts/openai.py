"""Client -> router: the OpenAI routes under `/v1`, as the official client and load generators use them.

Only the fields that Weir uses are checked. Workers that speak OpenAI get every other field unchanged, unless it changes
the cost or the order of the work (`router/parsing/fields.py`). `content` is a string or a list of text parts;
`max_completion_tokens` is accepted for `max_tokens`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MaxTokens = Annotated[int, Meta(ge=1, le=131_072)]


class Part(msgspec.Struct, frozen=True):
    """One part of a message. Only text is supported."""

    type: Literal["text"]
    text: str


class ChatMessage(msgspec.Struct, frozen=True):
    """One message. `content` may be missing for the roles assistant, tool and function."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | list[Part] | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    """`include_usage` adds exact counts in the chunk before `[DONE]`; `continuous_usage_stats` is vLLM's."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that chat and completions share."""

    model: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=1)] | None = None
    stop: str | Annotated[list[str], Meta(max_length=4)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    tenant: Annotated[str, Meta(min_length=1, max_length=128)] | None = None  # believed in lab mode only


class ChatRequest(Sampling, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=1024)]


class CompletionRequest(Sampling, frozen=True, kw_only=True):
    """POST /v1/completions; one prompt per request."""

    prompt: str | Annotated[list[str], Meta(min_length=1, max_length=1)]


class EmbeddingsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/embeddings. The official client requests base64 by default."""

    input: (
        Annotated[str, Meta(min_length=1, max_length=32_768)]
        | Annotated[list[Annotated[str, Meta(min_length=1, max_length=32_768)]], Meta(min_length=1, max_length=256)]
    )
    model: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=8192)] | None = None


class Usage(msgspec.Struct, frozen=True):
    """Exact counts of the engine's tokenizer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Timing(msgspec.Struct, frozen=True):
    """The `weir` field of a stream's last chunk: the times of `Server-Timing`, in milliseconds."""

    level: int
    degraded: list[str]
    queue_ms: float
    retrieval_ms: float
    inference_ms: float
    total_ms: float


class AnswerMessage(msgspec.Struct, frozen=True):
    role: str
    content: str


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: AnswerMessage
    finish_reason: str
    logprobs: None = None


class ChatCompletion(msgspec.Struct, frozen=True):
    """A complete chat answer."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: ChatDelta
    finish_reason: str | None = None
    logprobs: None = None


class ChatChunk(msgspec.Struct, frozen=True):
    """One event of a chat stream."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | msgspec.UnsetType = msgspec.UNSET
    weir: Timing | msgspec.UnsetType = msgspec.UNSET


class TextChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    finish_reason: str | None = None
    logprobs: None = None


class TextCompletion(msgspec.Struct, frozen=True):
    """A complete text answer, and each event of a text stream."""

    id: str
    created: int
    model: str
    choices: list[TextChoice]
    object: Literal["text_completion"] = "text_completion"
    usage: Usage | msgspec.UnsetType = msgspec.UNSET
    weir: Timing | msgspec.UnsetType = msgspec.UNSET
