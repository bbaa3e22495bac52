"""Client -> router -> retrieval: `/documents`. The tenant comes from the request's identity, never from the body."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MediaType = Literal["text/plain", "text/markdown", "text/x-rst", "text/html", "application/pdf"]
State = Literal["added", "updated", "unchanged"]

MAX_ID_BYTES = 1024
MAX_PAGE = 500

# Router -> retrieval, with a PUT: the tenant's quota from the tenants file. Without them retrieval's settings apply.
QUOTA_COUNT_HEADER = b"x-documents-count"
QUOTA_BYTES_HEADER = b"x-documents-bytes"
MAX_QUOTA = 2**53

# Query parameters of GET /documents, for the OpenAPI document.
PAGE_PARAMETERS: tuple[dict[str, Any], ...] = (
    {
        "name": "after",
        "in": "query",
        "schema": {
            "type": "string",
            "maxLength": MAX_ID_BYTES,
            "pattern": r"^[^\u0000-\u001f\u007f-\u009f\ufffd]*$",
        },
    },
    {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}},
)


# What the OpenAPI document says of PutDocument beyond its fields.
EITHER: tuple[dict[str, Any], ...] = (
    {
        "title": "A text.",
        "required": ["text"],
        "properties": {
            "text": {"type": "string"},
            "content": {"type": "null"},
            "media_type": {"enum": [None, "text/plain", "text/markdown", "text/x-rst", "text/html"]},
        },
    },
    {
        "title": "A file in base64.",
        "required": ["content", "media_type"],
        "properties": {
            "text": {"type": "null"},
            "content": {"type": "string", "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"},
            "media_type": {"type": "string"},
        },
    },
)


class PutDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Either `text`, plain unless `media_type` is set, or `content` in base64 with its `media_type`."""

    text: Annotated[str, Meta(min_length=1)] | None = None
    content: Annotated[str, Meta(min_length=1)] | None = None
    media_type: MediaType | None = None
    title: Annotated[str, Meta(min_length=1, max_length=512)] | None = None


class DocumentPut(msgspec.Struct, frozen=True):
    """The document is stored. `version` is that of the corpus with it; `chunks` is the number of searchable chunks."""

    id: str
    state: State
    title: str
    version: int
    chunks: int


class DocumentDeleted(msgspec.Struct, frozen=True):
    """The document is deleted. `version` is that of the corpus without it."""

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
    """A page, ordered by id. The next page is at `after` = `next`; null: this is the last page."""

    documents: list[DocumentEntry]
    next: str | None = None
