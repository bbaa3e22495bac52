"""The routes of a worker's leases, on the virtual clock: asks, streams of grants, and the grants of answers."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any

import httpx2
import pytest

from services.runtime.log import Log
from services.runtime.serve import Process, running
from services.worker.app import build
from services.worker.config import WorkerSettings
from tests.virtual import bind, run

WORK = {"tenant": "t", "deadline_ms": 30_000, "prompt": "What is a weir?", "ignore_eos": True}
TOKEN = "a-token-of-the-tests-of-leases-0123456789"


class Site:
    """A worker, a client of it, and one router."""

    def __init__(self, process: Process, client: httpx2.AsyncClient) -> None:
        self.process = process
        self.client = client
        self.book = process.inside.lending.book  # type: ignore[attr-defined]
        self.numbers = count(1)
        self.ack = (0, 0)

    def ask(self, wants: int = 0, *, router: str = "a", epoch: int = 5, **fields: Any) -> dict[str, Any]:
        wanted = [{"class_name": "default", "requests": wants, "light": 0, "level": 0.0, "turn": 0.0}] if wants else []
        stamp = [epoch, next(self.numbers)]
        return {"router": router, "stamp": stamp, "ack": self.ack, "wants": wanted, "ttl_ms": 3000, **fields}

    async def asks(self, wants: int = 0, **fields: Any) -> dict[str, Any]:
        reply = await self.client.post("/lease", json=self.ask(wants, **fields))
        assert reply.status_code == 200, reply.text
        grant: dict[str, Any] = reply.json()
        self.ack = tuple(grant["stamp"])
        return grant

    async def generates(self, id: str, tokens: int = 4, **fields: Any) -> httpx2.Response:
        return await self.client.post("/generate", json={"id": id, "max_tokens": tokens, **WORK, **fields})

    @asynccontextmanager
    async def stream(self, router: str = "a", epoch: int = 5) -> AsyncIterator[AsyncIterator[str]]:
        async with self.client.stream("GET", f"/lease/{router}", params={"epoch": epoch}) as reply:
            assert reply.status_code == 200
            assert reply.headers["content-type"] == "application/x-ndjson"
            yield reply.aiter_lines()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.01)


def lending(scenario: Callable[[Site], Awaitable[None]], log: Log | None = None, **settings: Any) -> None:
    async def main() -> None:
        chosen = {"sim_time_scale": 0.5, "log_level": "ERROR", "drain_timeout_s": 5.0, "max_batch_size": 2, **settings}
        process = build(WorkerSettings(_env_file=None, worker_port=0, metrics_port=0, **chosen), log=log)
        async with running(process, bind=bind):
            base = f"http://127.0.0.1:{process.bound_port}"
            async with httpx2.AsyncClient(base_url=base, timeout=60) as client:
                await scenario(Site(process, client))
        process.log.close()

    run(main())


async def line_of(lines: AsyncIterator[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await anext(lines))
    return found


def test_an_ask_is_answered_with_a_grant() -> None:
    async def scenario(site: Site) -> None:
        grant = await site.asks(1)
        assert grant["stamp"] == [site.book.epoch, 1]
        assert {**grant, "stamp": 0} == {"stamp": 0, "echo": [5, 1], "may": 1, "ttl_ms": 3000.0, "slots": 2}

    lending(scenario)


def test_the_epoch_of_a_worker_is_the_time_of_its_start() -> None:
    async def scenario(site: Site) -> None:
        unix_ms = asyncio.get_running_loop().unix_time() * 1000  # type: ignore[attr-defined]
        assert unix_ms - 5000 <= site.book.epoch <= unix_ms

    lending(scenario)


def test_an_ask_whose_stream_has_ended_is_told_so() -> None:
    async def scenario(site: Site) -> None:
        async with site.stream():
            assert (await site.asks(1))["may"] == 1
        await site.until(lambda: not site.book.leases())
        reply = await site.client.post("/lease", json=site.ask(1))
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "no_stream")
        assert site.book.promised == 0

    lending(scenario)


WRONG: list[tuple[str, str, Any, int, str]] = [
    ("POST", "/lease", {"router": "no spaces", "stamp": [1, 1], "ack": [0, 0]}, 400, "router"),
    ("POST", "/lease", {"router": "r" * 65, "stamp": [1, 1], "ack": [0, 0]}, 400, "router"),
    ("POST", "/lease", {"stamp": [1, 1], "ack": [0, 0]}, 400, "router"),
    ("POST", "/lease", {"router": "a", "stamp": [1], "ack": [0, 0]}, 400, "stamp"),
    ("POST", "/lease", {"router": "a", "stamp": [1, -1], "ack": [0, 0]}, 400, "stamp[1]"),
    ("POST", "/lease", {"router": "a", "stamp": [1, 1], "ack": [0, 0], "keep": -1}, 400, "keep"),
    ("POST", "/lease", {"router": "a", "stamp": [1, 1], "ack": [0, 0], "wants": [{}] * 33}, 400, "wants"),
    ("POST", "/lease", {"router": "a", "stamp": [1, 1], "ack": [0, 0], "ttl_ms": 60_001}, 400, "ttl_ms"),
    ("GET", "/lease/a", None, 400, "epoch"),
    ("GET", "/lease/a?epoch=", None, 400, "epoch"),
    ("GET", "/lease/a?epoch=-1", None, 400, "epoch"),
    ("GET", "/lease/a?epoch=1e3", None, 400, "epoch"),
    ("GET", "/lease/a?epoch=9999999999999999", None, 400, "epoch"),
    ("GET", "/lease/a?epoch=" + "9" * 500, None, 400, "epoch"),
    ("GET", "/lease/a?epoch=1&epoch=2", None, 400, "epoch"),
    ("GET", "/lease/a?since=1", None, 400, "since"),
    ("GET", "/lease/no%20spaces?epoch=1", None, 400, "router"),
    ("GET", f"/lease/{'r' * 65}?epoch=1", None, 400, "router"),
    ("GET", "/lease/?epoch=1", None, 404, ""),
    ("GET", "/lease", None, 405, ""),
]


def test_bad_input_names_its_field() -> None:
    async def scenario(site: Site) -> None:
        for method, path, body, code, param in WRONG:
            reply = await site.client.request(method, path, json=body)
            error = reply.json()["error"]
            assert (reply.status_code, error["param"] or "") == (code, param), (path, body, error)
        assert (await site.generates("a", lease={"router": "a"})).json()["error"]["param"] == "lease.stamp"
        assert site.book.leases() == []

    lending(scenario)


def test_asks_are_logged_as_quietly_as_looks_at_the_health() -> None:
    lines = io.BytesIO()

    async def scenario(site: Site) -> None:
        await site.asks(1)
        await site.client.get("/health")
        await site.generates("r", lease=site.ask())

    lending(scenario, log=Log("worker", "DEBUG", lines, threaded=False))
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    levels = {line["path"]: line["level"] for line in logged if line["event"] == "request"}
    assert levels == {"/lease": "DEBUG", "/health": "DEBUG", "/generate": "INFO"}


def test_the_routes_need_the_token_of_the_inner_services() -> None:
    async def scenario(site: Site) -> None:
        for method, path in (("POST", "/lease"), ("GET", "/lease/a?epoch=1")):
            assert (await site.client.request(method, path)).status_code == 401
        site.client.headers["authorization"] = f"Bearer {TOKEN}"
        assert (await site.asks(1))["may"] == 1

    lending(scenario, internal_token=TOKEN)


def test_a_slot_that_comes_back_is_pushed_and_the_end_of_a_stream_ends_its_lease() -> None:
    async def scenario(site: Site) -> None:
        async with site.stream("a") as grants:
            assert (await site.asks(1))["may"] == 1
            async with site.stream("b") as others:
                assert (await site.asks(1, router="b"))["may"] == 0
                recalled = await line_of(grants)
                assert (recalled["may"], recalled["recall"], recalled["echo"]) == (1, True, [5, 1])
                assert (await site.asks(keep=0))["may"] == 0
                assert (await line_of(others))["may"] == 1
            await site.until(lambda: site.book.may("b") == 0)
            assert [lease.router for lease in site.book.leases()] == ["a"]
        await site.until(lambda: not site.book.has_leases)

    lending(scenario, max_batch_size=1)


def test_a_newer_stream_replaces_the_older_one_and_an_older_epoch_is_refused() -> None:
    async def scenario(site: Site) -> None:
        async with site.stream("a", 5) as first:
            await site.asks(1)
            async with site.stream("a", 5):
                assert not [line async for line in first]
                assert site.book.may("a") == 1
                refused = await site.client.get("/lease/a?epoch=4")
                error = refused.json()["error"]
                assert (refused.status_code, error["code"], error["param"]) == (409, "older_epoch", "epoch")
                assert refused.headers["x-should-retry"] == "false"

    lending(scenario)


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_carries_the_grant_of_its_end(stream: bool) -> None:
    async def scenario(site: Site) -> None:
        async with site.stream() as grants:
            await site.asks(1)
            reply = await site.generates("r", stream=stream, lease=site.ask())
            done = json.loads(reply.text.splitlines()[-1])
            assert (done["event"], done["lease"]["may"], done["lease"]["echo"]) == ("done", 1, [5, 2])
            assert ("text" in done) is not stream
            await site.asks(0, keep=0)
            assert site.book.running == 0
            site.process.drain.begin()
            assert not [line async for line in grants], "what an answer has carried is not pushed"

    lending(scenario)


def test_an_answer_to_a_request_without_an_ask_has_no_grant() -> None:
    async def scenario(site: Site) -> None:
        done = json.loads((await site.generates("r")).text.splitlines()[-1])
        assert "lease" not in done
        inferred = (await site.client.post("/infer", json={"prompt": "hello", "max_tokens": 2})).json()
        assert inferred["tokens"] == 2
        assert site.book.running == 0

    lending(scenario)


def test_an_answer_that_fails_after_its_first_token_has_its_grant_pushed() -> None:
    async def scenario(site: Site) -> None:
        async with site.stream() as grants:
            await site.asks(1)
            reply = await site.generates("r", 5000, deadline_ms=300, lease=site.ask())
            failed = json.loads(reply.text.splitlines()[-1])
            assert (failed["event"], failed["code"], "lease" in failed) == ("failed", "deadline_exceeded", False)
            pushed = await line_of(grants)
            assert (pushed["may"], pushed["echo"]) == (1, [5, 2])
            assert site.book.running == 0

    lending(scenario)


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_ends_with_a_status_has_its_grant_pushed(stream: bool) -> None:
    async def scenario(site: Site) -> None:
        async with site.stream() as grants:
            await site.asks(1)
            ending = asyncio.ensure_future(
                site.generates("r", 5000, deadline_ms=20, stream=stream, lease=site.ask(), prompt="word " * 2000)
            )
            assert (await ending).status_code in (429, 504)
            assert (await line_of(grants))["may"] == 1
            assert site.book.running == 0

    lending(scenario)


def test_a_client_that_leaves_has_its_grant_pushed() -> None:
    async def scenario(site: Site) -> None:
        async with site.stream() as grants:
            await site.asks(1)
            going = asyncio.ensure_future(site.generates("r", 5000, lease=site.ask()))
            await site.until(lambda: site.book.running == 1)
            going.cancel()
            assert (await line_of(grants))["may"] == 1
            assert site.book.running == 0

    lending(scenario)


def test_a_request_without_a_slot_is_busy_and_the_router_can_read_for_how_long() -> None:
    async def scenario(site: Site) -> None:
        await site.asks(1)
        await site.asks(1, router="b")
        refused = await site.generates("r", lease=site.ask(router="c"))
        details = refused.json()["error"]["details"]
        assert (refused.status_code, details["status"], details["reason"]) == (429, "yield", "no_lease")
        assert refused.headers["x-should-retry"] == "true"
        assert (await site.generates("plain")).json()["error"]["details"]["reason"] == "no_lease"

    lending(scenario)


def test_a_worker_that_drains_ends_the_streams_when_its_last_request_has_ended() -> None:
    async def scenario(site: Site) -> None:
        async with site.stream() as grants, site.stream("b") as others:
            await site.asks(1)
            await site.asks(1, router="b")
            answer = asyncio.ensure_future(site.generates("r", 200, lease=site.ask()))
            await site.until(lambda: site.book.running == 1)
            site.process.drain.begin()
            recalled = await line_of(others)
            assert (recalled["may"], recalled["recall"], recalled["slots"]) == (1, True, 0)
            assert not [line async for line in grants]
            assert not [line async for line in others]
            done = json.loads((await answer).text.splitlines()[-1])
            assert (done["event"], done["lease"]["may"]) == ("done", 0)

    lending(scenario)


def test_open_streams_do_not_hold_up_a_worker_that_stops() -> None:
    async def main() -> None:
        settings = WorkerSettings(_env_file=None, worker_port=0, metrics_port=0, log_level="ERROR", drain_timeout_s=30)
        process = build(settings)
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as clients:
            async with running(process, bind=bind):
                base = f"http://127.0.0.1:{process.bound_port}"
                client = await clients.enter_async_context(httpx2.AsyncClient(base_url=base, timeout=60))
                reply = await clients.enter_async_context(client.stream("GET", "/lease/a?epoch=1"))
                began = loop.time()
            assert loop.time() - began < 1.0
            assert not [line async for line in reply.aiter_lines()], "it has its proper end"
        process.log.close()

    run(main())


def test_the_metrics_say_how_much_is_lent() -> None:
    async def scenario(site: Site) -> None:
        await site.asks(1)
        await site.asks(1, router="b")
        await site.asks(0, router="b", keep=0)
        async with httpx2.AsyncClient() as client:
            page = (await client.get(f"http://127.0.0.1:{site.process.bound_metrics_port}/metrics")).text.splitlines()
        for line in (
            "weir_worker_lease_routers 2.0",
            "weir_worker_lease_slots 1.0",
            "weir_worker_lease_moves_total 2.0",
        ):
            assert line in page

    lending(scenario)


def test_the_description_has_both_routes() -> None:
    async def scenario(site: Site) -> None:
        described = (await site.client.get("/openapi.json")).json()
        ask, stream = described["paths"]["/lease"]["post"], described["paths"]["/lease/{router}"]["get"]
        assert ask["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/LeaseAsk")
        assert [parameter["name"] for parameter in stream["parameters"]] == ["router", "epoch"]
        assert {"200", "400", "409", "503"} <= stream["responses"].keys()
        assert described["components"]["schemas"]["LeaseGrant"]["examples"]

    lending(scenario)
