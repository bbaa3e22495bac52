"""An OpenAI-compatible server that answers at once, for measurements of the router.

    model "fast"   the whole answer at once; streamed, CHUNKS events, one every CHUNK_INTERVAL_S
    model "hang"   no answer: it holds a slot

Run: python -m loadtests.bench.stub PORT
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager

import httptools
import uvloop

from loadtests.cluster.processes import free_ports, started
from loadtests.cluster.usage import cores

CHUNKS = 200
CHUNK_INTERVAL_S = 0.001  # 32 streams of these offer 32,000 events a second

_WHOLE = (
    b'{"id":"stub","object":"chat.completion","created":1,"model":"fast","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"A weir holds a river at its level."},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":12,"completion_tokens":9,"total_tokens":21}}'
)
_MODELS = b'{"object":"list","data":[{"id":"fast","object":"model"},{"id":"hang","object":"model"}]}'
_SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _fixed(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


def _piece(data: bytes) -> bytes:
    event = b"data: " + data + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


def _chunk(delta: bytes, finish: bytes = b"null", choices: bool = True, extra: bytes = b"") -> bytes:
    choice = b'{"index":0,"delta":%s,"finish_reason":%s}' % (delta, finish) if choices else b""
    return _piece(
        b'{"id":"stub","object":"chat.completion.chunk","created":1,"model":"fast","choices":[%s]%s}' % (choice, extra)
    )


_WHOLE_REPLY = _fixed(_WHOLE)
_MODELS_REPLY = _fixed(_MODELS)
_TOKEN = _chunk(b'{"content":" water"}')
_USAGE = b',"usage":{"prompt_tokens":12,"completion_tokens":%d,"total_tokens":%d}' % (CHUNKS, CHUNKS + 12)
_END = _chunk(b"{}", b'"stop"') + _chunk(b"", choices=False, extra=_USAGE) + _piece(b"[DONE]") + b"0\r\n\r\n"


class Stub(asyncio.Protocol):
    def __init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP is both ways
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.body = b""

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if self.parser.get_method() == b"GET":
            self.transport.write(_MODELS_REPLY)
        elif b'"hang"' in self.body:
            return
        elif b'"stream":true' in self.body:
            self.transport.write(_SSE_HEAD)
            self.stream(CHUNKS)
        else:
            self.transport.write(_WHOLE_REPLY)

    def stream(self, left: int) -> None:
        if self.transport.is_closing():
            return
        if left == 0:
            self.transport.write(_END)
            return
        self.transport.write(_TOKEN)
        self.loop.call_later(CHUNK_INTERVAL_S, self.stream, left - 1)


@asynccontextmanager
async def stub(on: Set[int] = frozenset()) -> AsyncIterator[int]:
    """Runs the stub on these cores, by default on the one that is not the router's. Yields its port."""
    (port,) = free_ports(1)
    ready = f"http://127.0.0.1:{port}/v1/models"
    async with started("loadtests.bench.stub", str(port), ready=ready, cores=on or cores()[1]):
        yield port


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
