"""The body of each route -> `ParsedRequest`. Raises BadInput naming the field.

A body is first read as the plain request that a Weir worker can answer (`plain.py`), then as the API describes it; so
an ordinary request pays for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from services.contracts.answer import AskRequest
from services.contracts.generate import Message
from services.contracts.openai import (
    MAX_IDS,
    MAX_PROMPTS,
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    EmbeddingsRequest,
    Part,
    Sampling,
)
from services.router.parsing.fields import NAMES, in_table
from services.router.parsing.media import part_tokens
from services.router.parsing.parsed import Format, ParsedRequest, RetrievalQuery, Special
from services.router.parsing.plain import PlainChat, PlainCompletion, PlainMessage, PlainSampling
from services.runtime.errors import BadInput
from services.runtime.strictjson import LONG, convert, loads

Parser = Callable[[bytes], ParsedRequest]

TEXTS = ("system", "developer", "user")
_encode = msgspec.json.Encoder().encode


def parse_chat(body: bytes) -> ParsedRequest:
    """POST /v1/chat/completions."""
    json = loads(body, LONG)
    try:
        request = convert(json, PlainChat)
    except BadInput as fault:
        return _special_chat(json, fault)
    messages = [Message(message.role, _text(message, i)) for i, message in enumerate(request.messages)]
    special = None if NAMES.isdisjoint(json) else in_table(json)
    return _sampled(request, json, Format.CHAT, special, body, messages=messages)


def parse_completion(body: bytes) -> ParsedRequest:
    """POST /v1/completions."""
    json = loads(body, LONG)
    try:
        request = convert(json, PlainCompletion)
    except BadInput as fault:
        return _special_completion(json, fault)
    prompt = request.prompt if isinstance(request.prompt, str) else request.prompt[0]
    if not prompt:
        empty = BadInput("prompt: at least one character was expected", "prompt")
        if isinstance(request.prompt, str):
            raise empty
        return _special_completion(json, empty)  # a server may take it
    special = None if NAMES.isdisjoint(json) else in_table(json)
    return _sampled(request, json, Format.COMPLETIONS, special, body, prompt=prompt)


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


def parse_embeddings(json: dict[str, Any]) -> ParsedRequest:
    """POST /v1/embeddings, for a server that embeds. The answer has no tokens: it counts as one."""
    request = convert(json, EmbeddingsRequest)
    text, more_bytes, ids = _prompts(request.input, "input")
    special = Special(in_table(json).fields, _fault_of_embedding(request.model), 1, 1, more_bytes, ids)
    return ParsedRequest(
        format=Format.EMBEDDINGS, tenant=None, model=request.model, max_tokens=1, stream=False, prompt=text,
        body=json, special=special,
    )  # fmt: skip


def _fault_of_embedding(model: str | None) -> BadInput:
    return BadInput(f"model: {model} writes texts, and does not embed them", "model")


# ---- special requests


def _special_chat(json: Any, fault: BadInput) -> ParsedRequest:
    request = convert(json, ChatRequest)
    messages, more_bytes, more_tokens = [], 0, 0
    for i, message in enumerate(request.messages):
        messages.append(Message(message.role, _text(message, i)))
        for called in (message.tool_calls, message.function_call):
            more_bytes += len(_encode(called)) if called else 0
        if isinstance(message.content, list):
            more_tokens += sum(map(part_tokens, message.content))
    special = _special(json, fault, request.n, 1, more_bytes, more_tokens)
    return _sampled(request, json, Format.CHAT, special, messages=messages)


def _special_completion(json: Any, fault: BadInput) -> ParsedRequest:
    request = convert(json, CompletionRequest)
    prompt, more_bytes, ids = _prompts(request.prompt, "prompt")
    no_answer = request.max_tokens == 0
    if no_answer and json.get("echo") is not True:
        raise BadInput("max_tokens: at least 1 was expected, or 0 with `echo`", "max_tokens")
    prompts = 1 if isinstance(request.prompt, str) or isinstance(request.prompt[0], int) else len(request.prompt)
    special = _special(json, fault, request.n, prompts, more_bytes, ids, no_answer=no_answer)
    parsed = _sampled(request, json, Format.COMPLETIONS, special, prompt=prompt)
    return msgspec.structs.replace(parsed, max_tokens=1) if no_answer else parsed


def _special(
    json: Any, fault: BadInput, n: int | None, prompts: int, more_bytes: int, more_tokens: int, *,
    no_answer: bool = False,
) -> Special:  # fmt: skip
    return Special(in_table(json).fields, fault, prompts, prompts * (n or 1), more_bytes, more_tokens, no_answer)


def _prompts(given: str | list[Any], name: str) -> tuple[str, int, int]:
    """(the first text, bytes of the other texts, number of token ids) of one or several prompts."""
    if isinstance(given, str):
        return given, 0, 0
    if isinstance(given[0], int):
        _only(int, given, name)
        if len(given) > MAX_IDS:
            raise BadInput(f"{name}: at most {MAX_IDS} token ids were expected", name)
        return "", 0, len(given)
    if len(given) > MAX_PROMPTS:
        raise BadInput(f"{name}: at most {MAX_PROMPTS} were expected", name)
    if isinstance(given[0], str):
        _only(str, given, name)
        first, *others = given
        return first, sum(len(text.encode("utf-8", "replace")) for text in others), 0
    _only(list, given, name)
    return "", 0, sum(map(len, given))


def _only(type_: type, given: Iterable[Any], name: str) -> None:
    if not all(isinstance(each, type_) for each in given):
        raise BadInput(f"{name}: texts and token ids cannot be mixed in one list", name)


# ---- both


def _text(message: PlainMessage | ChatMessage, index: int) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    if content is None:
        if message.role not in TEXTS:
            return ""
        raise BadInput(f"messages[{index}].content is required", f"messages[{index}].content")
    return "".join([part.text or _refusal(part) for part in content])


def _refusal(part: Any) -> str:
    return (part.refusal or "") if isinstance(part, Part) else ""


def _sampled(
    request: Sampling | PlainSampling,
    json: dict[str, Any],
    format: Format,
    special: Special | None,
    sent: bytes = b"",
    *,
    messages: list[Message] | None = None,
    prompt: str | None = None,
) -> ParsedRequest:
    stop = request.stop
    options = request.stream_options
    return ParsedRequest(
        format,
        request.tenant,
        request.model,
        request.max_completion_tokens or request.max_tokens or None,
        bool(request.stream),
        messages=messages,
        prompt=prompt,
        temperature=request.temperature,
        top_p=request.top_p,
        stop=() if stop is None else (stop,) if isinstance(stop, str) else tuple(stop),
        seed=request.seed,
        ignore_eos=bool(request.ignore_eos),
        include_usage=bool(options and (options.include_usage or options.continuous_usage_stats)),
        body=json,
        sent=sent,
        special=special,
    )
