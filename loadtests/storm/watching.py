"""What the router says of itself while a run goes on: its console's frames, and its counters before and after.

Both are wanted and neither is needed: a run without them is a run whose report leaves those lines out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from loadtests.storm.asking import page_of
from services.contracts.storm import PolicyTold
from services.runtime.keepalive import Pool, Reply
from services.runtime.upstream import UpstreamError

WITHIN_S = 2.0
AGAIN_IN_S = 1.0
MOST_METRICS_BYTES = 8_388_608
MOST_EVENT_BYTES = 1_048_576
COUNTERS = ("weir_requests_total{", "weir_wasted_seconds_total{")


class _Waiting(msgspec.Struct):
    requests: int


class _Inflight(msgspec.Struct):
    now: int


class Frame(msgspec.Struct):
    """What is read of a frame; the rest of it is for eyes."""

    level: int = 0
    waiting: _Waiting = msgspec.field(default_factory=lambda: _Waiting(0))
    inflight: _Inflight = msgspec.field(default_factory=lambda: _Inflight(0))
    policy: PolicyTold | None = None

    @property
    def at_rest(self) -> bool:
        """Nothing waits, nothing runs, and nothing is cut from answers."""
        return not (self.level or self.waiting.requests or self.inflight.now)


class Counters(msgspec.Struct, frozen=True):
    """Some of the router's counters at one moment. `requests`: by tenant and outcome."""

    requests: dict[tuple[str, str], float] = {}
    wasted_s: float = 0.0


_frame = msgspec.json.Decoder(Frame).decode


class Watching:
    """One viewer of the console, for as long as `watch` runs."""

    def __init__(self, router_url: str, heard: Callable[[Frame], None]) -> None:
        self._pool = Pool(router_url, max_connections=2)
        self._heard = heard

    async def watch(self) -> None:
        """Until cancelled. A router that is away, or has no console, is asked again now and then."""
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
                await reply.read(MOST_EVENT_BYTES)
                return
            await self._follow(reply)

    async def _follow(self, reply: Reply) -> None:
        waiting = b""
        while (piece := await reply.next_piece()) is not None:
            *events, waiting = (waiting + piece).split(b"\n\n")
            if len(waiting) > MOST_EVENT_BYTES:
                return
            newest = next((event for event in reversed(events) if event.startswith(b"event: frame\n")), None)
            if newest is not None:
                self._heard(_frame(newest.partition(b"\ndata: ")[2]))


async def counters(metrics_url: str, within_s: float = WITHIN_S, token: bytes = b"") -> Counters | None:
    """What /metrics says now; None where it says nothing in time."""
    most = MOST_METRICS_BYTES
    body = await page_of(metrics_url, b"/metrics", within_s=within_s, most_bytes=most, token=token)
    try:
        return None if body is None else _counters(body.decode())
    except ValueError:
        return None


def _counters(text: str) -> Counters:
    requests: defaultdict[tuple[str, str], float] = defaultdict(float)
    wasted_s = 0.0
    kept = (line for line in text.splitlines() if line.startswith(COUNTERS))
    for family in text_string_to_metric_families("\n".join(kept) + "\n"):
        for sample in family.samples:
            if sample.name == "weir_wasted_seconds_total":
                wasted_s += sample.value
            else:
                requests[sample.labels.get("tenant", ""), sample.labels.get("outcome", "")] += sample.value
    return Counters(dict(requests), wasted_s)


def counted(before: Counters | None, after: Counters | None, tenants: set[str]) -> dict[str, float]:
    """How the requests of these tenants ended between the two, by the router's count."""
    if before is None or after is None:
        return {}
    found: defaultdict[str, float] = defaultdict(float)
    for (tenant, outcome), value in after.requests.items():
        if tenant in tenants:
            found[outcome] += value - before.requests.get((tenant, outcome), 0.0)
    return {outcome: value for outcome, value in sorted(found.items()) if value}
