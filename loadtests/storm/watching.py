"""The router's own figures of a run: console frames during it, and counters before and after.

Both are optional; a report without them omits those lines.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from loadtests.cluster import books
from services.contracts.storm import PolicySwitches
from services.runtime.keepalive import Pool, Reply
from services.runtime.upstream import UpstreamError

WITHIN_S = 2.0
AGAIN_IN_S = 1.0
MAX_METRICS_BYTES = 8_388_608
MAX_EVENT_BYTES = 1_048_576


class _Waiting(msgspec.Struct):
    requests: int


class _Inflight(msgspec.Struct):
    now: int


class Frame(msgspec.Struct):
    level: int = 0
    waiting: _Waiting = msgspec.field(default_factory=lambda: _Waiting(0))
    inflight: _Inflight = msgspec.field(default_factory=lambda: _Inflight(0))
    policy: PolicySwitches | None = None

    @property
    def at_rest(self) -> bool:
        """Nothing waits, nothing runs and nothing is degraded."""
        return not (self.level or self.waiting.requests or self.inflight.now)


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of the router at one moment: requests of the run's tenants by outcome, and wasted time."""

    requests: Counter[str]
    wasted_s: float


_frame = msgspec.json.Decoder(Frame).decode


class Watching:
    """One console viewer while `watch` runs."""

    def __init__(self, router_url: str, on_frame: Callable[[Frame], None]) -> None:
        self._pool = Pool(router_url, max_connections=2)
        self._on_frame = on_frame

    async def watch(self) -> None:
        """Read frames until cancelled; retry while the router is unreachable or has no console."""
        try:
            while True:
                with contextlib.suppress(UpstreamError, msgspec.MsgspecError, TimeoutError):
                    await self._view()
                await asyncio.sleep(AGAIN_IN_S)
        finally:
            self._pool.close()

    async def _view(self) -> None:
        with await self._pool.request(b"GET", b"/console/events") as reply:
            if reply.status != 200:
                await reply.read(MAX_EVENT_BYTES)
                return
            await self._follow(reply)

    async def _follow(self, reply: Reply) -> None:
        waiting = b""
        while (piece := await reply.next_piece()) is not None:
            *events, waiting = (waiting + piece).split(b"\n\n")
            if len(waiting) > MAX_EVENT_BYTES:
                return
            newest = next((event for event in reversed(events) if event.startswith(b"event: frame\n")), None)
            if newest is not None:
                self._on_frame(_frame(newest.partition(b"\ndata: ")[2]))


async def counters(
    metrics_url: str, tenants: Collection[str], within_s: float = WITHIN_S, token: bytes = b""
) -> Counters | None:
    """The current values of /metrics; None without an answer in time."""
    body = await page_of(metrics_url, b"/metrics", within_s=within_s, max_bytes=MAX_METRICS_BYTES, token=token)
    try:
        text = "" if body is None else body.decode()
        counted = Counters(books.of_router(text, tenants), books.total(text, "weir_wasted_seconds_total"))
        return counted if text else None
    except ValueError:
        return None


async def page_of(url: str, target: bytes, *, within_s: float, max_bytes: int, token: bytes = b"") -> bytes | None:
    """The body of a 200; None for any other answer or a timeout."""
    pool = Pool(url, max_connections=1, token=token)
    try:
        async with asyncio.timeout(within_s):
            with await pool.request(b"GET", target) as reply:
                body = await reply.read(max_bytes)
        return body if reply.status == 200 else None
    except (UpstreamError, TimeoutError):
        return None
    finally:
        pool.close()
