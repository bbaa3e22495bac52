"""A worker and a retrieval that bring each request as far as a chosen stage, and wait there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum

import msgspec

from services.contracts.generate import Done, GenerateRequest, Token
from services.runtime.http import Exchange
from tests.router.rig import TIMINGS, USAGE, WORDS, FakeRetrieval, FakeWorker

HALF_AN_EVENT = b'{"type"'


class Stage(Enum):
    """Where a client leaves."""

    CONNECT = "connect"
    HEADERS = "headers"
    BODY = "body"
    QUEUED = "queued"
    RETRIEVAL = "retrieval"
    DISPATCHED = "dispatched"
    IN_BATCH = "in batch"
    FIRST_TOKEN = "first token"
    MID_STREAM = "mid-stream"
    LAST_TOKEN = "last token"
    RETRY = "retry"
    AFTER = "after the end"


NOT_YET_ASKED = (Stage.CONNECT, Stage.HEADERS, Stage.BODY)
AT_A_WORKER = (
    Stage.DISPATCHED,
    Stage.IN_BATCH,
    Stage.FIRST_TOKEN,
    Stage.MID_STREAM,
    Stage.LAST_TOKEN,
    Stage.RETRY,
)
TOKENS_BEFORE = {Stage.FIRST_TOKEN: 1, Stage.MID_STREAM: 5, Stage.LAST_TOKEN: len(WORDS)}


class SteppingWorker(FakeWorker):
    """Answers as far as the stage goes, and then waits for `go`, or for ever."""

    def __init__(self, stage: Stage, slots: int, go: asyncio.Event, failed: set[str]) -> None:
        super().__init__(self.step, slots=slots)
        self.stage = stage
        self.go = go
        self.failed = failed
        self.there = 0
        self.finished = 0

    async def step(self, exchange: Exchange, request: GenerateRequest, worker: FakeWorker) -> None:
        """The script of every request."""
        if self.stage is Stage.RETRY and self._first_try(exchange):
            await exchange.reply(500, b"")
            return
        if self.stage is not Stage.AFTER:
            await (self._stream if request.stream else self._whole)(exchange)
            self.there += 1
            await (self.go.wait() if self.stage is Stage.LAST_TOKEN else asyncio.Event().wait())
        await self._end(exchange, stream=request.stream)
        self.finished += 1

    def _first_try(self, exchange: Exchange) -> bool:
        id = self.ids[-1]
        if id in self.failed:
            return False
        self.failed.add(id)
        return True

    async def _stream(self, exchange: Exchange) -> None:
        if self.stage is Stage.IN_BATCH:
            await exchange.start(200, b"application/x-ndjson")
            await exchange.write(HALF_AN_EVENT)
        elif self.stage in TOKENS_BEFORE:
            await exchange.start(200, b"application/x-ndjson")
            for _ in range(TOKENS_BEFORE[self.stage]):
                await exchange.write(msgspec.json.encode(Token("word ")) + b"\n")

    async def _whole(self, exchange: Exchange) -> None:
        body = last_of(stream=False)
        shown = {Stage.IN_BATCH: 1, Stage.FIRST_TOKEN: 8, Stage.MID_STREAM: len(body) // 2, Stage.LAST_TOKEN: -1}
        if self.stage in shown:
            await exchange.start(200, b"application/x-ndjson")
            await exchange.write(body[: shown[self.stage]])

    async def _end(self, exchange: Exchange, *, stream: bool) -> None:
        body = last_of(stream=stream)
        if not exchange.started:
            await exchange.start(200, b"application/x-ndjson")
        await exchange.end(body if stream or self.stage is Stage.AFTER else body[-1:])


def last_of(*, stream: bool) -> bytes:
    """The last event of an answer; of a plain one the only one."""
    return msgspec.json.encode(Done("stop", USAGE, TIMINGS, 1, None if stream else "".join(WORDS))) + b"\n"


class StalledRetrieval(FakeRetrieval):
    """Says nothing, and notices who leaves."""

    def __init__(self) -> None:
        super().__init__(stall=True)
        self.embedding = 0
        self.left = 0

    async def retrieve(self, exchange: Exchange) -> None:
        await self._until_left(exchange, super().retrieve)

    async def embed(self, exchange: Exchange) -> None:
        self.embedding += 1
        await self._until_left(exchange, lambda _: asyncio.Event().wait())

    async def _until_left(self, exchange: Exchange, handler: Callable[[Exchange], Awaitable[object]]) -> None:
        task = asyncio.current_task()
        assert task is not None
        exchange.on_gone(task.cancel)
        try:
            await handler(exchange)
        except asyncio.CancelledError:
            self.left += 1
            raise
