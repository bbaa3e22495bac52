"""Retrieval over a real database and cache, with this project's own documents as the corpus.

Uncached questions are all different; goodput counts those that were answered from the database within the budget. The
service, the stores and the client share all cores, as they do on one machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from bench.client import Tally, closed_loop, post
from bench.figure import Figure
from bench.machine import process, rss_mb, until_ready
from services.lab.ports import free_port
from services.lab.postgres import EmbeddedPostgres
from services.lab.valkey import EmbeddedValkey

CLIENTS = (1, 16, 64)
BUDGET_MS = 100
CORPUS = "docs"
PARTS = ("router", "worker", "cache", "database", "client", "embedder", "queue")
EVENTS = ("is down", "is slow", "is full", "drains", "comes back", "refuses a request", "misses its deadline")


async def measure(seconds: float) -> list[Figure]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with _stores(Path(folder)) as env:
            ingest = await _ingest(env)
            async with process(["-m", "services.retrieval"], env=env) as pid:
                port = int(env["RETRIEVAL_PORT"])
                await until_ready(f"http://127.0.0.1:{port}/health/ready")
                idle_mb = rss_mb(pid)
                figures = await _loads(port, seconds)
                grown = f"{rss_mb(pid):.0f} MB after the load"
    return [Figure("idle memory, embedder included", idle_mb, "MB", 400, at_least=False, note=grown), ingest, *figures]


@contextlib.asynccontextmanager
async def _stores(folder: Path) -> AsyncIterator[dict[str, str]]:
    """An embedded database and cache, and the environment of a retrieval service over them."""
    database = EmbeddedPostgres(folder / "postgres", free_port(), log=folder / "postgres.log")
    cache = EmbeddedValkey(folder / "valkey", free_port(), log=folder / "valkey.log")
    with contextlib.ExitStack() as stopping:
        for server in (database, cache):
            server.start()
            stopping.callback(server.stop)
        yield {
            "POSTGRES_URL": database.url, "REDIS_URL": cache.url, "RETRIEVAL_BUDGET_MS": str(BUDGET_MS),
            "RETRIEVAL_PORT": str(free_port()), "METRICS_PORT": str(free_port()),
        }  # fmt: skip


async def _ingest(env: dict[str, str]) -> Figure:
    """Chunks per second of a first ingest, as the ingester itself tells: reading, embedding and writing."""
    words = ["-m", "services.retrieval.ingest", CORPUS, "--tenant", "bench", "--progress", "json"]
    child = await asyncio.create_subprocess_exec(
        sys.executable, *words, env={**os.environ, **env}, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await child.communicate()
    told = json.loads(said.splitlines()[-1])
    note = f"{told['embedded']} chunks of {told['added']} documents in {told['seconds']:.1f} s"
    return Figure("ingest", told["embedded"] / told["seconds"], "chunks/s", note=note)


async def _loads(port: int, seconds: float) -> list[Figure]:
    fresh, texts = questions(), questions("Which part of it")
    one = await closed_loop(port, lambda: post(port, "/embed", _json(input=[next(texts)])), 1, seconds)
    figures = [Figure("embedding one question, p50", one.quantile_ms(0.5), "ms", note=f"{one.per_second:,.0f}/s")]
    cached = retrieve(port, lambda: "What is a weir?")
    for clients in CLIENTS[:2]:
        tally = await closed_loop(port, cached, clients, seconds, judge=source)
        figures.append(_figure("cached", tally, clients, "cache"))
    for clients in CLIENTS:
        tally = await closed_loop(port, retrieve(port, lambda: next(fresh)), clients, seconds, judge=source)
        figures.append(_figure("uncached", tally, clients, "db"))
    return figures


def _figure(kind: str, tally: Tally, clients: int, wanted: str) -> Figure:
    others = tally.per_second - tally.rate_of(wanted)
    note = f"p50 {tally.quantile_ms(0.5):.1f} ms, p99 {tally.quantile_ms(0.99):.1f} ms"
    if others:
        note += f"; {others:,.0f}/s more were told within their budget that there is no time"
    plural = "s" if clients > 1 else ""
    return Figure(f"{kind} retrievals, {clients} client{plural}", tally.rate_of(wanted), "requests/s", note=note)


def retrieve(port: int, query: Callable[[], str]) -> Callable[[], bytes]:
    """The next request."""
    return lambda: post(port, "/retrieve", _json(query=query(), tenant="bench", budget_ms=BUDGET_MS))


def questions(opening: str = "What happens") -> Iterator[str]:
    """Questions about the corpus, none of them twice."""
    for n in itertools.count(1):
        for part, event in itertools.product(PARTS, EVENTS):
            yield f"{opening} when the {part} {event}, for the {n}. time?"


def source(body: bytes) -> str:
    """Where a reply says its passages came from."""
    return body.split(b'"source":"', 1)[1].split(b'"', 1)[0].decode()


def _json(**fields: object) -> bytes:
    return json.dumps(fields).encode()
