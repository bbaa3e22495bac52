"""Every refusal of the router, on each of the routes that make text, plain and streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.oracles.wire.stand import TEXTS, Library, Stand, standing
from tests.oracles.wire.transcript import Client, Transcript, connect, post, request
from tests.router.rig import FakeWorker, answer, cut_after, failing, hang, refuse, then

CALLER = {"x_tenant": "caller"}
CHAT = "/v1/chat/completions"


async def _hold(stand: Stand, tenant: str, **fields: Any) -> Client:
    """A chat that nobody waits for here: it takes a slot, or a place in line."""
    client = await connect(stand.port)
    client.transport.write(post(CHAT, {**TEXTS[CHAT], **fields}, x_tenant=tenant))
    await asyncio.sleep(0.01)
    return client


@asynccontextmanager
async def _occupied(stand: Stand, *waiting: str, **fields: Any) -> AsyncIterator[None]:
    """The one slot is taken, and these tenants wait."""
    clients = [await _hold(stand, "holder", **fields), *[await _hold(stand, tenant) for tenant in waiting]]
    yield
    for client in clients:
        client.transport.abort()
    await asyncio.sleep(0.1)


async def admission() -> str:
    """Refused at the door, or while waiting."""
    told = Transcript("The router: refusals by admission")
    one = {"slots": 1}
    async with standing(told, FakeWorker(hang, **one), tenant_queue_size=1) as stand, _occupied(stand, "caller"):
        await stand.on_every_route("the tenant's queue is full", headers=CALLER)
    full = standing(told, FakeWorker(hang, **one), max_queue_size=1, tenant_queue_size=1)
    async with full as stand, _occupied(stand, "other"):
        await stand.on_every_route("the router's queue is full", headers=CALLER)
    small = standing(told, FakeWorker(hang, **one), max_queue_bytes=1024)
    async with small as stand, _occupied(stand):
        await stand.on_every_route("the tenant's bytes are used up", headers=CALLER, fields={"user": "x" * 300})
    async with standing(told, FakeWorker(hang, **one), max_queue_bytes=1024) as stand, _occupied(stand):
        for tenant in ("one", "two", "three", "four"):
            await _hold(stand, tenant, user="x" * 180)
        await stand.on_every_route("the router's bytes are used up", headers=CALLER)
    async with standing(told, FakeWorker(answer), lab_tenant_rps=0.2) as stand:
        await stand.say("the one that the rate allows", post(CHAT, TEXTS[CHAT], **CALLER))
        await stand.on_every_route("the rate is used up", headers=CALLER)
    async with standing(told, FakeWorker(hang, **one)) as stand, _occupied(stand):
        await stand.on_every_route("no slot, and no wait", headers={**CALLER, "prefer": "wait=0"})
        await stand.on_every_route(
            "no slot in the wait that was asked for", headers={**CALLER, "prefer": "wait=1"}, within_s=2
        )
    slow = FakeWorker(hang, slots=1, step_ms=100, prefill_ms_per_token=1)
    async with standing(told, slow) as stand, _occupied(stand, max_tokens=256):
        tight = {**CALLER, "x_weir_deadline_ms": "2000"}
        await stand.on_every_route("the deadline cannot be met", headers=tight, fields={"max_tokens": 1})
    crawling = FakeWorker(answer, slots=1, step_ms=100, prefill_ms_per_token=1000)
    async with standing(told, crawling) as stand:
        await stand.on_every_route("the deadline can never be met", headers={**CALLER, "x_weir_deadline_ms": "500"})
    async with standing(told, FakeWorker(hang, slots=1, step_ms=1000)) as stand, _occupied(stand, "caller"):
        (waiting,) = stand.dispatcher.waiting
        waiting.flow.stats.codel.limit_s = 0.0
        await stand.on_every_route("the tenant's queue stands", headers=CALLER)
    async with standing(told, FakeWorker(hang, **one)) as stand, _occupied(stand, max_tokens=1):
        few, tight = {"max_tokens": 1}, {**CALLER, "x_weir_deadline_ms": "200"}
        await stand.on_every_route("the deadline passes in line", headers=tight, fields=few, within_s=1)
        soon = post(CHAT, {**TEXTS[CHAT], "stream": True}, x_weir_ttft_ms="100", x_tenant="impatient")
        await stand.say("the time of the first token passes in line", soon)
    return told.text


async def working() -> str:
    """Failed after admission: no worker, or one that fails."""
    told = Transcript("The router: failures of workers")
    async with standing(told) as stand:
        await stand.on_every_route("no worker is alive", headers=CALLER)
    many = {"slots": 8}
    async with standing(told, FakeWorker(hang, **many)) as stand:
        await stand.on_every_route("the deadline passes", headers={**CALLER, "x_weir_deadline_ms": "150"}, within_s=1)
        for route, body in TEXTS.items():
            soon = post(route, {**body, "stream": True}, x_weir_ttft_ms="100")
            await stand.say(f"the first token does not come: {route}, streamed", soon)
    async with standing(told, *(FakeWorker(failing(), **many) for _ in range(2)), retry_share=1.0) as stand:
        await stand.on_every_route("workers fail before the first token", headers=CALLER)
    for route, body in TEXTS.items():
        for stream in (False, True):
            async with standing(told, *(FakeWorker(refuse, **many) for _ in range(2))) as stand:
                await stand.say(
                    f"workers refuse: {route}{', streamed' * stream}", post(route, {**body, "stream": stream})
                )
    for route, body in TEXTS.items():
        for stream in (False, True):
            async with standing(told, FakeWorker(cut_after(0)), FakeWorker(cut_after(0))) as stand:
                await stand.say(
                    f"two workers die of it: {route}{', streamed' * stream}", post(route, {**body, "stream": stream})
                )
    async with standing(told, FakeWorker(then(cut_after(2), answer)), FakeWorker(answer)) as stand:
        for route, body in TEXTS.items():
            stand.workers[0].script = stand.workers[1].script = cut_after(2)
            await stand.say(f"the worker dies in mid-stream: {route}", post(route, {**body, "stream": True}))
            await asyncio.sleep(10)
    async with standing(told, FakeWorker(_silent, **many), stream_silence_s=1.0) as stand:
        for route, body in TEXTS.items():
            await stand.say(f"the worker falls silent: {route}", post(route, {**body, "stream": True}))
    return told.text


async def _silent(exchange: Any, asked: Any, worker: FakeWorker) -> None:
    """Two tokens, and then nothing."""
    if asked.stream:
        await exchange.start(200, b"application/x-ndjson")
        await exchange.write(b'{"event":"token","text":"A "}\n')
    await asyncio.Event().wait()


async def leaving() -> str:
    """A router that drains: who waits, who comes, and what health says."""
    told = Transcript("The router: draining")
    async with standing(told, FakeWorker(hang, slots=1), retrieval=Library()) as stand, _occupied(stand):
        waits = await _hold(stand, "waiter")
        stand.process.drain.begin()
        told.lines += ["", "=== one that waited when the drain began"]
        await told.listen(waits, 0.05)
        await stand.on_every_route("one that comes", headers=CALLER)
        await stand.say("vectors", post("/v1/embeddings", {"input": "one"}))
        await stand.say("readiness", request("GET", "/health/ready"))
    return told.text


BAD_BODIES: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "no object": b"[]",
    "no UTF-8": b'{"messages":"\xff"}',
    "a key twice": b'{"messages":[],"messages":[]}',
    "too deep": b"[" * 2000,
    "a number without end": b'{"max_tokens":' + b"9" * 400 + b"}",
    "no number": b'{"temperature":NaN}',
    "a number beyond all": b'{"temperature":1e999}',
    "a byte-order mark": b"\xef\xbb\xbf{}",
    "half a character": b'{"model":"\\ud800"}',
    "half a character in a key": b'{"\\ud800":1}',
}
BAD_FIELDS: dict[str, dict[str, Any]] = {
    "no such model": {"model": "gpt-9"},
    "no tokens": {"max_tokens": 0},
    "tokens as text": {"max_tokens": "8"},
    "too many tokens": {"max_tokens": 1_000_000},
    "stream as text": {"stream": "yes"},
    "a tenant without a name": {"tenant": ""},
}
BAD_HEADERS: dict[str, dict[str, str]] = {
    "a deadline that is none": {"x_weir_deadline_ms": "soon"},
    "a deadline of nothing": {"x_weir_deadline_ms": "0"},
    "a time of the first token that is none": {"x_weir_ttft_ms": "-1"},
    "a grpc-timeout that is none": {"grpc_timeout": "5y"},
    "a tenant that is none": {"x_tenant": "a b"},
    "a class that is none": {"x_weir_class": "royal"},
    "a compressed body": {"content_encoding": "gzip"},
}


async def wrong() -> str:
    """Requests that are wrong themselves."""
    told = Transcript("The router: requests that are wrong")
    async with standing(told, FakeWorker(answer), retrieval=Library(), max_body_bytes=4096) as stand:
        for route, good in TEXTS.items():
            for name, body in BAD_BODIES.items():
                await stand.say(f"{name}: {route}", post(route, body))
            for name, fields in BAD_FIELDS.items():
                await stand.say(f"{name}: {route}", post(route, {**good, **fields}))
            for name, headers in BAD_HEADERS.items():
                await stand.say(f"{name}: {route}", post(route, good, **headers))
            await stand.say(f"too large: {route}", post(route, {**good, "user": "x" * 5000}))
        for fields in (
            {"messages": []}, {"messages": [{"role": "user"}]}, {"messages": [{"role": "", "content": "hi"}]},
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            {"n": 2}, {"temperature": 3}, {"top_p": 0}, {"stop": ["a"] * 5}, {"logprobs": True}, {"tools": []},
        ):  # fmt: skip
            await stand.say(f"a chat with {json.dumps(fields)}", post(CHAT, {**TEXTS[CHAT], **fields}))
        for fields in ({"prompt": ""}, {"prompt": ["a", "b"]}, {"prompt": 3}, {"echo": True}, {"best_of": 2}):
            await stand.say(f"a text with {json.dumps(fields)}", post("/v1/completions", {"prompt": "hi", **fields}))
        for fields in ({"query": " "}, {"query": ""}, {"top_k": 0}, {"top_k": 21}, {"cache_ttl_s": -1}):
            await stand.say(f"a question with {json.dumps(fields)}", post("/ask", {"query": "hi", **fields}))
    return told.text
