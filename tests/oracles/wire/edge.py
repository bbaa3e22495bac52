"""The edge: every case of the corpus of doubtful requests, and what the bounds and timers of a listener answer."""

from __future__ import annotations

import asyncio

from services.core.outcome import Outcome
from services.runtime.errors import Refused
from services.runtime.http import Exchange
from tests.oracles.wire.transcript import Transcript, connect
from tests.oracles.within import within
from tests.runtime.corpus import CASES, LIMITS, get, post
from tests.runtime.rig import build, tight


async def _echo(exchange: Exchange) -> None:
    mirrored = [value for name, value in exchange.headers if name == b"x-mirror"]
    await exchange.reply(200, b" ".join([*mirrored, exchange.body]), content_type=b"text/plain")


async def _later(exchange: Exchange) -> None:
    await asyncio.sleep(0.01)
    await _echo(exchange)


async def _stream(exchange: Exchange) -> None:
    await exchange.start(200, b"text/plain")
    await exchange.write(b"one")
    await exchange.end(b"two")


async def _full(exchange: Exchange) -> None:
    raise Refused(Outcome.YIELD, "full")


async def _cut(exchange: Exchange) -> None:
    await exchange.start(200, b"text/plain")
    await exchange.write(b"one")
    raise RuntimeError("broken")


async def _broken(exchange: Exchange) -> None:
    raise RuntimeError("broken")


ROUTES = {
    **{(method, f"/{name}"): handler for method in ("GET", "POST", "HEAD") for name, handler in {
        "echo": _echo, "later": _later, "stream": _stream, "full": _full, "cut": _cut, "broken": _broken,
    }.items()},
}  # fmt: skip


async def corpus() -> str:
    """Requests as bytes: valid, doubtful and hostile, each on a connection of its own."""
    told = Transcript("The edge: valid, doubtful and hostile requests")
    async with within(build(ROUTES, limits=LIMITS, eager=["/echo", "/full"])) as process:
        for name, case in CASES.items():
            await told.say(name, process.bound_port, case.data, within_s=0.09)
        await told.say("a handler that fails", process.bound_port, get(b"/broken"))
        await told.say("a handler that fails in the middle", process.bound_port, get(b"/cut"))
    return told.text


async def bounds() -> str:
    """Too slow, too many, too much."""
    told = Transcript("The edge: timers and bounds")
    limits = tight(headers_s=10.0, body_s=30.0, write_stall_s=10.0, connections=4, incoming_bytes=4096, body_bytes=4000)
    async with within(build(ROUTES, limits=limits, idle_timeout_s=75.0)) as process:
        port = process.bound_port
        await told.say("a connection that says nothing", port, within_s=20.0)
        await told.say("headers that stop", port, get(b"/echo")[:-2], within_s=20.0)
        await told.say("a body that stops", port, post(b"hello")[:-2], within_s=60.0)
        await told.say("a connection that rests", port, get(b"/echo"), within_s=120.0)
        others = [await connect(port) for _ in range(4)]
        await told.say("one connection too many", port, get(b"/echo"), within_s=5.0)
        for other in others[:3]:
            other.transport.abort()
        await asyncio.sleep(0.1)
        others[3].transport.write(post(b"x" * 3000)[:-1])
        await asyncio.sleep(0.1)
        await told.say("more bytes than may be on their way", port, post(b"x" * 3000)[:-1], within_s=5.0)
        others[3].transport.abort()
    return told.text
