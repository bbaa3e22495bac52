"""The API's description, made from the wire types themselves, so the two cannot drift apart."""

from __future__ import annotations

import base64
import hashlib
import html
from typing import Any

import msgspec

from services.contracts.answer import AskReply, AskRequest
from services.contracts.documents import MAX_PAGE, DocumentDeleted, DocumentList, DocumentPut, PutDocument
from services.contracts.openai import (
    ChatCompletion,
    ChatRequest,
    CompletionRequest,
    EmbeddingsRequest,
    TextCompletion,
)
from services.contracts.problem import Problem
from services.core.outcome import Outcome
from services.runtime.errors import REFUSALS

POSTS: dict[str, tuple[type, type | None, str]] = {
    "/ask": (AskRequest, AskReply, "A question, answered from the tenant's documents with citations."),
    "/v1/chat/completions": (ChatRequest, ChatCompletion, "OpenAI chat completions, plain or streamed."),
    "/v1/completions": (CompletionRequest, TextCompletion, "OpenAI text completions, plain or streamed."),
    "/v1/embeddings": (EmbeddingsRequest, None, "Vectors for texts, by the retrieval service's embedder."),
}
DOCUMENTS: dict[str, dict[str, tuple[type | None, type, str]]] = {
    "/documents": {"get": (None, DocumentList, "The tenant's documents, by id, in pages.")},
    "/documents/{id}": {
        "put": (PutDocument, DocumentPut, "Add a document, or replace it; the same one again changes nothing."),
        "delete": (None, DocumentDeleted, "Remove a document."),
    },
}
GETS = {
    "/v1/models": "The models that some worker serves; the first is the default.",
    "/health": "Live: the process turns.",
    "/health/ready": "Ready: a worker can take work; what is missing besides stands in `degraded`.",
}


def document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    entries = [*POSTS.values(), *(entry for methods in DOCUMENTS.values() for entry in methods.values())]
    types = [type_ for request, reply, _ in entries for type_ in (request, reply) if type_] + [Problem]
    _, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    paths: dict[str, Any] = {path: {"post": _operation(*entry)} for path, entry in POSTS.items()}
    paths |= {
        path: {"parameters": _parameters(path), **{method: _operation(*entry) for method, entry in methods.items()}}
        for path, methods in DOCUMENTS.items()
    }
    paths |= {
        path: {"get": {"summary": text, "responses": {"200": {"description": "OK"}}}} for path, text in GETS.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Weir", "version": "1", "description": "An overload-proof front door for LLM inference."},
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(request: type | None, reply: type | None, summary: str) -> dict[str, Any]:
    found: dict[str, Any] = {"description": "The answer"}
    if reply is not None:
        found["content"] = {"application/json": {"schema": _ref(reply)}}
    operation: dict[str, Any] = {"summary": summary, "responses": {"200": found, **_refusals()}}
    if request is PutDocument:
        operation["responses"]["201"] = found
    if request is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(request)}}}
    return operation


def _parameters(path: str) -> list[dict[str, Any]]:
    if "{id}" in path:
        return [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    limit = {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}
    return [
        {"name": "after", "in": "query", "schema": {"type": "string"}},
        {"name": "limit", "in": "query", "schema": limit},
    ]


def _refusals() -> dict[str, Any]:
    told: dict[str, list[str]] = {}
    for outcome, answer in REFUSALS.items():
        if outcome is not Outcome.CLIENT_GONE:
            told.setdefault(str(answer.status), []).append(outcome)
    content = {"application/json": {"schema": _ref(Problem)}}
    return {status: {"description": ", ".join(codes), "content": content} for status, codes in sorted(told.items())}


def _ref(type_: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{type_.__name__}"}


def page(document: dict[str, Any]) -> bytes:
    """A plain page of the routes: no scripts, nothing fetched from elsewhere."""
    rows = "".join(
        f"<tr><td><code>{method.upper()}</code></td><td><code>{html.escape(path)}</code></td>"
        f"<td>{html.escape(operation['summary'])}</td></tr>"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if method != "parameters"
    )
    return _PAGE.replace("ROWS", rows).encode("utf-8")


_STYLE = """
:root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}body{max-width:46rem;margin:3rem auto;padding:0 1rem}
td{padding:.35rem .8rem .35rem 0;vertical-align:top;border-top:1px solid #8884}code{font-size:.95em}
"""
_PAGE = f"""<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Weir</title><style>{_STYLE}</style>
<h1>Weir</h1><p>A weir holds a river at its level; what the turbines cannot take goes over the edge,
in plain sight. This is the router's public port.</p><table>ROWS</table>
<p>Machine-readable: <a href="/openapi.json">openapi.json</a>.</p></html>"""

_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode("utf-8")).digest())
HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'sha256-%b'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        % _STYLE_HASH,
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Of the page and of openapi.json: no script runs, nothing is loaded, and no other page shows it in a frame."""
