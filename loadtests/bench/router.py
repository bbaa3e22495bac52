"""The router on one core, before a stub on the other: throughput, refusals, streamed chunks, added latency."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

from loadtests.bench.client import Connection, Tally, closed_loop, connect, open_loop, post
from loadtests.bench.machine import cores, pinned, process, rss_mb, until_ready
from loadtests.bench.stub import workers_file
from loadtests.report.figure import Figure

ROUTER_PORT, METRICS_PORT, STUB_PORT = 28000, 29000, 28080
CONNECTIONS = 32
FULL = {"MAX_INFLIGHT": "1", "MAX_QUEUE_SIZE": "1", "TENANT_QUEUE_SIZE": "1"}
"""With one that runs and one that waits the house is full."""


def chat(model: str, stream: bool = False) -> bytes:
    body = {
        "model": model,
        "messages": [
            {"role": "system", "content": "You are a lock keeper."},
            {"role": "user", "content": "What does a weir do to a river that is in flood, and why?"},
        ],
        "max_tokens": 64,
        "stream": stream,
    }
    return json.dumps(body, separators=(",", ":")).encode()


async def measure(seconds: float) -> list[Figure]:
    router_core, other_core = cores()
    with tempfile.TemporaryDirectory() as folder, pinned(other_core):
        workers = workers_file(Path(folder), STUB_PORT)
        env = {
            "ROUTER_PORT": str(ROUTER_PORT), "METRICS_PORT": str(METRICS_PORT), "WORKERS_FILE": str(workers),
            "MAX_INFLIGHT": "64", "RETRIEVAL_URL": "http://127.0.0.1:1",
        }  # fmt: skip
        async with process(["-m", "loadtests.bench.stub", str(STUB_PORT)], other_core):
            async with process(["-m", "services.router"], router_core, env) as pid:
                await until_ready(f"http://127.0.0.1:{ROUTER_PORT}/health/ready")
                idle_mb = rss_mb(pid)
                figures = await _loads(seconds)
                figures.append(Figure("idle memory", idle_mb, "MB", 80, at_least=False))
            refusing = {**env, **FULL}
            async with process(["-m", "services.router"], router_core, refusing):
                await until_ready(f"http://127.0.0.1:{ROUTER_PORT}/health/ready")
                figures += await _refusals(seconds)
            async with process(["-m", "loadtests.bench.bare", str(ROUTER_PORT)], router_core):
                await until_ready(f"http://127.0.0.1:{ROUTER_PORT}/")
                bare = await closed_loop(ROUTER_PORT, post(ROUTER_PORT, "/", chat("fast")), CONNECTIONS, seconds)
                figures.append(Figure("for scale: an empty ASGI app under uvicorn", bare.per_second, "requests/s"))
    return figures


async def _loads(seconds: float) -> list[Figure]:
    plain = post(ROUTER_PORT, "/v1/chat/completions", chat("fast"))
    direct = post(STUB_PORT, "/v1/chat/completions", chat("fast"))
    streamed = post(ROUTER_PORT, "/v1/chat/completions", chat("fast", stream=True))
    ceiling = await closed_loop(STUB_PORT, direct, CONNECTIONS, seconds / 2)
    busy = await closed_loop(ROUTER_PORT, plain, CONNECTIONS, seconds)
    _must(busy, 200)
    streams = await closed_loop(ROUTER_PORT, streamed, CONNECTIONS, seconds)
    _must(streams, 200)
    alone = await open_loop(STUB_PORT, direct, 200, seconds * 2)
    through = await open_loop(ROUTER_PORT, plain, 200, seconds * 2)
    chunks = streams.events / streams.wall_s
    return [
        Figure("chat completions", busy.per_second, "requests/s", 8000,
               note=f"p50 {busy.quantile_ms(0.5):.1f} ms, p99 {busy.quantile_ms(0.99):.1f} ms; "
                    f"client and stub alone {ceiling.per_second:,.0f}/s"),
        Figure("streamed chunks", chunks, "chunks/s", 15_000,
               note=f"{CONNECTIONS} streams; {streams.events / max(1, streams.reads):.2f} chunks per read"),
        Figure("added latency p50, at 200 requests/s", through.quantile_ms(0.5) - alone.quantile_ms(0.5), "ms", 1.5,
               at_least=False, note=f"{through.quantile_ms(0.5):.2f} ms against {alone.quantile_ms(0.5):.2f} ms"),
        Figure("added latency p99, at 200 requests/s", through.quantile_ms(0.99) - alone.quantile_ms(0.99), "ms", 6,
               at_least=False, note=f"{through.quantile_ms(0.99):.2f} ms against {alone.quantile_ms(0.99):.2f} ms"),
    ]  # fmt: skip


async def _refusals(seconds: float) -> list[Figure]:
    held = await fill()
    request = post(ROUTER_PORT, "/v1/chat/completions", chat("fast"))
    refused = await closed_loop(ROUTER_PORT, request, CONNECTIONS, seconds)
    _must(refused, 429)
    for holder in held:
        holder.transport.close()
    return [
        Figure("refusals", refused.per_second, "requests/s", 12_000),
        Figure("refusal p99", refused.quantile_ms(0.99), "ms", 10, at_least=False,
               note=f"p50 {refused.quantile_ms(0.5):.1f} ms"),
    ]  # fmt: skip


async def fill() -> list[Connection]:
    """One that runs and one that waits, neither of whom is answered: whoever comes now is refused."""
    held: list[Connection] = []
    for _ in range(2):
        holder = await connect(ROUTER_PORT, Tally())
        holder.ask(post(ROUTER_PORT, "/v1/chat/completions", chat("hang"))).add_done_callback(forget)
        held.append(holder)
        await asyncio.sleep(0.2)
    return held


def forget(done: asyncio.Future[None]) -> None:
    """Nobody asks how it ended."""
    if not done.cancelled():
        done.exception()


def _must(tally: Tally, status: int) -> None:
    if set(tally.statuses) != {status} or tally.failed:
        raise RuntimeError(f"expected only {status}, got {tally.statuses} and {tally.failed} failures")
