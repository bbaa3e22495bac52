"""The public routes: bytes in, bytes out. Everything between is `pipeline`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from services.router.asking.parsers import Parser, chat_parser, completion_parser, parse_ask
from services.router.routes.documents import document_routes
from services.router.routes.embeddings import embed
from services.router.routes.openapi import HEADERS, document, page
from services.router.serving.pipeline import Pipeline
from services.runtime.clock import unix_seconds
from services.runtime.http import Exchange, Handler


def routes(pipeline: Pipeline) -> dict[tuple[str, str], Handler]:
    """(METHOD, path) -> handler."""
    default_max_tokens = pipeline.settings.default_max_tokens
    described = document()
    spec = msgspec.json.encode(described)
    html = page(described)

    def answering(parse: Parser) -> Handler:
        return lambda exchange: pipeline.answer(exchange, parse)

    def fixed(body: bytes, content_type: bytes) -> Callable[[Exchange], Awaitable[None]]:
        return lambda exchange: exchange.reply(200, body, content_type=content_type, headers=HEADERS)

    return {
        ("POST", "/ask"): answering(parse_ask),
        ("POST", "/v1/chat/completions"): answering(chat_parser(default_max_tokens)),
        ("POST", "/v1/completions"): answering(completion_parser(default_max_tokens)),
        ("POST", "/v1/embeddings"): lambda exchange: embed(pipeline, exchange),
        **document_routes(pipeline),
        ("GET", "/v1/models"): lambda exchange: _models(pipeline, exchange),
        ("GET", "/openapi.json"): fixed(spec, b"application/json"),
        ("GET", "/docs"): fixed(html, b"text/html; charset=utf-8"),
        ("GET", "/"): fixed(html, b"text/html; charset=utf-8"),
    }


async def _models(pipeline: Pipeline, exchange: Exchange) -> None:
    """Those that its tenant may use. A stranger learns of none."""
    tenant = pipeline.tenants.identify(exchange.header, None)
    created = unix_seconds()
    models = [
        {"id": model, "object": "model", "created": created, "owned_by": "weir"}
        for model in pipeline.dispatcher.fleet.models
        if tenant.allows(model)
    ]
    await exchange.reply(200, msgspec.json.encode({"object": "list", "data": models}))
