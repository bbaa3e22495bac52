"""The life of one request: what happened when, for its headers, its log line and its metrics."""

from __future__ import annotations

import msgspec

from services.contracts.openai import Timing
from services.router.call import End
from services.router.dispatcher import Place
from services.router.retrieval import Found
from services.router.tenants import OTHER


class Life(msgspec.Struct):
    """Times are the loop's, in seconds; 0.0 until it happens."""

    began_at: float
    tenant: str = OTHER
    deadline_ms: float = 0.0
    place: Place | None = None
    level: int = 0
    dispatched_at: float = 0.0
    first_at: float = 0.0
    found: Found | None = None
    end: End | None = None
    degraded: list[str] = []

    def cut(self, what: str) -> None:
        """Something was left out; the client is told, once."""
        if what not in self.degraded:
            self.degraded.append(what)

    def timing(self, now: float) -> Timing:
        """The story in milliseconds."""
        queue_ms = self.end.queue_ms if self.end else 0.0
        inference_s = now - self.dispatched_at if self.dispatched_at else 0.0
        return Timing(
            level=self.level,
            degraded=self.degraded,
            queue_ms=round(queue_ms, 2),
            retrieval_ms=round(self.found.seconds * 1000, 2) if self.found else 0.0,
            inference_ms=round(inference_s * 1000, 2),
            total_ms=round((now - self.began_at) * 1000, 2),
        )

    def headers(self, now: float | None) -> list[tuple[bytes, bytes]]:
        """x-weir-degraded, and Server-Timing where the whole story is known."""
        headers: list[tuple[bytes, bytes]] = []
        if self.degraded:
            headers.append((b"x-weir-degraded", ",".join(self.degraded).encode("ascii")))
        if now is not None:
            timing = self.timing(now)
            value = b"queue;dur=%g, retrieval;dur=%g, inference;dur=%g, total;dur=%g" % (
                timing.queue_ms, timing.retrieval_ms, timing.inference_ms, timing.total_ms,
            )  # fmt: skip
            headers.append((b"server-timing", value))
        return headers
