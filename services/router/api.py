"""The public routes: bytes in, bytes out. Everything between is `pipeline`."""

from __future__ import annotations

import base64
import struct
from collections.abc import Awaitable, Callable

import msgspec

from services.contracts.openai import EmbeddingsRequest
from services.contracts.search import EmbedReply
from services.router.asked import Parser, chat_parser, completion_parser, parse_ask
from services.router.deadlines import deadline_ms
from services.router.openapi import document, page
from services.router.pipeline import Pipeline, stop_when_gone
from services.runtime.clock import unix_seconds
from services.runtime.errors import BadInput
from services.runtime.http import Exchange, Handler
from services.runtime.strictjson import decode


def routes(pipeline: Pipeline) -> dict[tuple[str, str], Handler]:
    """(METHOD, path) -> handler."""
    default_max_tokens = pipeline.settings.default_max_tokens
    spec = msgspec.json.encode(document())
    html = page(document())

    def answering(parse: Parser) -> Handler:
        return lambda exchange: pipeline.answer(exchange, parse)

    def fixed(body: bytes, content_type: bytes) -> Callable[[Exchange], Awaitable[None]]:
        return lambda exchange: exchange.reply(200, body, content_type=content_type)

    return {
        ("POST", "/ask"): answering(parse_ask),
        ("POST", "/v1/chat/completions"): answering(chat_parser(default_max_tokens)),
        ("POST", "/v1/completions"): answering(completion_parser(default_max_tokens)),
        ("POST", "/v1/embeddings"): lambda exchange: _embeddings(pipeline, exchange),
        ("GET", "/v1/models"): lambda exchange: _models(pipeline, exchange),
        ("GET", "/openapi.json"): fixed(spec, b"application/json"),
        ("GET", "/docs"): fixed(html, b"text/html; charset=utf-8"),
        ("GET", "/"): fixed(html, b"text/html; charset=utf-8"),
    }


async def _models(pipeline: Pipeline, exchange: Exchange) -> None:
    created = unix_seconds()
    models = [
        {"id": model, "object": "model", "created": created, "owned_by": "weir"}
        for model in pipeline.dispatcher.pool.models
    ]
    await exchange.reply(200, msgspec.json.encode({"object": "list", "data": models}))


async def _embeddings(pipeline: Pipeline, exchange: Exchange) -> None:
    request = decode(exchange.body, EmbeddingsRequest)
    settings = pipeline.settings
    texts = [request.input] if isinstance(request.input, str) else list(request.input)
    timeout_s = deadline_ms(exchange.headers, settings.default_slo_ms, settings.max_deadline_ms) / 1000
    stop_when_gone(exchange)
    reply = await pipeline.retrieval.embed(texts, timeout_s)
    if request.dimensions not in (None, reply.dimensions):
        raise BadInput(f"dimensions: this model has {reply.dimensions}", "dimensions")
    if request.model not in (None, reply.model):
        raise BadInput(
            f"model: the embedding model here is {reply.model!r}", "model", status=404, code="model_not_found"
        )
    await exchange.reply(200, _embedding_list(reply, as_base64=request.encoding_format == "base64"))


def _embedding_list(reply: EmbedReply, *, as_base64: bool) -> bytes:
    data = [
        {"object": "embedding", "index": index, "embedding": _packed(vector) if as_base64 else vector}
        for index, vector in enumerate(reply.vectors)
    ]
    usage = {"prompt_tokens": reply.tokens, "total_tokens": reply.tokens}
    return msgspec.json.encode({"object": "list", "data": data, "model": reply.model, "usage": usage})


def _packed(vector: list[float]) -> str:
    """Little-endian float32, base64: what OpenAI sends and its client unpacks."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
