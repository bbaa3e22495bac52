"""Asks a server for its metrics page, beside the probe that decides whether it lives (decision 076).

A page that is missing, foreign, slow, broken or too large never counts against the server: requests do not depend on
it. The last report is kept for MISSES failures in a row. Then, and at once where there is no page of a known engine,
nothing is asked for REST_S.
"""

from __future__ import annotations

import asyncio
from math import inf

from services.router.upstreams.enginepage import EngineReport, read
from services.runtime.keepalive import Pool
from services.runtime.upstream import UpstreamError

MAX_PAGE_BYTES = 1_048_576
WITHIN_S = 0.5
MISSES = 3
REST_S = 60.0
TARGET = b"/metrics"


class EngineReports:
    """The metrics page of one server. The pool's URL is the server's root."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._last: EngineReport | None = None
        self._misses = 0
        self._again_at = -inf

    @property
    def due(self) -> bool:
        """Whether `ask` would ask now."""
        return asyncio.get_running_loop().time() >= self._again_at

    async def ask(self) -> EngineReport | None:
        """The present report, or the last one; None if there is none. Raises nothing but cancellation."""
        if not self.due:
            return None
        try:
            async with asyncio.timeout(WITHIN_S):
                page = await self._page()
        except (TimeoutError, UpstreamError):
            return self._missed()
        report = None if page is None else read(page)
        if report is None:
            self._rest()
            return None
        self._last, self._misses = report, 0
        return report

    async def _page(self) -> bytes | None:
        """The page; None if the server has none. Raises UpstreamError."""
        reply = await self._pool.request(b"GET", TARGET)
        with reply:
            if 400 <= reply.status < 500:
                return None
            if reply.status != 200:
                raise UpstreamError(f"{TARGET.decode()} answered {reply.status}")
            return await reply.read(MAX_PAGE_BYTES)

    def _missed(self) -> EngineReport | None:
        self._misses += 1
        if self._misses >= MISSES:
            self._rest()
        return self._last

    def _rest(self) -> None:
        self._last, self._misses = None, 0
        self._again_at = asyncio.get_running_loop().time() + REST_S

    def close(self) -> None:
        self._pool.retire()
