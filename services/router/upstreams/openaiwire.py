"""What the router reads of an OpenAI-compatible server's answers: wire types alone, since msgspec reads annotations.

Fields that the router does not need are not decoded, so that unexpected values do no harm.
"""

from __future__ import annotations

from typing import Any

import msgspec


class UpstreamMessage(msgspec.Struct):
    content: str | list[Any] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None


class UpstreamChoice(msgspec.Struct):
    index: Any = 0
    finish_reason: str | None = None
    message: UpstreamMessage | None = None
    delta: UpstreamMessage | None = None
    text: str | None = None


class UpstreamUsage(msgspec.Struct):
    prompt_tokens: float | None = None
    completion_tokens: float | None = None


class UpstreamAnswer(msgspec.Struct):
    """A whole answer, or one event of a stream."""

    choices: list[UpstreamChoice]
    usage: UpstreamUsage | None = None
    error: Any = None


class UpstreamErrorBody(msgspec.Struct):
    message: Any = None
    param: Any = None
    code: Any = None
    type: Any = None


class UpstreamFault(msgspec.Struct):
    error: UpstreamErrorBody | str | None = None
    message: Any = None
    param: Any = None
    code: Any = None
    detail: Any = None


class UpstreamVectors(msgspec.Struct):
    data: list[msgspec.Raw]
    usage: UpstreamUsage | None = None


ANSWER = msgspec.json.Decoder(UpstreamAnswer)
VECTORS = msgspec.json.Decoder(UpstreamVectors)
FAULT = msgspec.json.Decoder(UpstreamFault)
