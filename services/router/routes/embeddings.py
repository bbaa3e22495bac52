"""POST /v1/embeddings: vectors from the retrieval service's embedder, which has its own bounded queue.

No worker is involved, so no slot is taken; the request is identified, takes from its tenant's rate, is bounded in time,
counted and settled as any other.
"""

from __future__ import annotations

import asyncio
import base64
import struct
from functools import partial

import msgspec

from services.contracts.openai import EmbeddingsRequest
from services.contracts.search import EmbedReply
from services.router.rag.prompt import estimate_tokens
from services.router.request import InferenceRequest
from services.router.serving.forwarding import forwarding
from services.router.serving.pipeline import Pipeline
from services.router.serving.timing import headers
from services.runtime.errors import BadInput, NoSuchModel
from services.runtime.http import Exchange
from services.runtime.strictjson import decode


async def embed(pipeline: Pipeline, exchange: Exchange) -> None:
    await pipeline.live(exchange, partial(_embed, pipeline))


async def _embed(pipeline: Pipeline, exchange: Exchange, request: InferenceRequest) -> None:
    asked = decode(exchange.body, EmbeddingsRequest)
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
