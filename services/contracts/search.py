"""Router -> retrieval: `POST /retrieve` and `POST /embed`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Source = Literal["db", "cache", "semantic", "stale", "none"]


class RetrieveRequest(msgspec.Struct, frozen=True):
    """`budget_ms` is the time that remains for the whole call, the fallback's share included.

    `effort` is the share of the usual search work, 1 for all of it: a lower value is cheaper and may miss some of the
    nearest passages. `hybrid` ranks by meaning and by words; without it, by meaning alone.
    """

    query: Annotated[str, Meta(min_length=1, max_length=8192)]
    tenant: Annotated[str, Meta(min_length=1, max_length=128)]
    top_k: Annotated[int, Meta(ge=1, le=50)] = 5
    cache_ttl_s: Annotated[float, Meta(ge=0, le=86_400)] = 300
    budget_ms: Annotated[float, Meta(gt=0, le=120_000)] = 100
    effort: Annotated[float, Meta(gt=0, le=1)] = 1.0
    hybrid: bool = True


class Passage(msgspec.Struct, frozen=True):
    """One chunk of a document. `distance` is the cosine distance to the query, in [0, 2]."""

    chunk_id: str
    doc_id: str
    version: int
    text: str
    distance: float


class RetrieveReply(msgspec.Struct, frozen=True):
    """`source` is where the passages came from; `none`: the budget ran out or the store is down.

    `age_s` is the age of a cached or stale result, 0 for a fresh search. `reason` explains why `source` is not `db`.
    """

    source: Source
    results: list[Passage]
    age_s: float = 0.0
    embed_ms: float = 0.0
    search_ms: float = 0.0
    reason: str | None = None


class EmbedRequest(msgspec.Struct, frozen=True):
    """Texts to embed, in order."""

    input: Annotated[list[Annotated[str, Meta(min_length=1, max_length=32_768)]], Meta(min_length=1, max_length=256)]


class EmbedReply(msgspec.Struct, frozen=True):
    """One vector per text, L2-normalised, `dimensions` floats each; `tokens` is the embedder's count."""

    model: str
    dimensions: int
    vectors: list[list[float]]
    tokens: int
