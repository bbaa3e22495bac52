"""Over real sockets: a retrieval whose client has left is not gone on with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import cast

import pytest

from services.retrieval.api import Api
from services.retrieval.cache import Cache
from services.retrieval.embedder import WARM_PASSES, LinedEmbedder
from services.retrieval.minilm import Floats
from services.retrieval.modelprocess import Hello
from services.retrieval.search import Retrieval
from services.retrieval.store import Store
from services.retrieval.warming import Warming
from tests.retrieval.fakes import VECTOR, FakeCache, FakeStore, metrics
from tests.runtime.rig import serving, until

pytestmark = pytest.mark.stack


class HeldModel:
    """Warms up, then computes nothing until it is told to go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.passes: list[list[str]] = []

    async def load(self) -> Hello:
        return Hello("held", "held-1")

    async def embed(self, texts: Sequence[str]) -> list[tuple[Floats, int]]:
        self.passes.append(list(texts))
        if len(self.passes) > 1 + WARM_PASSES:
            await self.go.wait()
        return [(VECTOR, 1) for _ in texts]

    async def stop(self) -> None:
        pass


def question(query: str) -> bytes:
    body = json.dumps({"query": query, "tenant": "demo", "budget_ms": 60_000}).encode()
    return b"POST /retrieve HTTP/1.1\r\nhost: test\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def test_a_text_in_line_is_not_embedded_once_its_client_has_left() -> None:
    async def main() -> None:
        model, store = HeldModel(), FakeStore()
        embedder = LinedEmbedder(model, queue_size=10, metrics=metrics())
        await embedder.start()
        retrieval = Retrieval(
            embedder=embedder, store=store, cache=FakeCache(), metrics=metrics(), budget_s=60.0, ttl_s=300.0
        )
        api = Api(retrieval, embedder, cast(Store, store), cast(Cache, FakeCache()), cast(Warming, None))
        async with asyncio.timeout(30), serving(api.routes()) as process:

            async def ask(query: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                reader, writer = await asyncio.open_connection("127.0.0.1", process.bound_port)
                writer.write(question(query))
                return reader, writer

            reader, staying = await ask("who stays?")
            await until(lambda: ["who stays?"] in model.passes, "the first in its pass")
            _, leaving = await ask("who leaves?")
            await until(lambda: embedder.waiting == 1, "the second in line")
            leaving.close()
            await until(lambda: embedder.waiting == 0, "the second out of the line")
            model.go.set()
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
            staying.close()
        await embedder.stop()
        assert model.passes[1 + WARM_PASSES :] == [["who stays?"]]
        assert store.asked == 1

    asyncio.run(main())
