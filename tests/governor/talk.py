"""A client's side of the wire, for tests: frames as bytes, replies as dictionaries."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from services.governor.gate import Gate, GovernorLimits
from services.governor.job import Ended, Result, Work
from services.governor.protocol import Actions, GovernorSession

BASE = [
    "server.health", "backend.inflight", "backend.cap", "server.executed_total", "server.yielded_total", "cdr.bytes_in",
]  # fmt: skip


def frame(**fields: Any) -> bytes:
    return json.dumps({"v": 0, "ttl_ms": 0, **fields}).encode() + b"\n"


def ping(seq: int = 1, job: str = "J_ping") -> bytes:
    return frame(verb="ping", job=job, seq=seq)


def manifest(data: bytes, **changed: Any) -> dict[str, Any]:
    """What is said of this payload; in chunks of 8 bytes if nothing else is said."""
    chunk_bytes = 8 if not changed.get("chunk_bytes") else changed["chunk_bytes"]
    sent: dict[str, Any] = {
        "payload_id": "P_1", "content_type": "application/octet-stream", "content_encoding": "identity",
        "cipher": "none", "total_bytes": len(data), "chunk_bytes": chunk_bytes,
        "chunks": max(1, -(-len(data) // chunk_bytes)), "sha256": hashlib.sha256(data).hexdigest(),
    }  # fmt: skip
    return {**sent, **changed}


def chunk(data: bytes, index: int, *, payload_id: str = "P_1", **changed: Any) -> dict[str, Any]:
    sent = {
        "payload_id": payload_id, "index": index, "offset": 0, "sha256": hashlib.sha256(data).hexdigest(),
        "bytes_b64": base64.b64encode(data).decode(),
    }  # fmt: skip
    return {**sent, **changed}


def upload(data: bytes, *, job: str = "J_a", chunk_bytes: int = 8, seq: int = 1, ttl_ms: int = 0) -> list[bytes]:
    """The frames of a whole upload."""
    pieces = [data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)] or [b""]
    deferred = frame(
        verb="share", job=job, seq=seq, ttl_ms=ttl_ms, payload_manifest=manifest(data, chunk_bytes=chunk_bytes)
    )
    return [deferred] + [
        frame(verb="share", job=job, seq=seq + 1 + index, ttl_ms=ttl_ms, payload_chunk=chunk(piece, index))
        for index, piece in enumerate(pieces)
    ]


class Rig:
    """One gate, any number of conversations, a clock that stands until it is moved, and no chance at all."""

    def __init__(
        self, *, cap: int = 1, random: float = 0.0, tokens: frozenset[str] = frozenset(), **bounds: Any
    ) -> None:
        self.gate = Gate(cap=cap, bounds=GovernorLimits(**bounds), random=lambda: random, tokens=tokens)
        self.now = 100.0

    def connect(self) -> Peer:
        return Peer(self)


class Peer:
    """A client, and what it was told."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.session = GovernorSession(rig.gate, rig.now)
        self.work: Work | None = None
        self.closed = False

    def send(self, *lines: bytes) -> list[dict[str, Any]]:
        """All of it at once; the replies."""
        return self._heard(self.session.receive(b"".join(lines), self.rig.now))

    def one(self, line: bytes) -> dict[str, Any]:
        (reply,) = self.send(line)
        return reply

    def hang_up_half(self) -> list[dict[str, Any]]:
        return self._heard(self.session.half_closed(self.rig.now))

    def finish(self, ended: Ended = Ended.DONE, seconds: float = 2.0, **shown: Any) -> list[dict[str, Any]]:
        """The job that runs ends."""
        assert self.work is not None
        work, self.work = self.work, None
        work.slot.release_slot(seconds)
        return self._heard(self.session.ended(Result(ended, seconds, shown=shown), self.rig.now))

    def deferred(self, actions: Actions) -> list[dict[str, Any]]:
        return self._heard(actions)

    def _heard(self, actions: Actions) -> list[dict[str, Any]]:
        if actions.more:
            now, actions.more = actions, False
            return self._heard(now) + self._heard(self.session.go_on(self.rig.now))
        if actions.work is not None:
            assert self.work is None
            self.work = actions.work
        self.closed = self.closed or actions.close
        return [json.loads(line) for line in bytes(actions.out).splitlines()]


def short(reply: dict[str, Any]) -> tuple[str, str, str, str, int]:
    """What a conformance case compares: verb, status, need, error, seq."""
    return reply["verb"], reply["status"], reply.get("need_code", ""), reply.get("error_code", ""), reply["seq"]


def kinds(reply: dict[str, Any]) -> list[str]:
    """Its receipts' kinds, in order, after the six that are always there."""
    found = [receipt["kind"] for receipt in reply["receipts"]]
    assert found[:6] == BASE
    return found[6:]


def receipt(reply: dict[str, Any], kind: str) -> int:
    return next(int(receipt["value_u64"]) for receipt in reply["receipts"] if receipt["kind"] == kind)
