"""The body of each route -> `ParsedRequest`. Raises BadInput naming the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from services.contracts.answer import AskRequest
from services.contracts.generate import Message
from services.contracts.openai import ChatMessage, ChatRequest, CompletionRequest, Sampling
from services.router.parsing.fields import in_table
from services.router.parsing.parsed import Format, ParsedRequest, RetrievalQuery
from services.runtime.errors import BadInput
from services.runtime.strictjson import convert, loads

Parser = Callable[[bytes], ParsedRequest]


def chat_parser(default_max_tokens: int) -> Parser:
    """POST /v1/chat/completions."""

    def parse(body: bytes) -> ParsedRequest:
        json = loads(body)
        request = convert(json, ChatRequest)
        messages = [Message(message.role, _text(message, i)) for i, message in enumerate(request.messages)]
        return _sampled(request, json, Format.CHAT, default_max_tokens, messages=messages)

    return parse


def completion_parser(default_max_tokens: int) -> Parser:
    """POST /v1/completions."""

    def parse(body: bytes) -> ParsedRequest:
        json = loads(body)
        request = convert(json, CompletionRequest)
        prompt = request.prompt if isinstance(request.prompt, str) else request.prompt[0]
        if not prompt:
            raise BadInput("prompt: at least one character was expected", "prompt")
        return _sampled(request, json, Format.COMPLETIONS, default_max_tokens, prompt=prompt)

    return parse


def parse_ask(body: bytes) -> ParsedRequest:
    """POST /ask."""
    request = convert(loads(body), AskRequest)
    if not request.query.strip():
        raise BadInput("query: must not be blank", "query")
    return ParsedRequest(
        format=Format.ASK,
        tenant=request.tenant,
        model=request.model,
        max_tokens=request.max_tokens,
        stream=request.stream,
        retrieval=RetrievalQuery(request.query, request.top_k, request.cache_ttl_s),
    )


def _text(message: ChatMessage, index: int) -> str:
    if message.content is None:
        if message.role in ("assistant", "tool", "function"):
            return ""
        raise BadInput(f"messages[{index}].content is required", f"messages[{index}].content")
    if isinstance(message.content, str):
        return message.content
    return "".join(part.text for part in message.content)


def _sampled(
    request: Sampling,
    json: dict[str, Any],
    format: Format,
    default_max_tokens: int,
    *,
    messages: list[Message] | None = None,
    prompt: str | None = None,
) -> ParsedRequest:
    stop = request.stop
    options = request.stream_options
    return ParsedRequest(
        format=format,
        tenant=request.tenant,
        model=request.model,
        max_tokens=request.max_completion_tokens or request.max_tokens or default_max_tokens,
        stream=bool(request.stream),
        messages=messages,
        prompt=prompt,
        temperature=request.temperature,
        top_p=request.top_p,
        stop=() if stop is None else (stop,) if isinstance(stop, str) else tuple(stop),
        seed=request.seed,
        ignore_eos=bool(request.ignore_eos),
        include_usage=bool(options and (options.include_usage or options.continuous_usage_stats)),
        body=json,
        costly=in_table(json),
    )
