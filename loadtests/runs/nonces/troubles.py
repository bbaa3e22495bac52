"""What happens to the workers while they are asked: a rota of troubles until the run is over."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from itertools import cycle

from loadtests.cluster.processes import get
from loadtests.cluster.stand import Server, ready
from loadtests.runs.nonces.stand import Stand

DOWN_S = 1.0
FROZEN_S = 1.5  # longer than two missed probes, and than the silence that is allowed in a stream
LEAST_CALM_S, CALMS = 1.0, 30  # in a long run they are rarer: who dies often is left alone by the router


class Troubles:
    """`count` says what has been done, in a run of so many seconds."""

    def __init__(self, stand: Stand, seconds: float) -> None:
        self.count: Counter[str] = Counter()
        self._stand = stand
        self._calm_s = max(LEAST_CALM_S, seconds / CALMS)

    async def go_on(self) -> None:
        """Until it is cancelled. At most one good worker is in trouble at any time."""
        try:
            await asyncio.sleep(LEAST_CALM_S)
            for evil in self._stand.evil:
                await self._join(evil)
            for worker, trouble in zip(cycle(self._stand.workers), cycle((self._freeze, self._kill)), strict=False):
                await trouble(worker)
                await asyncio.sleep(self._calm_s)
        finally:
            for worker in self._stand.workers:
                worker.process.thaw()

    async def read_evil(self) -> None:
        """How often the evil workers were asked, and how many of their answers were tricks."""
        for evil in self._stand.evil:
            with contextlib.suppress(OSError):
                told = json.loads(await asyncio.to_thread(get, f"{evil.url}/played"))
                self.count["answers of evil workers"] += told["asked"]
                self.count["tricks among them"] += told["tricks"]

    async def _join(self, evil: Server) -> None:
        evil.process.start()
        self.count["evil workers that joined"] += 1
        await asyncio.sleep(LEAST_CALM_S)

    async def _kill(self, worker: Server) -> None:
        worker.process.kill()
        self.count["kill -9"] += 1
        await asyncio.sleep(DOWN_S)
        worker.process.start()
        await ready(worker)

    async def _freeze(self, worker: Server) -> None:
        worker.process.freeze()
        self.count["SIGSTOP"] += 1
        await asyncio.sleep(FROZEN_S)
        worker.process.thaw()
