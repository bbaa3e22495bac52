"""A server that plays the console's part of a router: the page, frames, lives, policies and storms of a small world.

python -m tests.real.browser.fake 8123        to look at the page while working on it
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

from aiohttp import web

from tests.console.pictures import HELLO, frame, life
from tests.console.world import World
from tests.real.browser.storms import Storms

STATIC = Path(__file__).parents[3] / "services" / "console" / "static"
CSP = (
    "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'"
)
STEP_S = 0.05


class Fake:
    """Its switches are for tests: `silent` stops frames, `closed` refuses the stream, `token` asks for one.

    `sharing` is what it shows as one of several routers; None: it is alone.
    """

    def __init__(self) -> None:
        self.world = World()
        self.storms = Storms(self.world)
        self.epoch_ms = time.time() * 1000
        self.silent = False
        self.closed = False
        self.token: str | None = None
        self.sharing: dict[str, Any] | None = None
        self.hello: dict[str, Any] = dict(HELLO)
        self.viewers = 0
        self.url = ""

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._door])
        app.router.add_get("/console", self._page)
        app.router.add_get("/console/static/{name}", self._static)
        app.router.add_get("/console/events", self._events)
        app.router.add_get("/console/requests/{id}", self._life)
        app.router.add_post("/console/policy", self._policy)
        app.router.add_get("/console/storm", self._storm)
        app.router.add_post("/console/storm", self._start)
        app.router.add_delete("/console/storm", self._stop)
        app.router.add_get("/console/storm/report", self._report)
        app.router.add_get("/console/storm/run", self._told)
        app.cleanup_ctx.append(self._living)
        return app

    @web.middleware
    async def _door(self, request: web.Request, handler: Any) -> web.StreamResponse:
        data = not (request.path == "/console" or request.path.startswith("/console/static/"))
        if data and self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            return _problem(401, "invalid_api_key", "the token is wrong")
        if request.method in ("POST", "DELETE") and request.headers.get("x-weir-console") != "1":
            return _problem(403, "forbidden", "the header x-weir-console is missing")
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _living(self, app: web.Application) -> AsyncIterator[None]:
        life = asyncio.create_task(self._run())
        yield
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)

    async def _run(self) -> None:
        clock, then = asyncio.get_running_loop().time, asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(STEP_S)
            now = clock()
            self.world.step(now - then)
            self.storms.step()
            then = now

    async def _page(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(STATIC / "index.html", headers={"content-security-policy": CSP})

    async def _static(self, request: web.Request) -> web.StreamResponse:
        path = STATIC / request.match_info["name"]
        if not path.is_file():
            return _problem(404, "not_found", "no such file")
        return web.FileResponse(path, headers={"content-security-policy": CSP, "cache-control": "no-cache"})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self.closed:
            return _problem(503, "too_many_viewers", "64 viewers are looking already")
        answer = web.StreamResponse(headers={"content-type": "text/event-stream", "cache-control": "no-store"})
        await answer.prepare(request)
        await answer.write(f"event: hello\ndata: {json.dumps(self.hello)}\n\n".encode())
        self.viewers += 1
        try:
            while not self.closed:
                if not self.silent:
                    await answer.write(f"event: frame\ndata: {json.dumps(self._frame())}\n\n".encode())
                await asyncio.sleep(self.hello["frame_ms"] / 1000)
        except ConnectionError:
            pass  # it has looked enough
        finally:
            self.viewers -= 1
        return answer

    def _frame(self) -> dict[str, Any]:
        found = frame(self.world, self.epoch_ms)
        return found if self.sharing is None else found | {"sharing": self.sharing}

    async def _life(self, request: web.Request) -> web.StreamResponse:
        asked = self.world.lives.get(request.match_info["id"])
        if asked is None:
            return _problem(404, "not_found", "no such request")
        return web.json_response(life(self.world, asked))

    async def _policy(self, request: web.Request) -> web.StreamResponse:
        self.world.policy |= await request.json()
        return web.json_response(self.world.policy)

    async def _storm(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self.storms.state())

    async def _start(self, request: web.Request) -> web.StreamResponse:
        if self.storms.running is not None:
            return _problem(409, "storm_running", "a storm is running")
        asked = await request.json()
        return web.json_response({"run": self.storms.start(asked["scenario"], asked.get("sliders", {}))}, status=202)

    async def _stop(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"stopped": self.storms.stop()})

    async def _told(self, request: web.Request) -> web.StreamResponse:
        told = self.storms.told(request.query["run"])
        return web.json_response(told) if told is not None else _problem(404, "not_found", "forgotten")

    async def _report(self, request: web.Request) -> web.StreamResponse:
        headers = {"content-disposition": "attachment; filename=storm.html"} if "save" in request.query else {}
        return web.Response(text="<!doctype html><title>A storm</title>", content_type="text/html", headers=headers)


def _problem(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "error", "code": code}}, status=status)


@contextlib.contextmanager
def playing() -> Iterator[Fake]:
    """The fake on a free port, in a thread of its own."""
    fake, up, over = Fake(), Event(), Event()

    async def serve() -> None:
        runner = web.AppRunner(fake.app(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        up.set()
        await asyncio.to_thread(over.wait)
        fake.closed = True
        await runner.cleanup()

    thread = Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        assert up.wait(10)
        yield fake
    finally:
        over.set()
        thread.join(10)


if __name__ == "__main__":
    web.run_app(Fake().app(), host="127.0.0.1", port=int(sys.argv[1]), access_log=None)
