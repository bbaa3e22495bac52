"""POST /v1/embeddings: vectors by the retrieval service's embedder, which has its own bounded line.

No worker is involved, so no place is taken; the request is identified, taken from its tenant's rate, bounded in time,
counted and settled as any.
"""

from __future__ import annotations

import asyncio
import base64
import struct

import msgspec

from services.contracts.openai import EmbeddingsRequest
from services.contracts.search import EmbedReply
from services.router.observing.life import Life
from services.router.observing.spans import calling
from services.router.passages.prompt import estimate_tokens
from services.router.serving.pipeline import Pipeline, stop_when_gone
from services.runtime.errors import BadInput, NoSuchModel, Refused
from services.runtime.http import Exchange
from services.runtime.strictjson import decode


async def embed(pipeline: Pipeline, exchange: Exchange) -> None:
    """Serve one request for vectors."""
    await pipeline.live(exchange, lambda life: _embed(pipeline, exchange, life))


async def _embed(pipeline: Pipeline, exchange: Exchange, life: Life) -> Refused | None:
    life.tenant = pipeline.tenants.by_header(exchange.header)  # a stranger's body is not worth reading
    request = decode(exchange.body, EmbeddingsRequest)
    pipeline.introduce(exchange, None, life)
    deadline_at = life.began_at + life.deadline_ms / 1000
    stop_when_gone(exchange)
    texts = [request.input] if isinstance(request.input, str) else list(request.input)
    limit_at = min(deadline_at, life.began_at + pipeline.settings.http_timeout_s)
    tokens = float(sum(map(estimate_tokens, texts)))
    refusal = pipeline.reserve(life, tokens)
    if refusal is not None:
        return refusal
    async with asyncio.timeout_at(limit_at):
        try:
            trace, _ = calling(exchange.trace, "embed", asyncio.get_running_loop().time())
            reply = await pipeline.retrieval.embed(texts, trace)
        except Refused:  # by the embedder: it has used no rate
            if life.tenant is not None and life.tenant.rate is not None:
                life.tenant.rate.give_back(life.began_at, tokens)
            raise
        if request.model not in (None, reply.model):
            raise NoSuchModel(request.model or "")
        if request.dimensions not in (None, reply.dimensions):
            raise BadInput(f"dimensions: this model has {reply.dimensions}", "dimensions")
        body = _embedding_list(reply, as_base64=request.encoding_format == "base64")
        await exchange.reply(200, body, headers=life.headers(asyncio.get_running_loop().time()))
    return None


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
