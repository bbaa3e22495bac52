"""The request target and the Host of a request line, checked and remembered: clients send few different ones."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote

import httptools

_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~%!$&'()*+,;=-]{1,255})(?::[0-9]{0,5})?")


@lru_cache(maxsize=256)
def is_host(value: bytes) -> bool:
    """Whether this is a host with or without a port (RFC 9110 section 7.2)."""
    return _HOST.fullmatch(value.strip(b" \t")) is not None


@lru_cache(maxsize=256)
def target_of(target: bytes) -> tuple[str, bytes, bytes | None]:
    """The path of a request target, unescaped; its query; its authority, if it has one. Raises ValueError.

    The authority replaces Host (RFC 9112 section 3.2.2), and an empty path means `/`.
    """
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        raise ValueError("it is not a valid URL") from None
    authority = None
    if url.schema is not None:
        authority = target.partition(b"://")[2].partition(b"?")[0].partition(b"/")[0]
        if url.schema.lower() not in (b"http", b"https") or not is_host(authority):
            raise ValueError("it is not an http:// or https:// address")
    path = (url.path or b"/").decode("ascii")
    return (unquote(path) if "%" in path else path), target.partition(b"?")[2], authority
