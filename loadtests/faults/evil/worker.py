"""The server: probes and cancels are answered correctly, questions by tricks."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from loadtests.faults.evil.talk import Json, Talk, length

Trick = Callable[[Talk], Awaitable[None]]
MAX_BODY_BYTES = 1_048_576
MAX_REMEMBERED = 1000
QUESTIONS = ("/generate", "/chat/completions", "/completions")


async def honest(talk: Talk) -> None:
    await talk.send(talk.answered())


def sends(*steps: Callable[[Talk], bytes], then: Callable[[Talk], None] | None = None) -> Trick:
    """A trick that sends these pieces, each read before the next; `then` ends the connection."""

    async def act(talk: Talk) -> None:
        for step in steps:
            await talk.send(step(talk))
        if then is not None:
            then(talk)

    return act


def sends_for_ever(*steps: Callable[[Talk], bytes], again: Callable[[Talk], bytes], every_s: float = 0.0) -> Trick:
    """A trick that sends these pieces, then one piece repeatedly."""

    async def act(talk: Talk) -> None:
        await sends(*steps)(talk)
        while True:
            await talk.send(again(talk))
            if every_s:
                await asyncio.sleep(every_s)

    return act


class EvilWorker:
    """One worker. `choose` picks the trick for each question; `asked` holds the last nonces.

    A trick answers the paths that end with one of `questions`.
    """

    questions: tuple[str, ...] = QUESTIONS

    def __init__(self, kind: str, choose: Callable[[Talk], Trick], *, model: str, slots: int = 4) -> None:
        self.kind = kind
        self.model = model
        self.slots = slots
        self.asked: list[str] = []
        self.unasked: bytes = b""  # sent on connect, before any request
        self.count = self.played = 0
        self.reformed = False  # all answers are right from now on
        self._choose = choose
        self._earlier = b""
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}" + ("/v1" if self.kind == "openai" else "")

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for talk in list(self._talks):
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self._talks.discard(task)
            writer.transport.abort() if self.stopping else writer.close()

    @property
    def stopping(self) -> bool:
        return self._server is None or not self._server.is_serving()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self.unasked)
        count = 0
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            headers = dict(_header(each) for each in head.split(b"\r\n")[1:] if b":" in each)
            body = await reader.readexactly(min(int(headers.get(b"content-length", b"0")), MAX_BODY_BYTES))
            path = head.split(b" ", 2)[1].decode()
            if not path.endswith(self.questions):
                writer.write(self._plain(path))
                continue
            talk = Talk(writer, self.kind, self.model, headers.get(b"x-request-id", b""), json.loads(body))
            talk.earlier, talk.count = self._earlier, count
            count += 1
            self.count += 1
            self.asked.append(talk.nonce)
            del self.asked[:-MAX_REMEMBERED]
            trick = honest if self.reformed else self._choose(talk)
            self.played += trick is not honest
            await _until_gone(trick(talk), reader)
            self._earlier = talk.answered()
            if talk.over:
                return

    def _plain(self, path: str) -> bytes:
        """A correct answer to a probe."""
        status: Json = {}
        if path == "/status":
            status = {
                "name": "evil", "engine": "evil", "models": [self.model], "slots": self.slots, "queue_size": 0,
                "running": 0, "waiting": 0, "draining": False, "step_ms": 1.0,
            }  # fmt: skip
        elif path == "/reform":
            self.reformed = True
            status = {"asked": self.count, "tricks": self.played}
        elif path.endswith("/models"):
            status = {"object": "list", "data": [{"id": self.model, "object": "model"}]}
        body = json.dumps(status).encode()
        return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + length(len(body)) + b"\r\n" + body


async def _until_gone(work: Awaitable[None], reader: asyncio.StreamReader) -> None:
    """Run a trick until it ends or the other side closes: some tricks are endless."""
    playing = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(reader))
    try:
        await asyncio.wait((playing, gone), return_when=asyncio.FIRST_COMPLETED)
        if not playing.done():
            raise ConnectionResetError("the other side has closed")
        await playing
    finally:
        playing.cancel()
        gone.cancel()
        await asyncio.gather(playing, gone, return_exceptions=True)


async def _gone(reader: asyncio.StreamReader) -> None:
    while not reader.at_eof() and reader.exception() is None:  # noqa: ASYNC110  nothing tells it without reading
        await asyncio.sleep(0.02)


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.strip().lower(), value.strip()


@asynccontextmanager
async def running(worker: EvilWorker, port: int = 0) -> AsyncIterator[EvilWorker]:
    """Start the worker, and stop it in every case."""
    await worker.start(port)
    try:
        yield worker
    finally:
        await worker.stop()
