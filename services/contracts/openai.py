"""Client -> router: the OpenAI routes under `/v1`, as the official client and load generators use them.

Only the fields that Weir uses are checked. Workers that speak OpenAI get every other field unchanged, unless it changes
the cost or the order of the work (`router/parsing/fields.py`). Weir's own workers answer one text with one text
(`router/parsing/plain.py`). `max_completion_tokens` is accepted for `max_tokens`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from services.contracts.generate import LONGEST_TOKENS

EXACT = "x-exact"
"""In a schema: what the API's description says instead, where a wire type cannot (`runtime/api.py`)."""
MAX_MESSAGES = 8192
MAX_CHOICES = 128
"""OpenAI's bound of `n`."""
MAX_PROMPTS = 2048
"""OpenAI's bound of texts to embed in one request."""
MAX_IDS = 262_144
MAX_STOPS = 64
MAX_TEXTS, MAX_TEXT_CHARS = 256, 32_768
"""What Weir's own embedder takes."""

MaxTokens = Annotated[int, Meta(ge=1, le=LONGEST_TOKENS)]
ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
TenantName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=128,
        extra_json_schema={EXACT: {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"}},
    ),
]
"""Described as lab mode reads it; elsewhere it is ignored."""
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
TokenIds = Annotated[list[int], Meta(min_length=1, max_length=MAX_IDS)]


def _list_of(items: dict[str, Any], max_items: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": max_items}


_IDS = {**_list_of({"type": "integer"}, MAX_IDS), "description": "They count in the 262,144 elements of a body."}
Prompts = Annotated[
    Annotated[str, Meta(min_length=1)]
    | Annotated[list[str | int | TokenIds], Meta(min_length=1, max_length=MAX_IDS)],
    Meta(
        extra_json_schema={
            EXACT: {
                "anyOf": [
                    {"type": "string", "minLength": 1}, _list_of({"type": "string"}, MAX_PROMPTS), _IDS,
                    _list_of(_IDS, MAX_PROMPTS),
                ]
            }
        }
    ),
]  # fmt: skip
"""A text, token ids, or a list of either. msgspec takes one list in a union, so the parser checks what the description
says: nothing is mixed, and each kind has its bound.
"""


class Part(msgspec.Struct, frozen=True):
    """One part of a message. Every type passes to an OpenAI-compatible server; Weir workers read `text` alone."""

    type: Annotated[str, Meta(min_length=1, max_length=64)]
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    video_url: Any = None
    audio_url: Any = None


class ChatMessage(msgspec.Struct, frozen=True):
    """One message. `content` may be missing where it is not the system's or the user's."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | list[Part] | None = None
    tool_calls: list[Any] | None = None
    function_call: dict[str, Any] | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    """`include_usage` adds exact counts in the chunk before `[DONE]`; `continuous_usage_stats` is vLLM's."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that chat and completions share."""

    model: ModelName | None = None
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stop: str | Annotated[list[str], Meta(max_length=MAX_STOPS)] | None = None
    seed: Seed | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    tenant: TenantName | None = None  # believed in lab mode only


class ChatRequest(Sampling, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]


WITHOUT_ECHO = {
    EXACT: {"type": "integer", "minimum": 1, "maximum": LONGEST_TOKENS, "description": "With `echo` also 0."}
}


class CompletionRequest(Sampling, frozen=True, kw_only=True):
    """POST /v1/completions. `prompt` is a text, token ids, or a list of either. `max_tokens` is 0 only with `echo`."""

    prompt: Prompts
    max_tokens: Annotated[int, Meta(ge=0, le=LONGEST_TOKENS, extra_json_schema=WITHOUT_ECHO)] | None = None


class EmbeddingsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/embeddings. The official client requests base64 by default. Weir's own embedder takes 1 to 256 texts of
    at most 32,768 characters; an OpenAI-compatible server may take more of them, longer ones, and token ids.
    """

    input: Prompts
    model: ModelName | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=65_536)] | None = None


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
