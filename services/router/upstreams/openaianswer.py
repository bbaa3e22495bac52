"""Reads answers of OpenAI-compatible servers, as the servers really send them.

Contents may be missing, null, text or a list of parts; usage may be missing, null or incomplete; an error may have its
own status, or 200, or come within a stream, as `{"error": {...}}`, as `{"error": "..."}`, flat as `{"object": "error",
...}` or as FastAPI's `{"detail": ...}` (transformers serve), with a string or a number as its code.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

from services.router.upstreams.call import Busy, End, WorkerFailed
from services.router.upstreams.openaiwire import (
    ANSWER,
    FAULT,
    VECTORS,
    UpstreamAnswer,
    UpstreamChoice,
    UpstreamErrorBody,
    UpstreamFault,
    UpstreamMessage,
    UpstreamUsage,
    UpstreamVectors,
)
from services.router.upstreams.refusals import ENDS, UNREADABLE, bad_input, ended
from services.runtime.errors import BadInput
from services.runtime.keepalive import Reply
from services.runtime.upstream import UpstreamError

DEFAULT_DELAY_MS = 100.0
LONGEST_DELAY_MS = 30_000.0
MAX_TOKENS = 2**31
VALIDATION = re.compile(
    r"[0-9]{1,6} validation errors?:\s{1,8}\{'type': '[a-z_]{1,64}', 'loc': \('body',(?P<place>[^()\n]{0,256})\), "
    r"'msg': (?:'(?P<said>[^'\n]{0,512})'|\"(?P<quoted>[^\"\n]{0,512})\")"
)
"""The first fault that llama-cpp-python reports."""
NO_ROUTE = (None, "Not Found")
"""What a 404 says if there is no such route: FastAPI's sentence."""
OVERLOADED = (429, 503, 529)
REFUSES_REQUEST = (400, 404, 413, 415, 422)
GAVE_UP = frozenset({"abort", "aborted", "cancelled", "error"})
"""Finish reasons by which servers report that they gave up."""


def answer_of(data: bytes, choices: int = 1) -> UpstreamAnswer:
    """An answer or event of at most so many choices. Raises the error that it contains, or UpstreamError if it cannot
    be read.
    """
    try:
        answer = ANSWER.decode(data)
    except UNREADABLE as error:
        raise fault_in(data) or UpstreamError(f"the worker's response has an unexpected format: {error}") from None
    if answer.error is not None and (fault := fault_in(data)) is not None:
        raise fault
    for choice in answer.choices:
        if choice.index not in (0, None) and not _is_index(choice.index, choices):
            raise UpstreamError(f"the worker sent another choice than the {choices} that were requested")
        if choice.finish_reason in GAVE_UP:
            raise WorkerFailed(f"the worker ended the answer early: {choice.finish_reason}")
    return answer


def vectors_of(data: bytes) -> UpstreamVectors:
    """An answer of embeddings. Raises as `answer_of` does."""
    try:
        return VECTORS.decode(data)
    except UNREADABLE as error:
        raise fault_in(data) or UpstreamError(f"the worker's response has an unexpected format: {error}") from None


def text_of(choice: UpstreamChoice) -> str:
    """Its text, joined from parts if need be."""
    message = choice.message or choice.delta
    if message is None:
        return choice.text or ""
    content = message.content
    if isinstance(content, list):
        return "".join([_part(part) for part in content])
    return content or ""


def is_output(choice: UpstreamChoice) -> bool:
    """Whether the model has produced output; a role alone comes before the prompt is read."""
    message = choice.message or choice.delta
    return bool(choice.text) if message is None else _has_output(message)


def _has_output(message: UpstreamMessage) -> bool:
    return bool(
        message.content
        or message.tool_calls
        or message.reasoning_content
        or message.reasoning
        or message.refusal
        or message.function_call
        or message.audio
    )


def _is_index(index: Any, choices: int) -> bool:
    return isinstance(index, int) and 0 <= index < choices


