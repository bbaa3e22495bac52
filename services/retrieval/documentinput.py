"""Validation of requests to the documents API. Each function raises BadInput."""

from __future__ import annotations

import base64
import binascii
from unicodedata import category

from services.contracts.documents import (
    MAX_ID_BYTES,
    MAX_PAGE,
    MAX_QUOTA,
    QUOTA_BYTES_HEADER,
    QUOTA_COUNT_HEADER,
    PutDocument,
)
from services.retrieval.writing import Quota
from services.runtime.errors import BadInput
from services.runtime.http import Exchange
from services.runtime.query import parameters

PAGE = 100
MAX_TENANT_CHARS = 128
ENDINGS = {
    "text/plain": ".txt", "text/markdown": ".md", "text/x-rst": ".rst", "text/html": ".html", "application/pdf": ".pdf",
}  # fmt: skip


def tenant_of(exchange: Exchange) -> str:
    """The tenant, which the router names in `x-tenant`."""
    try:
        tenant = (exchange.header(b"x-tenant") or b"").decode("utf-8")
    except UnicodeDecodeError:
        tenant = ""
    if not tenant or len(tenant) > MAX_TENANT_CHARS:
        raise BadInput(f"X-Tenant: must name the tenant, in 1 to {MAX_TENANT_CHARS} characters", "X-Tenant")
    return tenant


def quota_of(exchange: Exchange, usual: Quota) -> Quota:
    """The tenant's quota: the router's headers where it sends them, else `usual`."""
    return Quota(
        documents=_bound(exchange, QUOTA_COUNT_HEADER, usual.documents),
        bytes=_bound(exchange, QUOTA_BYTES_HEADER, usual.bytes),
    )


def _bound(exchange: Exchange, name: bytes, usual: int) -> int:
    value = exchange.header(name)
    if value is None:
        return usual
    if not (value.isdigit() and len(value) <= len(str(MAX_QUOTA))):
        raise BadInput(f"{name.decode()}: must be a number from 0 to {MAX_QUOTA}", name.decode())
    return int(value)


def checked_id(doc_id: str) -> str:
    """The document id of the path."""
    if len(doc_id.encode("utf-8", "replace")) > MAX_ID_BYTES:
        raise BadInput(f"id: is longer than {MAX_ID_BYTES} bytes", "id")
    if any(category(char) in ("Cc", "Cs") for char in doc_id) or "\N{REPLACEMENT CHARACTER}" in doc_id:
        raise BadInput("id: must be UTF-8 without control characters", "id")
    return doc_id


def page_of(query: bytes) -> tuple[str, int]:
    """The id to list after, and the size of the page."""
    asked = parameters(query, ("after", "limit"))
    limit = asked.get("limit", str(PAGE))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MAX_PAGE):
        raise BadInput(f"limit: must be a number from 1 to {MAX_PAGE}", "limit")
    after = asked.get("after", "")
    return (checked_id(after) if after else ""), int(limit)


def content_of(wanted: PutDocument) -> tuple[str, bytes]:
    """The file suffix of the document's kind, and its bytes."""
    if (wanted.text is None) == (wanted.content is None):
        raise BadInput("text: give either `text`, or `content` with its `media_type`", "text")
    if wanted.text is not None:
        kind = wanted.media_type or "text/plain"
        if not kind.startswith("text/"):
            raise BadInput(f"media_type: {kind} is not text: send it as `content`, in base64", "media_type")
        return ENDINGS[kind], wanted.text.encode("utf-8")
    if wanted.media_type is None:
        raise BadInput("media_type is required with `content`", "media_type")
    try:
        return ENDINGS[wanted.media_type], base64.b64decode(wanted.content or "", validate=True)
    except (binascii.Error, ValueError):
        raise BadInput("content: is not base64", "content") from None
