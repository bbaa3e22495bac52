"""Tenant -> router -> retrieval: documents under `/documents`. The tenant is the request's, never the body's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MediaType = Literal["text/plain", "text/markdown", "text/x-rst", "text/html", "application/pdf"]
State = Literal["added", "updated", "unchanged"]

MAX_ID_BYTES = 1024
MAX_PAGE = 500

# Router -> retrieval, with a PUT: what the tenants file lets this tenant keep. Without them retrieval's settings hold.
QUOTA_COUNT_HEADER = b"x-documents-count"
QUOTA_BYTES_HEADER = b"x-documents-bytes"
MAX_QUOTA = 2**53

# Of GET /documents, as an OpenAPI document says it.
PAGE_PARAMETERS: tuple[dict[str, Any], ...] = (
    {"name": "after", "in": "query", "schema": {"type": "string"}},
    {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}},
)


class PutDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Either `text`, plain unless `media_type` says otherwise, or `content` in base64 with its `media_type`."""

    text: Annotated[str, Meta(min_length=1)] | None = None
    content: Annotated[str, Meta(min_length=1)] | None = None
    media_type: MediaType | None = None
    title: Annotated[str, Meta(min_length=1, max_length=512)] | None = None


class DocumentPut(msgspec.Struct, frozen=True):
    """A document is in. `version` is that of the corpus which brought it; `chunks` is what a search can find of it."""

    id: str
    state: State
    title: str
    version: int
    chunks: int


class DocumentDeleted(msgspec.Struct, frozen=True):
    """A document has gone, and `version` is that of the corpus without it."""

    id: str
    version: int
    deleted: bool = True


class DocumentEntry(msgspec.Struct, frozen=True):
    """One document of a list."""

    id: str
    title: str
    version: int
    chunks: int


class DocumentList(msgspec.Struct, frozen=True):
    """A page, by id. The next one is had with `after` = `next`; None: this was the last."""

    documents: list[DocumentEntry]
    next: str | None = None