def end_of(finish_reason: str, usage: UpstreamUsage | None) -> End:
    """The end of an answer. Missing or impossible counts are 0: not known."""
    if usage is None:
        return End(finish_reason, 0, 0)
    return End(finish_reason, _count(usage.prompt_tokens), _count(usage.completion_tokens))


def fault_in(data: bytes) -> Exception | None:
    """The exception for an error under status 200; None if there is no error."""
    try:
        fault = FAULT.decode(data)
    except UNREADABLE:
        return None
    if fault.error is None and fault.message is None:
        return None
    message, param, code = _details(fault)
    status = code if isinstance(code, int) else 500
    return _meaning(status, message, param, None if isinstance(code, int) else code, DEFAULT_DELAY_MS)


def refusal_of(reply: Reply, body: bytes) -> Exception:
    """The exception for an answer with an error status."""
    try:
        message, param, code = _details(FAULT.decode(body))
    except UNREADABLE:
        message, param, code = None, None, None
    if reply.status == 404 and message in NO_ROUTE:
        return WorkerFailed("the worker answered 404 without a reason: is its url the root of an OpenAI API?")
    return _meaning(reply.status, message, param, code if isinstance(code, str) else None, _delay_ms(reply))


def _details(fault: UpstreamFault) -> tuple[str | None, str | None, str | int | None]:
    error = fault.error
    if isinstance(error, str):
        return error, None, None
    if error is None and fault.message is None:
        return *_explained(fault.detail), None
    source: UpstreamErrorBody | UpstreamFault = fault if error is None else error
    param, code = source.param, source.code
    return (
        source.message if isinstance(source.message, str) else None,
        param if isinstance(param, str) else None,
        code if isinstance(code, (str, int)) else None,
    )


def _explained(detail: Any) -> tuple[str | None, str | None]:
    """(message, field) of FastAPI's `detail`: a sentence, or a list of faults of which the first is told."""
    first = detail[0] if isinstance(detail, list) and detail else detail
    if not isinstance(first, dict):
        return (first if isinstance(first, str) else None), None
    message, place = first.get("msg"), first.get("loc")
    names = place[1:] if isinstance(place, list) else []  # the first is the part of the request: the body
    field = ".".join(str(name) for name in names if isinstance(name, (str, int)))
    return (message if isinstance(message, str) else None), field or None


def _found_invalid(message: str | None) -> BadInput | None:
    """llama-cpp-python answers 500 to a body that it cannot validate, with its own places in the text."""
    found = VALIDATION.match(message or "")
    if found is None:
        return None
    place = [part.strip(" '") for part in found["place"].split(",") if part.strip(" '")]
    return bad_input(400, found["said"] or found["quoted"], ".".join(place), None)


def _meaning(status: int, message: str | None, param: str | None, code: str | None, delay_ms: float) -> Exception:
    if code in ENDS:  # the server is another Weir
        return ended(code, message or code)
    if status in OVERLOADED:
        return Busy(delay_ms)
    if status in REFUSES_REQUEST and (bad := bad_input(status, message, param, code)) is not None:
        return bad
    if status == 500 and (invalid := _found_invalid(message)) is not None:
        return invalid
    return WorkerFailed(f"the worker failed with {status}: {message or 'no reason given'}")


def _delay_ms(reply: Reply) -> float:
    for name, unit_ms in ((b"retry-after-ms", 1.0), (b"retry-after", 1000.0)):
        value = reply.header(name)
        if value is None:
            continue
        try:
            delay_ms = float(value) * unit_ms
        except ValueError:
            continue  # a date: the clocks may differ
        if isfinite(delay_ms) and delay_ms >= 0:
            return min(delay_ms, LONGEST_DELAY_MS)
    return DEFAULT_DELAY_MS


def _count(tokens: float | None) -> int:
    return int(tokens) if tokens is not None and 0 <= tokens <= MAX_TOKENS else 0


def _part(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else ""
