"""A router before workers that do as the test says, in virtual time: `tests.virtual`."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import httpx2
import msgspec

from services.console.files import Files
from services.contracts.generate import Done, Failed, GenerateRequest, Timings, Token, Usage, WorkerStatus
from services.contracts.search import EmbedReply, Passage, RetrieveReply, RetrieveRequest
from services.core.outcome import Outcome
from services.router import app
from services.router.config import RouterSettings
from services.router.console import watching
from services.router.deciding.dispatcher import Dispatcher
from services.runtime.errors import Refused
from services.runtime.http import Exchange, Handler
from services.runtime.serve import Process
from tests.runtime.rig import build as build_service
from tests.runtime.rig import until
from tests.virtual import chance_here, running_here

USAGE, TIMINGS = Usage(7, 3), Timings(1.0, 2.0, 3.0)
WORDS = ("A ", "weir ", "holds.")
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass
class FakeWorker:
    """A Weir worker whose answer is a script. `script` is called once for each /generate."""

    script: Callable[[Exchange, GenerateRequest, FakeWorker], Awaitable[None]]
    slots: int = 4
    queue_size: int = 0
    models: tuple[str, ...] = ("fake",)
    draining: bool = False
    frozen: bool = False
    step_ms: float = 1.0
    prefill_ms_per_token: float = 0.0
    asked: list[GenerateRequest] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    running: int = 0
    left: int = 0
    port: int = 0

    def routes(self) -> dict[tuple[str, str], Handler]:
        return {
            ("GET", "/status"): self.status,
            ("POST", "/generate"): self.generate,
            ("POST", "/cancel/{id}"): self.cancel,
        }

    async def status(self, exchange: Exchange) -> None:
        status = WorkerStatus(
            "fake", "fake", list(self.models), self.slots, self.queue_size, self.running, 0, self.draining,
            self.step_ms, self.prefill_ms_per_token,
        )  # fmt: skip
        if self.frozen:
            await asyncio.Event().wait()
        await exchange.reply(200, msgspec.json.encode(status))

    async def cancel(self, exchange: Exchange) -> None:
        self.cancelled.append(exchange.tail)
        await exchange.reply(200, b"{}")

    async def generate(self, exchange: Exchange) -> None:
        request = msgspec.json.decode(exchange.body, type=GenerateRequest)
        self.asked.append(request)
        self.ids.append((exchange.header(b"x-request-id") or b"").decode())
        self.running += 1
        task = asyncio.current_task()
        assert task is not None
        exchange.on_gone(task.cancel)
        try:
            await self.script(exchange, request, self)
        except asyncio.CancelledError:
            self.left += 1
            raise
        finally:
            self.running -= 1


async def answer(exchange: Exchange, request: GenerateRequest, worker: FakeWorker) -> None:
    """A good worker."""
    done = Done("stop", USAGE, TIMINGS, 1, None if request.stream else "".join(WORDS))
    if not request.stream:
        await exchange.reply(200, msgspec.json.encode(done) + b"\n", content_type=b"application/x-ndjson")
        return
    await exchange.start(200, b"application/x-ndjson")
    for word in WORDS:
        await exchange.write(msgspec.json.encode(Token(word)) + b"\n")
        await asyncio.sleep(0.001)
    await exchange.write(msgspec.json.encode(done) + b"\n")
    await exchange.end()


async def refuse(exchange: Exchange, request: GenerateRequest, worker: FakeWorker) -> None:
    """A worker at its bound."""
    raise Refused(Outcome.YIELD, "full", predicted_wait_ms=30, retry_hint_ms=60)


async def hang(exchange: Exchange, request: GenerateRequest, worker: FakeWorker) -> None:
    """A worker that takes the request and says nothing."""
    await asyncio.Event().wait()


def failing(message: str = "broken", code: str = "internal_error") -> Any:
    async def fail(exchange: Exchange, request: GenerateRequest, worker: FakeWorker) -> None:
        await exchange.reply(200, msgspec.json.encode(Failed(code, message)) + b"\n")

    return fail


def cut_after(words: int) -> Any:
    """A worker that dies in the middle of its answer."""

    async def cut(exchange: Exchange, request: GenerateRequest, worker: FakeWorker) -> None:
        await exchange.start(200, b"application/x-ndjson")
        for word in WORDS[:words]:
            await exchange.write(msgspec.json.encode(Token(word)) + b"\n")
            await asyncio.sleep(0.02)
        raise RuntimeError("died")  # after the start: the connection is closed without an end

    return cut


def then(*scripts: Any) -> Any:
    """One script after another; the last one stays."""
    left = list(scripts)

    async def play(exchange: Exchange, request: GenerateRequest, worker: FakeWorker) -> None:
        script = left.pop(0) if len(left) > 1 else left[0]
        await script(exchange, request, worker)

    return play


@dataclass
class FakeRetrieval:
    """Retrieval whose passages are given."""

    passages: list[Passage] = field(default_factory=list)
    source: Any = "db"
    stall: bool = False
    warming: bool = False
    asked: list[RetrieveRequest] = field(default_factory=list)
    port: int = 0

    def routes(self) -> dict[tuple[str, str], Handler]:
        return {("POST", "/retrieve"): self.retrieve, ("POST", "/embed"): self.embed}

    async def embed(self, exchange: Exchange) -> None:
        if self.warming:
            raise Refused(Outcome.NO_CAPACITY, "the embedder is warming up", reason="warming", retry_hint_ms=500)
        texts = msgspec.json.decode(exchange.body)["input"]
        reply = EmbedReply("fake-embedder", 2, [[1.0, 0.5] for _ in texts], len(texts))
        await exchange.reply(200, msgspec.json.encode(reply))

    async def retrieve(self, exchange: Exchange) -> None:
        self.asked.append(msgspec.json.decode(exchange.body, type=RetrieveRequest))
        if self.stall:
            await asyncio.Event().wait()
        await exchange.reply(200, msgspec.json.encode(RetrieveReply(self.source, self.passages)))


def passage(number: int) -> Passage:
    return Passage(f"docs/{number}.md#0", f"docs/{number}.md", 1, f"Fact number {number}.", number / 10)


@dataclass
class Stand:
    """The router under test, its client, and the parts around it."""

    router: Process
    client: httpx2.AsyncClient
    metrics: httpx2.AsyncClient
    workers: list[FakeWorker]
    retrieval: FakeRetrieval | None
    dispatcher: Dispatcher

    async def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(path, content=content, headers=named)

    async def chat(
        self, *, stream: bool = False, headers: dict[str, str] | None = None, **fields: Any
    ) -> httpx2.Response:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": stream, **fields}
        return await self.client.post("/v1/chat/completions", content=json.dumps(body).encode(), headers=headers)

    async def samples(self, name: str) -> list[tuple[str, float]]:
        """(labels, value) of each sample of a metric."""
        return samples_in((await self.metrics.get("/metrics")).text, name)

    async def counted(self) -> dict[str, float]:
        """weir_requests_total by outcome, over all tenants."""
        found: dict[str, float] = {}
        for labels, value in await self.samples("weir_requests_total"):
            outcome = labels.split('outcome="')[1].split('"')[0]
            if value:
                found[outcome] = found.get(outcome, 0) + value
        return found

    async def held(self) -> float:
        """Places under the cap and at workers, together."""
        page = (await self.metrics.get("/metrics")).text
        held = samples_in(page, "weir_inflight") + samples_in(page, "weir_worker_inflight")
        return sum(value for _, value in held)

    async def all_returned(self) -> None:
        """Nothing is held any more, by the router or at a fake worker."""
        async with asyncio.timeout(20):
            while await self.held():
                await asyncio.sleep(0.005)
        await until(lambda: not any(worker.running for worker in self.workers), "every worker idle")

    async def until_up(self, workers: int) -> None:
        """So many workers are known to be healthy."""
        async with asyncio.timeout(20):
            while sum(value for _, value in await self.samples("weir_worker_healthy")) != workers:
                await asyncio.sleep(0.005)


def samples_in(page: str, name: str) -> list[tuple[str, float]]:
    """(labels, value) of each sample of a metric on a page of metrics."""
    lines = [line.rsplit(" ", 1) for line in page.splitlines() if line.startswith((name + "{", name + " "))]
    return [(labels[len(name) :], float(value)) for labels, value in lines]


def error_of(response: httpx2.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    return error


def events_of(response: httpx2.Response) -> list[str]:
    """The data of each event of a stream, in order."""
    return [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]


pages_of_the_console = cache(Files)
"""The same for every router: read and compressed once."""


class GivenSettings(RouterSettings):
    """What is given and the defaults: nothing from the environment in which the tests run."""

    @classmethod
    def settings_customise_sources(cls, _: Any, init_settings: Any, **others: Any) -> tuple[Any, ...]:  # type: ignore[override]
        return (init_settings,)


def _built(settings: RouterSettings) -> tuple[Process, Dispatcher]:
    """A router, and its dispatcher: a test may look into it, and wait for what cannot be seen from outside."""
    made: list[Dispatcher] = []
    make = vars(app)["Dispatcher"]

    def kept(*parts: Any) -> Dispatcher:
        made.append(make(*parts))
        return made[0]

    with (
        mock.patch.object(app, "Dispatcher", kept),
        mock.patch.object(watching, "Files", pages_of_the_console),
    ):
        return app.build(settings, rng=chance_here()), made[0]


def client_of(port: int) -> httpx2.AsyncClient:
    """A client of a service on this machine. One that may speak TLS reads a file of 200 kB first."""
    return httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20, verify=NO_TLS)


@asynccontextmanager
async def standing(
    *workers: FakeWorker, retrieval: FakeRetrieval | None = None, upstreams: str | None = None, **settings: Any
) -> AsyncIterator[Stand]:
    """Fake workers and retrieval, and the router before them, all on free ports; checked for leaks at the end."""
    async with AsyncExitStack() as stack:
        for part in [*workers, *([retrieval] if retrieval else [])]:
            process = build_service(part.routes(), drain_timeout_s=0.2)
            await stack.enter_async_context(running_here(process))
            stack.callback(process.log.close)
            part.port = process.bound_port
        urls = ",".join(f"http://127.0.0.1:{worker.port}" for worker in workers)
        chosen = {
            "workers": urls or "http://127.0.0.1:1",
            "retrieval_url": f"http://127.0.0.1:{retrieval.port if retrieval else 1}",
            "workers_file": Path(upstreams) if upstreams else None,
            "log_level": "ERROR",
            "probe_interval_s": 0.05,
            "retrieval_budget_ms": 2000,  # a slow machine is no slow retrieval
            "drain_timeout_s": 0.5,
            **settings,
        }
        router, dispatcher = _built(GivenSettings(router_port=0, metrics_port=0, **chosen))
        await stack.enter_async_context(running_here(router))
        stack.callback(router.log.close)
        client = await stack.enter_async_context(client_of(router.bound_port))
        metrics = await stack.enter_async_context(client_of(router.bound_metrics_port))
        stand = Stand(router, client, metrics, list(workers), retrieval, dispatcher)
        yield stand
        await stand.all_returned()
