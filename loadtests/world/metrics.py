"""The metrics of router and governor, scraped over the simulated network."""

from __future__ import annotations

import asyncio
from collections import Counter

from loadtests.cluster import books
from loadtests.world.system import GOVERNOR_METRICS, ROUTER_METRICS_PORT, TOKEN, router_address


async def counted(router: int) -> tuple[Counter[str], int, int]:
    """Of one router: `weir_requests_total` by outcome over all tenants, its own retries, and clients' early retries.
    Raises OSError, TimeoutError.
    """
    text = await _scraped((router_address(router), ROUTER_METRICS_PORT))
    retries, early = (round(books.total(text, f"weir_{what}_total")) for what in ("retries", "early_retries"))
    return +books.of_router(text), retries, early


async def counted_jobs() -> tuple[Counter[str], int, int]:
    """The governor's jobs by end, the started jobs, and yields. Raises OSError, TimeoutError."""
    text = await _scraped(GOVERNOR_METRICS)
    ended = books.by_label(text, "weir_governor_jobs_total", "outcome")
    executed, yielded = (round(books.total(text, f"heptamini_{what}_total")) for what in ("executed", "yielded"))
    return ended, executed, yielded


async def _scraped(address: tuple[str, int]) -> str:
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(
            f"GET /metrics HTTP/1.1\r\nhost: {address[0]}\r\nauthorization: Bearer {TOKEN}\r\n"
            "connection: close\r\n\r\n".encode()
        )
        text = (await reader.read()).decode()
        writer.close()
    return text
