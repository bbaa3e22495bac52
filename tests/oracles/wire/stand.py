"""A router before workers and a retrieval service that do as they are told, all in one loop in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import msgspec

from services.router import app
from services.router.config import RouterSettings
from services.router.deciding.dispatcher import Dispatcher
from services.runtime.errors import BadInput
from services.runtime.http import Exchange, Handler
from services.runtime.serve import Process
from tests.oracles.wire.transcript import Transcript, post
from tests.oracles.within import given, within
from tests.router.rig import FakeRetrieval, FakeWorker
from tests.runtime.rig import build


@dataclass
class Library(FakeRetrieval):
    """A retrieval service that keeps documents, too."""

    kept: dict[str, str] = field(default_factory=dict)

    def routes(self) -> dict[tuple[str, str], Handler]:
        return {
            **super().routes(),
            ("GET", "/documents"): self.page,
            ("PUT", "/documents/{rest:path}"): self.put,
            ("DELETE", "/documents/{rest:path}"): self.delete,
        }

    async def page(self, exchange: Exchange) -> None:
        await exchange.reply(200, msgspec.json.encode({"documents": sorted(self.kept), "next": None}))

    async def put(self, exchange: Exchange) -> None:
        self.kept[exchange.tail] = exchange.body.decode()
        await exchange.reply(201, msgspec.json.encode({"id": exchange.tail, "state": "added"}))

    async def delete(self, exchange: Exchange) -> None:
        if self.kept.pop(exchange.tail, None) is None:
            raise BadInput("no such document", "id", status=404, code="document_not_found")
        await exchange.reply(200, msgspec.json.encode({"id": exchange.tail, "deleted": True}))


@dataclass
class Stand:
    """A running router, and a transcript of what is said to it."""

    told: Transcript
    process: Process
    dispatcher: Dispatcher
    workers: list[FakeWorker]

    @property
    def port(self) -> int:
        return self.process.bound_port

    async def say(self, name: str, *pieces: bytes | float, within_s: float = 2.0, page: bool = False) -> bytes:
        """On its public port."""
        return await self.told.say(name, self.port, *pieces, within_s=within_s, page=page)

    async def admin(self, name: str, *pieces: bytes | float, within_s: float = 2.0, page: bool = False) -> bytes:
        """On its other one."""
        return await self.told.say(name, self.process.bound_metrics_port, *pieces, within_s=within_s, page=page)

    async def on_every_route(self, name: str, *, within_s: float = 0.05, headers: dict[str, str] | None = None,
                             fields: dict[str, Any] | None = None) -> None:  # fmt: skip
        """The same wish for text, on each route that makes text, plain and streamed."""
        for route, body in TEXTS.items():
            for stream in (False, True):
                asked = post(route, {**body, "stream": stream, **(fields or {})}, **(headers or {}))
                await self.say(f"{name}: {route}{', streamed' if stream else ''}", asked, within_s=within_s)


TEXTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/ask": {"query": "hi", "top_k": 1},
}


@asynccontextmanager
async def standing(
    told: Transcript, *workers: FakeWorker, retrieval: FakeRetrieval | None = None, **settings: Any
) -> AsyncIterator[Stand]:
    """Everything runs; the router has looked at its workers."""
    async with AsyncExitStack() as stack:
        for part in [*workers, *([retrieval] if retrieval else [])]:
            process = build(part.routes(), drain_timeout_s=0.2)
            await stack.enter_async_context(within(process))
            part.port = process.bound_port
        chosen = {
            "workers": ",".join(f"http://127.0.0.1:{worker.port}" for worker in workers) or "http://127.0.0.1:1",
            "retrieval_url": f"http://127.0.0.1:{retrieval.port if retrieval else 1}",
            "drain_timeout_s": 0.5,
            **settings,
        }
        router, dispatcher = _built(RouterSettings(_env_file=None, router_port=0, metrics_port=0, **chosen))
        await stack.enter_async_context(within(router))
        yield Stand(told, router, dispatcher, list(workers))


def _built(settings: RouterSettings) -> tuple[Process, Dispatcher]:
    """A router and its dispatcher, which some refusals need to be brought about."""
    made: list[Dispatcher] = []
    make = vars(app)["Dispatcher"]

    def kept(*parts: Any) -> Dispatcher:
        made.append(make(*parts))
        return made[0]

    with mock.patch.object(app, "Dispatcher", kept):
        return app.build(settings, **given("router")), made[0]
