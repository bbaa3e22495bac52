"""The frames of a governor's client, as bytes, made by the product's own client."""

from __future__ import annotations

import json
from typing import Any

from services.governor.client import Reply, _frames

MAX_CHUNK_BYTES = 190_000


def ping() -> bytes:
    return _frame("ping", "J_ping", 1)


def upload(payload: bytes, *, job: str, chunk_bytes: int = MAX_CHUNK_BYTES) -> list[bytes]:
    frames = _frames(payload, chunk_bytes, "application/octet-stream")
    return [_frame("share", job, seq, **fields) for seq, fields in enumerate(frames, start=1)]


def _frame(verb: str, job: str, seq: int, **fields: Any) -> bytes:
    frame = {"v": 0, "verb": verb, "job": job, "seq": seq, "ttl_ms": 0, **fields}
    return json.dumps(frame, separators=(",", ":")).encode() + b"\n"


def receipt(reply: Reply, kind: str) -> int:
    return next(int(each["value_u64"]) for each in reply["receipts"] if each["kind"] == kind)
