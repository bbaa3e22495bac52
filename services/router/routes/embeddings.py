"""POST /v1/embeddings: from an OpenAI-compatible server that serves the named model, else from the retrieval service.

A server's embeddings take a slot and a share as any answer, and pass as they are. The retrieval service's embedder has
its own bounded queue: no worker is involved and no slot is taken; the request is identified, takes from its tenant's
rate, is bounded in time, counted and settled as any other.
"""

from __future__ import annotations

import asyncio
import base64
import struct
from functools import partial
from typing import Any

import msgspec

from services.contracts.search import EmbedReply
from services.router.parsing.parsers import parse_embeddings
from services.router.parsing.plain import PlainEmbeddings
from services.router.rag.prompt import estimate_tokens
from services.router.request import InferenceRequest
from services.router.serving.forwarding import forwarding
from services.router.serving.pipeline import Pipeline
from services.router.serving.timing import headers
from services.runtime.errors import BadInput, NoSuchModel, Refused
from services.runtime.http import Exchange
from services.runtime.strictjson import LONG, convert, loads

OF_ANOTHER_TOKENIZER = (
    "input: Weir's own embedder takes text, and not the token ids of another model's tokenizer; send text (in "
    "langchain: check_embedding_ctx_length=False), or name a model of an OpenAI-compatible server"
)


async def embed(pipeline: Pipeline, exchange: Exchange) -> None:
    await pipeline.live(exchange, partial(_embed, pipeline))


async def _embed(pipeline: Pipeline, exchange: Exchange, request: InferenceRequest) -> Refused | None:
    json = loads(exchange.body, LONG)
    fleet, model = pipeline.dispatcher.fleet, json.get("model") if isinstance(json, dict) else None
    if isinstance(model, str) and model in fleet.models and fleet.servers(model).allow is not None:
        return await pipeline.answer(lambda _: parse_embeddings(json), exchange, request)
    await _embed_here(pipeline, exchange, request, json)
    return None


async def _embed_here(pipeline: Pipeline, exchange: Exchange, request: InferenceRequest, json: Any) -> None:
    asked = _of_text(json)
    texts = [asked.input] if isinstance(asked.input, str) else list(asked.input)
    tokens = float(sum(map(estimate_tokens, texts)))
    async with forwarding(pipeline, exchange, request, "embed", tokens) as trace:
        reply = await pipeline.retrieval.embed(texts, trace)
        if asked.model not in (None, reply.model):
            raise NoSuchModel(asked.model or "")
        if asked.dimensions not in (None, reply.dimensions):
            raise BadInput(f"dimensions: this model has {reply.dimensions}", "dimensions")
        body = _embedding_list(reply, as_base64=asked.encoding_format == "base64")
        await exchange.reply(200, body, headers=headers(request, asyncio.get_running_loop().time()))


def _of_text(json: Any) -> PlainEmbeddings:
    given = json.get("input") if isinstance(json, dict) else None
    if isinstance(given, list) and given and isinstance(given[0], (int, list)):
        raise BadInput(OF_ANOTHER_TOKENIZER, "input")
    return convert(json, PlainEmbeddings)


def _embedding_list(reply: EmbedReply, *, as_base64: bool) -> bytes:
    data = [
        {"object": "embedding", "index": index, "embedding": _packed(vector) if as_base64 else vector}
        for index, vector in enumerate(reply.vectors)
    ]
    usage = {"prompt_tokens": reply.tokens, "total_tokens": reply.tokens}
    return msgspec.json.encode({"object": "list", "data": data, "model": reply.model, "usage": usage})


def _packed(vector: list[float]) -> str:
    """Little-endian float32 in base64, as OpenAI sends it."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
