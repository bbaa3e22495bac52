"""One example of each wire type of the public routes, and the headers of a request, for the API's description."""

from __future__ import annotations

from typing import Any

from services.contracts.answer import AskReply, AskRequest, Citation
from services.contracts.answer import Usage as AskUsage
from services.contracts.documents import DocumentDeleted, DocumentEntry, DocumentList, DocumentPut, PutDocument
from services.contracts.openai import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    EmbeddingsRequest,
    TextChoice,
    TextCompletion,
    Usage,
)

_QUESTION, _ANSWER = "Why does Weir reject a request?", "Because its deadline cannot be met."
_CREATED, _USAGE = 1_767_225_600, Usage(9, 8, 17)

EXAMPLES = (
    AskRequest(query=_QUESTION, max_tokens=64),
    AskReply(
        text=_ANSWER,
        source="tier1",
        retrieval_source="db",
        top_k_used=5,
        served_ms=412.0,
        retrieval_ms=8.1,
        inference_served_ms=395.4,
        level=0,
        degraded=[],
        citations=[Citation("docs/rejections.md", "c-17", 0.21)],
        usage=AskUsage(310, 8, 318),
    ),
    ChatRequest(messages=[ChatMessage("user", _QUESTION)], max_tokens=64),
    ChatCompletion("r-1", _CREATED, "sim", [ChatChoice(0, AnswerMessage("assistant", _ANSWER), "stop")], _USAGE),
    CompletionRequest(prompt=_QUESTION, max_tokens=64),
    TextCompletion("r-1", _CREATED, "sim", [TextChoice(0, _ANSWER, "stop")], usage=_USAGE),
    EmbeddingsRequest(input=["one text", "another"]),
    PutDocument(text="Weir rejects a request that it cannot answer in time.", title="Rejections"),
    DocumentPut("notes/rejections", "added", "Rejections", 7, 1),
    DocumentDeleted("notes/rejections", 8),
    DocumentList([DocumentEntry("notes/rejections", "Rejections", 7, 1)], None),
)


def _header(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": schema}


_TEXT = {"type": "string"}


def headers_of(max_deadline_ms: float) -> tuple[dict[str, Any], ...]:
    """Those that the hot routes read. docs/api/README.md names the headers of other gateways that mean the same."""
    ms = {"type": "number", "exclusiveMinimum": 0, "maximum": max_deadline_ms}
    return (
        _header("X-Weir-Deadline-Ms", "Deadline of the whole answer, in milliseconds.", ms),
        _header("X-Weir-TTFT-Ms", "Deadline of the first token of a stream, in milliseconds.", ms),
        _header(
            "Prefer", "`wait=SECONDS` (RFC 7240): the longest time in the queue; 0: a slot now or a rejection.", _TEXT
        ),
        _header("X-Weir-Class", "The priority class.", _TEXT),
        _header("X-Request-Id", "The client's own id of the request, 1 to 128 of A-Z a-z 0-9 . _ : -", _TEXT),
    )
