"""An ASGI application behind the HTTP protocol: what it sends arrives, and what it fails at is told."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import weakref
from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from services.runtime.api import Call, add_native, describe, json_answer, native, new_api
from services.runtime.connection import Connection
from services.runtime.drain import Drain
from services.runtime.errors import BadInput
from services.runtime.guard import GuardLimits
from services.runtime.http import Exchange
from services.runtime.log import Log
from services.runtime.serve import HttpListener, Process
from services.runtime.service import Service
from services.runtime.shared import Shared
from services.runtime.telemetry import metrics_app, new_registry
from tests.runtime.rig import Tape, ask, post, send, until
from tests.virtual import run, running_here


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n".encode()


def process_of(api: FastAPI, log: io.BytesIO | None = None) -> Process:
    told, drain = Log("test", stream=log or io.BytesIO()), Drain()
    service = Service("test", api, log=told, drain=drain)
    return Process(
        "test", HttpListener(service, GuardLimits(), 75.0), metrics_app(new_registry(), told), told, drain,
        "127.0.0.1", 0, "127.0.0.1", 0,
    )  # fmt: skip


def served(api: FastAPI, *requests: bytes, log: io.BytesIO | None = None) -> list[tuple[int, bytes, bytes]]:
    """(status, head, body) of each request, one after the other."""

    async def main() -> list[tuple[int, bytes, bytes]]:
        async with running_here(process_of(api, log)) as process:
            return [await ask(process.bound_port, request) for request in requests]

    return run(main())


def test_an_answer_in_one_message_has_its_length_and_another_is_chunked() -> None:
    api = new_api("Test", "For a test.")

    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    @api.get("/whole", response_model=None)
    async def whole() -> Response:
        return Response(b"whole", media_type="text/plain", headers={"x-mine": "yes"})

    @api.get("/pieces", response_model=None)
    async def streamed() -> Response:
        return StreamingResponse(pieces(), media_type="text/plain")

    (_, head, body), (_, streamed_head, streamed_body) = served(api, get("/whole"), get("/pieces"))
    assert b"content-length: 5" in head
    assert b"x-mine: yes" in head
    assert body == b"whole"
    assert b"transfer-encoding: chunked" in streamed_head
    assert streamed_body == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


def test_an_application_reads_the_body_the_query_and_the_headers() -> None:
    api = new_api("Test", "For a test.")

    @api.post("/echo/{name}", response_model=None)
    async def echo(request: Request, name: str) -> Response:
        told = [name, request.url.query, request.headers["x-mine"], (await request.body()).decode()]
        return json_answer(told)

    ((status, _, body),) = served(api, post("/echo/a%20b?x=1", b"hello", "x-mine: yes"))
    assert (status, json.loads(body)) == (200, ["a b", "x=1", "yes", "hello"])


@pytest.mark.parametrize(("context", "scheme"), [(None, "http"), (object(), "https")])
def test_an_application_reads_the_scheme_of_its_connection(context: object, scheme: str) -> None:
    api, schemes = new_api("Test", "For a test."), []

    @api.get("/", response_model=None)
    async def endpoint(request: Request) -> Response:
        schemes.append(request.url.scheme)
        return Response()

    async def main() -> None:
        tape = Tape()
        tape._extra = {"sslcontext": context}
        service = process_of(api).listener.app  # type: ignore[attr-defined]
        connection = Connection(Shared(service, GuardLimits(), idle_timeout_s=60.0))
        connection.connection_made(tape)
        connection.data_received(get("/"))
        await until(lambda: schemes, "the request")
        connection.connection_lost(None)

    run(main())
    assert schemes == [scheme]


def test_another_method_is_refused_with_those_that_are_allowed_on_every_route_of_the_path() -> None:
    api = new_api("Test", "For a test.")
    for method in ("GET", "PUT"):
        api.add_api_route("/both", lambda: None, methods=[method], response_model=None)
    ((status, head, body),) = served(api, get("/both", "DELETE"))
    assert status == 405
    assert b"allow: GET, PUT" in head
    assert json.loads(body)["error"]["code"] == "method_not_allowed"


def test_a_failed_handler_is_told_as_an_internal_error_and_logged_without_what_was_said() -> None:
    api, log = new_api("Test", "For a test."), io.BytesIO()

    @api.get("/fails", response_model=None)
    async def fails() -> Response:
        raise ValueError("a prompt")

    ((status, _, body),) = served(api, get("/fails"), log=log)
    assert (status, json.loads(body)["error"]["code"]) == (500, "internal_error")
    assert b"a handler failed" in log.getvalue()
    assert b"a prompt" not in log.getvalue() + body


def test_an_answer_that_fails_after_its_beginning_is_cut() -> None:
    api = new_api("Test", "For a test.")

    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        raise BadInput("too late to be told")

    @api.get("/cut", response_model=None)
    async def cut() -> Response:
        return StreamingResponse(pieces(), media_type="text/plain")

    async def handler(exchange: Exchange) -> None:
        await exchange.start(200, b"text/plain")
        await exchange.write(b"one")
        raise BadInput("too late to be told")

    add_native(api, {("GET", "/native"): handler}, {})
    for _, _, body in served(api, get("/cut"), get("/native")):
        assert body == b"3\r\none\r\n", "there is no last chunk, and no problem in the middle of an answer"


def test_an_application_learns_that_its_client_has_left() -> None:
    api, gone = new_api("Test", "For a test."), []

    @api.get("/waits", response_model=None)
    async def waits(request: Request) -> Response:
        await request.body()
        message = await request.receive()
        gone.append(message["type"])
        return Response(b"nobody reads this")

    async def main() -> None:
        async with running_here(process_of(api)) as process:
            await send(process.bound_port, get("/waits"), half_close=True)
            await until(lambda: gone == ["http.disconnect"], "the message")

    run(main())


def test_a_route_is_logged_by_its_pattern_and_an_unknown_path_as_other() -> None:
    api, log = new_api("Test", "For a test."), io.BytesIO()

    async def handler(exchange: Exchange) -> None:
        await exchange.reply(200, exchange.tail.encode())

    add_native(api, {("GET", "/tree/{id:path}"): handler}, {"/tree/{id:path}": describe("A tree.")})
    (_, _, body), (empty, _, _), (nowhere, _, _) = served(api, get("/tree/a/b"), get("/tree/"), get("/secret"), log=log)
    assert (body, empty, nowhere) == (b"a/b", 404, 404)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["path"] for line in lines if "path" in line] == ["/tree/{id}", "/tree/{id}", "other"]
    assert [each["name"] for each in api.openapi()["paths"]["/tree/{id}"]["get"]["parameters"]] == ["id"]


@pytest.mark.parametrize("framework", ["native", "json"])
def test_a_request_of_either_kind_of_handler_is_cancelled_when_its_client_leaves(framework: str) -> None:
    api, ended = new_api("Test", "For a test."), []

    async def handler(exchange: Exchange) -> None:
        task = asyncio.current_task()
        assert task is not None
        exchange.on_gone(task.cancel)
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(exchange.gone)

    async def endpoint(exchange: Call) -> Response:
        await handler(exchange)
        return Response()

    api.add_api_route("/", native(handler) if framework == "native" else endpoint, response_model=None)

    async def main() -> None:
        async with running_here(process_of(api)) as process:
            await send(process.bound_port, get("/"), half_close=True)
            await until(lambda: ended == [True], "the end")

    run(main())


def test_a_client_that_left_before_its_answer_is_no_fault_of_the_handler() -> None:
    api, log, entered = new_api("Test", "For a test."), io.BytesIO(), asyncio.Event()

    @api.get("/late", response_model=None)
    async def late(exchange: Call) -> Response:
        left = asyncio.Event()
        exchange.on_gone(left.set)
        entered.set()
        await left.wait()
        return Response(b"nobody reads this")

    async def main() -> None:
        async with running_here(process_of(api, log)) as process:
            await send(process.bound_port, get("/late"), half_close=True)
            await entered.wait()
            await until(lambda: b'"request"' in log.getvalue(), "the line of the log")

    run(main())
    (line,) = [json.loads(line) for line in log.getvalue().splitlines() if b'"request"' in line]
    assert (line["status"], line["outcome"]) == (499, "client_gone")
    assert b"a handler failed" not in log.getvalue()


def test_nothing_keeps_an_application_whose_service_is_over() -> None:
    def served_once() -> weakref.ref[FastAPI]:
        api = new_api("Test", "For a test.")

        @api.get("/", response_model=None)
        async def whole(exchange: Call) -> Response:
            assert exchange.method == "GET"
            return Response(b"whole", headers={"x-title": api.title})

        assert served(api, get("/"))[0][0] == 200
        return weakref.ref(api)

    kept = served_once()
    gc.collect()
    assert kept() is None
