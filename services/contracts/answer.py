"""Client -> router: `POST /ask`, a question answered from the tenant's documents."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from services.contracts.openai import TenantName

RetrievalSource = Literal["db", "cache", "semantic", "stale", "none", "skipped"]


class AskRequest(msgspec.Struct, frozen=True):
    """The router believes `tenant` only in lab mode, without a tenants file."""

    query: Annotated[str, Meta(min_length=1, max_length=8192)]
    tenant: TenantName | None = None
    top_k: Annotated[int, Meta(ge=1, le=20)] = 5
    max_tokens: Annotated[int, Meta(ge=1, le=2048)] | None = None
    cache_ttl_s: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    stream: bool = False
    model: str | None = None


class Citation(msgspec.Struct, frozen=True):
    """A passage in the prompt."""

    doc_id: str
    chunk_id: str
    distance: float


class Usage(msgspec.Struct, frozen=True):
    """Token counts as in OpenAI's API."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AskReply(msgspec.Struct, frozen=True):
    """`source` is "tier1" if and only if nothing was cut and retrieval is db, cache or semantic."""

    text: str
    source: Literal["tier1", "degraded"]
    retrieval_source: RetrievalSource
    top_k_used: int
    served_ms: float
    retrieval_ms: float
    inference_served_ms: float
    level: int
    degraded: list[str]
    citations: list[Citation]
    usage: Usage
