"""What the embedder costs: one short question, an ingest, and memory while nothing happens."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Iterator

from loadtests.bench.client import closed_loop, post
from loadtests.bench.machine import rss_mb
from loadtests.bench.retrieval.stand import Stand
from loadtests.report.figure import Figure

DOCUMENTS = "docs/decisions"


async def measure(stand: Stand, seconds: float) -> list[Figure]:
    """With this project's decision records as the documents of a tenant of their own."""
    async with stand.service() as service:
        idle_mb = rss_mb(service.pid)
        texts = _texts()
        one = await closed_loop(service.port, lambda: _embed(service.port, next(texts)), 1, seconds)
        grown = f"{rss_mb(service.pid):.0f} MB after embedding"
    return [
        Figure("idle memory, embedder included", idle_mb, "MB", 400, at_least=False, note=grown),
        Figure("embedding one question, p50", one.quantile_ms(0.5), "ms", note=f"{one.per_second:,.0f}/s"),
        await _ingest(stand),
    ]


def _embed(port: int, text: str) -> bytes:
    return post(port, "/embed", json.dumps({"input": [text]}).encode())


def _texts() -> Iterator[str]:
    """Short questions, as people ask them."""
    for number in itertools.count(1):
        yield f"What happens when the worker drains, for the {number}. time?"


async def _ingest(stand: Stand) -> Figure:
    """Chunks per second of a first ingest, as the ingester itself tells: reading, embedding and writing."""
    words = ["-m", "services.retrieval.ingest", DOCUMENTS, "--tenant", "documents", "--progress", "json"]
    child = await asyncio.create_subprocess_exec(
        sys.executable, *words, env={**os.environ, **stand.environment()}, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await child.communicate()
    told = json.loads(said.splitlines()[-1])
    note = f"{told['embedded']} chunks of {told['added']} documents in {told['seconds']:.1f} s"
    return Figure("ingest", told["embedded"] / told["seconds"], "chunks/s", note=note)
