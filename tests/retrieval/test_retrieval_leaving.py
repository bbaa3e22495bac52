"""Over real sockets: many who ask the same cost one run, and whoever leaves takes nothing from the others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, cast

import pytest

from services.contracts.search import RetrieveRequest
from services.retrieval.api import RetrievalApi
from services.retrieval.cache import Cache
from services.retrieval.embedder import WARM_PASSES, QueuedEmbedder
from services.retrieval.minilm import Floats
from services.retrieval.modelprocess import ModelHello
from services.retrieval.search import Retrieval
from services.retrieval.store import Store
from services.retrieval.warming import Warming
from services.runtime.http import Exchange
from services.runtime.strictjson import decode
from tests.retrieval.fakes import VECTOR, FakeCache, FakeStore, metrics
from tests.runtime.rig import serving, until

pytestmark = pytest.mark.sockets

MANY = 1000
FILES_EACH = 2  # both ends of a connection are in this process


class HeldModel:
    """Warms up, then computes nothing until it is told to go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self._passes: list[list[str]] = []

    @property
    def passes(self) -> list[list[str]]:
        """Since it was warm."""
        return self._passes[1 + WARM_PASSES :]

    async def load(self) -> ModelHello:
        return ModelHello("held", "held-1")

    async def embed(self, texts: Sequence[str]) -> list[tuple[Floats, int]]:
        self._passes.append(list(texts))
        if self.passes:
            await self.go.wait()
        return [(VECTOR, 1) for _ in texts]

    async def stop(self) -> None:
        pass


class House:
    """The service's own API over a model that is held and a store that is not."""

    def __init__(self) -> None:
        self.model, self.store, self.metrics = HeldModel(), FakeStore(), metrics()
        self.embedder = QueuedEmbedder(self.model, queue_size=10, metrics=self.metrics)
        self.left = 0
        self._retrieval = Retrieval(
            embedder=self.embedder,
            store=self.store,
            cache=FakeCache(),
            metrics=self.metrics,
            budget_s=60.0,
            ttl_s=300.0,
        )
        self._writers: list[asyncio.StreamWriter] = []

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        await self.embedder.start()
        cache = cast(Cache, FakeCache())
        self._api = RetrievalApi(self._retrieval, self.embedder, cast(Store, self.store), cache, cast(Warming, None))
        async with asyncio.timeout(60), serving({("POST", "/retrieve"): self._retrieve}) as process:
            self._port = process.bound_port
            yield
            for writer in self._writers:
                writer.close()
        await self.embedder.stop()

    async def _retrieve(self, exchange: Exchange) -> None:
        try:
            answer = await self._api.retrieve(exchange, decode(exchange.body, RetrieveRequest))
            await exchange.reply(answer.status_code, bytes(answer.body))
        except asyncio.CancelledError:
            self.left += 1
            raise

    async def ask(
        self, query: str = "the same?", budget_ms: float = 60_000.0
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        body = json.dumps({"query": query, "tenant": "demo", "budget_ms": budget_ms}).encode()
        writer.write(b"POST /retrieve HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        self._writers.append(writer)
        return reader, writer

    @property
    def waiting(self) -> int:
        """Who waits for a run, its leader included."""
        flights = (flight for flights in self._retrieval._flights._flights.values() for flight in flights)
        return sum(len(flight.waiters) for flight in flights)


async def answer(reader: asyncio.StreamReader) -> dict[str, Any]:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    reply: dict[str, Any] = json.loads(await reader.readexactly(int(length.partition(b":")[2])))
    return reply


def play(scenario: Callable[[House], Awaitable[None]]) -> None:
    async def main() -> None:
        house = House()
        async with house.open():
            await scenario(house)

    asyncio.run(main())


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for both ends of that many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY * FILES_EACH + 500
    if hard not in (-1, resource.RLIM_INFINITY) and hard < wanted:
        pytest.skip(f"{wanted} open files are not allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_a_thousand_clients_with_one_question_cost_one_embedding_and_one_search() -> None:
    async def scenario(house: House) -> None:
        asked = await asyncio.gather(*(house.ask() for _ in range(MANY)))
        await until(lambda: house.waiting == MANY, "everybody in one run")
        house.model.go.set()
        answers = await asyncio.gather(*(answer(reader) for reader, _ in asked))
        assert Counter((each["source"], each["results"][0]["text"]) for each in answers) == {
            ("db", "from the database"): MANY
        }
        assert (house.model.passes, house.store.asked) == ([["the same?"]], 1)

    play(scenario)


@pytest.mark.usefixtures("many_files")
def test_the_first_of_a_thousand_and_half_of_the_others_leave_and_the_rest_have_what_was_begun() -> None:
    async def scenario(house: House) -> None:
        first = await house.ask()
        await until(lambda: house.waiting == 1, "the leader")
        others = await asyncio.gather(*(house.ask() for _ in range(MANY - 1)))
        await until(lambda: house.waiting == MANY, "everybody in one run")
        for _, writer in (first, *others[::2]):
            writer.close()
        await until(lambda: house.left == 1 + len(others[::2]), "their leaving")
        house.model.go.set()
        answers = await asyncio.gather(*(answer(reader) for reader, _ in others[1::2]))
        assert {each["source"] for each in answers} == {"db"}
        assert (house.model.passes, house.store.asked) == ([["the same?"]], 1)

    play(scenario)


def test_a_first_one_whose_time_is_up_fails_nobody_else() -> None:
    async def scenario(house: House) -> None:
        first, _ = await house.ask(budget_ms=500.0)
        await until(lambda: house.model.passes, "the leader in its pass")
        others = [await house.ask() for _ in range(20)]
        assert (await answer(first))["source"] == "none"
        await until(lambda: house.waiting == 20, "the others in a run")
        house.model.go.set()
        assert {(await answer(reader))["source"] for reader, _ in others} == {"db"}
        assert house.store.asked == 1
        assert len(house.model.passes) <= 2, "the leader's, and one for all the others"

    play(scenario)


def test_a_text_in_line_is_not_embedded_once_its_client_has_left() -> None:
    async def scenario(house: House) -> None:
        reader, _ = await house.ask("who stays?")
        await until(lambda: ["who stays?"] in house.model.passes, "the first in its pass")
        _, leaving = await house.ask("who leaves?")
        await until(lambda: house.embedder.waiting == 1, "the second in line")
        leaving.close()
        await until(lambda: house.embedder.waiting == 0, "the second out of the line")
        house.model.go.set()
        assert (await answer(reader))["source"] == "db"
        assert (house.model.passes, house.store.asked) == ([["who stays?"]], 1)

    play(scenario)
