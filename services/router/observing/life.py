"""The life of one request: what happened when, for its headers, its log line and its metrics."""

from __future__ import annotations

import msgspec

from services.contracts.openai import Timing
from services.core.outcome import Outcome
from services.router.asking.alarm import Alarm
from services.router.passages.retrieval import Found
from services.router.tenancy.tenants import Tenant
from services.router.upstreams.call import End
from services.router.workers.turn import Turn

NOBODY = "other"


class Life(msgspec.Struct):
    """Times are the loop's, in seconds; 0.0 until it happens."""

    began_at: float
    tenant: Tenant | None = None
    deadline_ms: float = 0.0
    turn: Turn | None = None
    weighed: Turn | None = None  # the same; and of a request that was refused at the door, what it was weighed as
    depth: int = 0  # how many were in line before it
    worker: str = ""  # who answered it, or was to
    alarm: Alarm | None = None
    reserved_tokens: float = 0.0  # of the tenant's rate, until it is settled
    dispatched_at: float = 0.0
    first_at: float = 0.0
    pieces: int = 0  # of a streamed answer, so far
    found: Found | None = None
    end: End | None = None
    unheard: Outcome | None = None  # how it ended for its client, while its work goes on for nobody (`orphans.py`)
    unheard_at: float = 0.0
    settled: bool = False
    lowered: bool = False  # the answer's limit is below what was asked
    degraded: list[str] = []

    @property
    def label(self) -> str:
        """The tenant's name for metrics and logs; one for all who have not been told apart."""
        return NOBODY if self.tenant is None else self.tenant.id

    @property
    def level(self) -> int:
        """The degradation it was admitted at."""
        return 0 if self.turn is None else self.turn.level

    def cut(self, what: str) -> None:
        """Something was left out; the client is told, once."""
        if what not in self.degraded:
            self.degraded.append(what)

    def cuts(self) -> list[str]:
        """What was cut. A lowered limit counts while the answer may still meet it, and after it if it did."""
        if self.lowered and (self.end is None or self.end.finish_reason == "length"):
            return [*self.degraded, "max_tokens"]
        return self.degraded

    def waited_s(self) -> float:
        """From its place in line to its start."""
        turn = self.turn
        return 0.0 if turn is None or not turn.started_at else turn.started_at - turn.queued_at

    def timing(self, now: float) -> Timing:
        """The story in milliseconds."""
        inference_s = now - self.dispatched_at if self.dispatched_at else 0.0
        return Timing(
            level=self.level,
            degraded=self.cuts(),
            queue_ms=round(self.waited_s() * 1000, 2),
            retrieval_ms=round(self.found.seconds * 1000, 2) if self.found else 0.0,
            inference_ms=round(inference_s * 1000, 2),
            total_ms=round((now - self.began_at) * 1000, 2),
        )

    def let_go(self) -> None:
        """It has ended, and may be looked at for a while: keep the numbers, and nothing that is large or alive."""
        self.alarm = None
        if self.turn is not None:
            self.turn.refusal = None  # an exception that was raised holds its frames, and they hold the prompt
        if self.found is not None and self.found.passages:
            self.found = Found(self.found.source, reason=self.found.reason, seconds=self.found.seconds)

    def headers(self, now: float | None) -> list[tuple[bytes, bytes]]:
        """x-weir-degraded, and Server-Timing where the whole story is known."""
        headers: list[tuple[bytes, bytes]] = []
        cuts = self.cuts()
        if cuts:
            headers.append((b"x-weir-degraded", ",".join(cuts).encode("ascii")))
        if now is not None:
            headers.append((b"server-timing", self._server_timing(now)))
        return headers

    def _server_timing(self, now: float) -> bytes:
        inference_s = now - self.dispatched_at if self.dispatched_at else 0.0
        retrieval_s = self.found.seconds if self.found else 0.0
        return b"queue;dur=%.2f, retrieval;dur=%.2f, inference;dur=%.2f, total;dur=%.2f" % (
            self.waited_s() * 1000, retrieval_s * 1000, inference_s * 1000, (now - self.began_at) * 1000,
        )  # fmt: skip
