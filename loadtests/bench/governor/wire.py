"""What a client of the governor writes, as bytes."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

MOST_CHUNK_BYTES = 190_000


def frame(**fields: Any) -> bytes:
    return json.dumps({"v": 0, **fields}, separators=(",", ":")).encode() + b"\n"


def ping(seq: int = 1) -> bytes:
    return frame(verb="ping", job="J_ping", seq=seq, ttl_ms=0)


def manifest(payload: bytes, *, job: str, chunk_bytes: int, seq: int = 1) -> bytes:
    said = {
        "payload_id": "P_1", "content_type": "application/octet-stream", "content_encoding": "identity",
        "cipher": "none", "total_bytes": len(payload), "chunk_bytes": chunk_bytes,
        "chunks": max(1, -(-len(payload) // chunk_bytes)), "sha256": hashlib.sha256(payload).hexdigest(),
    }  # fmt: skip
    return frame(verb="share", job=job, seq=seq, ttl_ms=0, payload_manifest=said)


def chunk(data: bytes, index: int, *, job: str, offset: int = 0, seq: int = 2) -> bytes:
    said = {
        "payload_id": "P_1", "index": index, "offset": offset, "sha256": hashlib.sha256(data).hexdigest(),
        "bytes_b64": base64.b64encode(data).decode(),
    }  # fmt: skip
    return frame(verb="share", job=job, seq=seq, ttl_ms=0, payload_chunk=said)


def upload(payload: bytes, *, job: str, chunk_bytes: int = MOST_CHUNK_BYTES) -> list[bytes]:
    """A manifest, and then every chunk, as the original's client numbers them."""
    starts = range(0, len(payload), chunk_bytes) or [0]
    return [manifest(payload, job=job, chunk_bytes=chunk_bytes)] + [
        chunk(payload[start : start + chunk_bytes], index, job=job, offset=start, seq=index + 2)
        for index, start in enumerate(starts)
    ]


def receipts(reply: dict[str, Any]) -> dict[str, int]:
    return {receipt["kind"]: receipt["value_u64"] for receipt in reply["receipts"]}
