"""What the router's metrics say, as Prometheus would read them: over the simulated network."""

from __future__ import annotations

import asyncio
import re
from collections import Counter

from loadtests.world.system import ROUTER_METRICS, TOKEN

RETRIES = re.compile(r"^weir_retries_total\{[^}]*\} (\S+)$", re.MULTILINE)
SAMPLE = re.compile(r'^weir_requests_total\{[^}]*outcome="([a-z_]+)"[^}]*\} (\S+)$', re.MULTILINE)


async def counted() -> tuple[Counter[str], int]:
    """`weir_requests_total` by outcome, over all tenants, and retries. Raises OSError, TimeoutError."""
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(*ROUTER_METRICS)
        writer.write(
            f"GET /metrics HTTP/1.1\r\nhost: {ROUTER_METRICS[0]}\r\nauthorization: Bearer {TOKEN}\r\n"
            "connection: close\r\n\r\n".encode()
        )
        text = (await reader.read()).decode()
        writer.close()
    found: Counter[str] = Counter()
    for outcome, value in SAMPLE.findall(text):
        found[outcome] += int(float(value))
    retries = sum(int(float(value)) for value in RETRIES.findall(text))
    return Counter({outcome: count for outcome, count in found.items() if count}), retries
