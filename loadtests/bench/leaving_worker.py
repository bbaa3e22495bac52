"""A worker, and a retrieval, that bring a request as far as its prompt says and then fall silent.

The prompt is the name of a stage of `bench.disconnects`; GET /there says how many requests have come to theirs. Two
ports, one process: a first attempt that is to fail, and the second one, know of one another.

Run: python -m loadtests.bench.leaving_worker PORT PORT
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from random import Random

import msgspec
import uvloop

from services.contracts.generate import Done, GenerateRequest, Timings, Token, Usage, WorkerStatus
from services.runtime.drain import Drain
from services.runtime.guard import GuardLimits
from services.runtime.http import Exchange, Handler
from services.runtime.log import Log
from services.runtime.serve import HttpListener, Process, running
from services.runtime.service import Readiness, Service
from services.runtime.telemetry import metrics_app, new_registry

IDLE_S = 75.0
SLOTS = 64
LAST_WITHIN_S = 0.03  # the last event comes somewhere around its client's leaving
TOKENS = {"first token": 1, "mid-stream": 5, "last token": 8}
WHOLE = {"in batch": 1, "first token": 8, "mid-stream": 30, "last token": -1}  # bytes of a plain answer
TOKEN = msgspec.json.encode(Token("word ")) + b"\n"


class Worker:
    """Both ports' handlers."""

    def __init__(self) -> None:
        self.there = 0
        self._tried: set[bytes] = set()
        self._random = Random(1).random

    def routes(self) -> dict[tuple[str, str], Handler]:
        return {
            ("GET", "/status"): self.status,
            ("GET", "/there"): self.count,
            ("POST", "/generate"): self.generate,
            ("POST", "/cancel/*"): self.cancel,
            ("POST", "/retrieve"): self.hang,
        }

    async def status(self, exchange: Exchange) -> None:
        status = WorkerStatus("bench", "bench", ["bench"], SLOTS, SLOTS, 0, 0, False, 1.0)
        await exchange.reply(200, msgspec.json.encode(status))

    async def count(self, exchange: Exchange) -> None:
        await exchange.reply(200, b"%d" % self.there)

    async def cancel(self, exchange: Exchange) -> None:
        await exchange.reply(200, b"{}")

    async def hang(self, exchange: Exchange) -> None:
        task = asyncio.current_task()
        assert task is not None
        exchange.on_gone(task.cancel)
        self.there += 1
        await asyncio.Event().wait()

    async def generate(self, exchange: Exchange) -> None:
        request = msgspec.json.decode(exchange.body, type=GenerateRequest)
        stage = request.messages[-1].content if request.messages else ""
        id = exchange.header(b"x-request-id") or b""
        if stage == "retry" and id not in self._tried:
            self._tried.add(id)
            await exchange.reply(500, b"")
            return
        last = msgspec.json.encode(_done(stream=request.stream)) + b"\n"
        if stage != "after the end":
            await self._begin(exchange, stage, last, stream=request.stream)
            if stage != "last token":
                await self.hang(exchange)
            self.there += 1
            await asyncio.sleep(self._random() * LAST_WITHIN_S)
        if not exchange.started:
            await exchange.start(200, b"application/x-ndjson")
        await exchange.end(last[-1:] if stage == "last token" and not request.stream else last)

    async def _begin(self, exchange: Exchange, stage: str, last: bytes, *, stream: bool) -> None:
        pieces = [TOKEN] * TOKENS.get(stage, 0) if stream else [last[: WHOLE[stage]]] if stage in WHOLE else []
        if stream and stage == "in batch":
            pieces = [TOKEN[:5]]
        if pieces:
            await exchange.start(200, b"application/x-ndjson")
            await exchange.write(b"".join(pieces))


def _done(*, stream: bool) -> Done:
    return Done("stop", Usage(8, 8), Timings(1.0, 2.0, 3.0), 1, None if stream else "word " * 8)


async def main(*ports: int) -> None:
    worker = Worker()
    async with AsyncExitStack() as stack:
        for port in ports:
            log, drain = Log("worker", "ERROR"), Drain()
            service = Service("worker", worker.routes(), ready=lambda: Readiness(True), log=log, drain=drain)
            listener = HttpListener(service, GuardLimits(), IDLE_S)
            process = Process(
                "worker", listener, metrics_app(new_registry()), log, drain, "127.0.0.1", port, "127.0.0.1", 0
            )
            await stack.enter_async_context(running(process))
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(*map(int, sys.argv[1:])))
