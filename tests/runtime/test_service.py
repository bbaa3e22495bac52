"""Routes, the error boundary, the request's one log line, and leaving without dropping anyone."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json

import pytest

from services.core.outcome import Outcome
from services.runtime.errors import Refused
from services.runtime.framing import block
from services.runtime.http import Exchange
from services.runtime.serve import running
from services.runtime.starting import CannotStart, PortTaken
from tests.runtime.rig import ask, build, post, serving, until
from tests.virtual import bind, run


async def hello(exchange: Exchange) -> None:
    exchange.log["tenant"] = "demo"
    await exchange.reply(200, b'"hello"', headers=[(b"x-said", exchange.tail.encode())])


async def refuse(exchange: Exchange) -> None:
    raise Refused(Outcome.YIELD, "full", reason="max_inflight", retry_hint_ms=120)


async def fail(exchange: Exchange) -> None:
    raise RuntimeError("the prompt was: sekrit")


ROUTES = {("GET", "/hello"): hello, ("POST", "/cancel/{id}"): hello, ("GET", "/full"): refuse, ("GET", "/fail"): fail}


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "host: t", "connection: close", *headers]).encode() + b"\r\n\r\n"


def test_what_a_handler_says_after_its_answer_was_ended_from_outside_goes_nowhere() -> None:
    said: list[Exchange] = []

    async def told_early(exchange: Exchange) -> None:
        if exchange.tail == "stream":
            await exchange.start(200, b"text/plain")
            await exchange.write(b"first ")
            exchange.let_go(b"last")
            await exchange.write(b"more")
            await exchange.end(b"and more")
        else:
            exchange.reply_now(504, b"late")
            exchange.let_go()
            await exchange.reply(200, b"an answer")
        said.append(exchange)

    async def main() -> None:
        async with serving({("GET", "/early/{id}"): told_early}) as process:
            status, _, body = await ask(process.bound_port, get("/early/plain"))
            assert (status, body) == (504, b"late")
            status, _, body = await ask(process.bound_port, get("/early/stream"))
            assert (status, body) == (200, b"6\r\nfirst \r\n4\r\nlast\r\n0\r\n\r\n")
            assert len(said) == 2, "the handlers went on to their ends"

    run(main())


def test_routes_answer_and_what_is_not_there_says_so() -> None:
    async def main() -> None:
        async with serving(ROUTES) as process:
            port = process.bound_port
            assert (await ask(port, get("/hello")))[::2] == (200, b'"hello"')
            status, head, _ = await ask(port, post("/cancel/r-7", b""))
            assert status == 200
            assert b"x-said: r-7" in head
            status, _, body = await ask(port, get("/nowhere"))
            assert (status, json.loads(body)["error"]["code"]) == (404, "not_found")
            status, _, body = await ask(port, get("/cancel/r-7"))
            assert (status, json.loads(body)["error"]["code"]) == (405, "method_not_allowed")
            assert (await ask(port, get("/health")))[0] == 200
            assert (await ask(port, get("/health/ready")))[0] == 200
            assert (await ask(port, get("/metrics")))[0] == 404  # on its own listener only
            assert b"process_resident_memory_bytes" in (await ask(process.bound_metrics_port, get("/metrics")))[2]

    run(main())


async def repeat(exchange: Exchange) -> None:
    await exchange.reply(200, json.dumps([exchange.tail, exchange.query.decode()]).encode())


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/tree/a", ["a", ""]),
        ("/tree/a/b%20c.md?x=1&y=%2F", ["a/b c.md", "x=1&y=%2F"]),
        ("/tree/a%2Fb?", ["a/b", ""]),
        ("/tree/inner/x/y", ["x/y", "inner"]),
        ("/tree//a/", ["/a/", ""]),
    ],
)
def test_a_tree_of_paths_has_one_route_and_the_first_that_fits_wins(path: str, said: list[str]) -> None:
    async def inner(exchange: Exchange) -> None:
        await exchange.reply(200, json.dumps([exchange.tail, "inner"]).encode())

    async def main() -> None:
        routes = {("GET", "/tree/inner/{rest:path}"): inner, ("GET", "/tree/{rest:path}"): repeat}
        async with serving(routes) as process:
            status, _, body = await ask(process.bound_port, get(path))
            assert (status, json.loads(body)) == (200, said)
            for elsewhere in ("/tree", "/tree/", "/trees/a"):
                assert (await ask(process.bound_port, get(elsewhere)))[0] == 404

    run(main())


def test_a_refusal_is_told_in_status_headers_and_body() -> None:
    async def main() -> None:
        async with serving(ROUTES) as process:
            status, head, body = await ask(process.bound_port, get("/full"))
            assert status == 429
            assert b"retry-after: 1" in head
            assert b"retry-after-ms: 120" in head
            assert b"x-should-retry: true" in head
            assert json.loads(body)["error"]["details"]["reason"] == "max_inflight"

    run(main())


def test_a_handlers_fault_is_500_and_its_words_stay_out_of_answer_and_log() -> None:
    stream = io.BytesIO()

    async def main() -> None:
        async with serving(ROUTES, stream=stream) as process:
            status, _, body = await ask(process.bound_port, get("/fail"))
            assert status == 500
            assert json.loads(body)["error"]["code"] == "internal_error"
            assert b"sekrit" not in body

    run(main())
    logged = stream.getvalue().decode()
    assert "a handler failed" in logged
    assert "RuntimeError in fail" in logged
    assert "sekrit" not in logged


def test_every_request_is_one_line_with_its_id_and_never_its_content() -> None:
    stream = io.BytesIO()

    async def main() -> None:
        async with serving(ROUTES, stream=stream) as process:
            _, head, _ = await ask(
                process.bound_port, get("/hello", "x-request-id: mine-1", "authorization: Bearer k3y")
            )
            assert b"x-request-id: mine-1" in head
            _, head, _ = await ask(process.bound_port, get("/hello", "x-request-id: not ok"))
            assert b"x-request-id: not ok" not in head
            await ask(process.bound_port, get("/%0d%0aforged"))
            await ask(process.bound_port, get("/hello").replace(b"GET", b"PUT"))
            await ask(process.bound_port, get("/full"))

    run(main())
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    requests = [line for line in lines if line["event"] == "request"]
    first = requests[0]
    assert (first["id"], first["path"], first["status"], first["tenant"]) == ("mine-1", "/hello", 200, "demo")
    assert requests[2]["path"] == "other"
    told = [(line["method"], line["path"], line["status"]) for line in requests[1:]]
    assert told == [("GET", "/hello", 200), ("GET", "other", 404), ("PUT", "/hello", 405), ("GET", "/full", 429)]
    assert all(line["ms"] >= 0 for line in requests)
    assert "k3y" not in stream.getvalue().decode()


def test_what_stands_on_every_answer_can_change_for_one_exchange_and_for_all() -> None:
    async def pressed(exchange: Exchange) -> None:
        exchange.always = block([(b"x-level", b"2")])
        raise Refused(Outcome.YIELD, "full")

    async def main() -> None:
        async with serving({**ROUTES, ("GET", "/pressed"): pressed}, headers=[(b"x-level", b"0")]) as process:
            port = process.bound_port
            for path in ("/hello", "/nowhere", "/fail", "/health"):
                assert b"x-level: 0\r\n" in (await ask(port, get(path)))[1] + b"\r\n"
            assert b"x-level: 2\r\n" in (await ask(port, get("/pressed")))[1] + b"\r\n"
            process.listener.app.always = block([(b"x-level", b"3")])  # type: ignore[union-attr]  # a Service
            assert b"x-level: 3\r\n" in (await ask(port, get("/full")))[1] + b"\r\n"

    run(main())


def test_a_handler_that_waits_before_it_is_a_task_is_a_fault_and_not_a_hang() -> None:
    async def waits(exchange: Exchange) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with serving({("GET", "/waits"): waits}, eager=["/waits"]) as process:
            assert (await ask(process.bound_port, get("/waits")))[0] == 500

    run(main())


def test_draining_finishes_what_runs_and_lets_nobody_else_in() -> None:
    release = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await release.wait()
        await exchange.reply(200, b"done")

    async def main() -> None:
        process = build({("GET", "/slow"): slow})
        async with running(process, bind=bind):
            answer = asyncio.create_task(ask(process.bound_port, get("/slow")))
            await until(lambda: process.drain.inflight == 1, "the request's start")
            process.drain.begin()
            status, _, body = await ask(process.bound_port, get("/health/ready"))
            assert (status, json.loads(body)["status"]) == (503, "draining")
            asyncio.get_running_loop().call_later(0.05, release.set)
        assert (await answer)[::2] == (200, b"done")
        with pytest.raises(ConnectionRefusedError):
            await ask(process.bound_port, get("/health"))
        process.log.close()

    run(main())


def test_what_outlasts_the_grace_is_told_so_and_cut() -> None:
    async def endless(exchange: Exchange) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        process = build({("GET", "/endless"): endless}, drain_timeout_s=0.1)
        async with running(process, bind=bind):
            answer = asyncio.create_task(ask(process.bound_port, get("/endless")))
            await until(lambda: process.drain.inflight == 1, "the request's start")
        assert process.drain.inflight == 0
        status, _, body = await answer
        assert (status, json.loads(body)["error"]["code"]) == (503, "draining")
        process.log.close()

    run(main())


@pytest.mark.sockets
def test_a_port_that_is_taken_is_one_clear_sentence() -> None:
    async def main() -> None:
        with contextlib.closing(bind("127.0.0.1", 0)) as taken:
            process = build(ROUTES)
            process.port = taken.getsockname()[1]
            process.port_variable = "ROUTER_PORT"
            with pytest.raises(PortTaken, match=r"cannot listen on 127\.0\.0\.1:\d+ \(.*\); choose .* ROUTER_PORT"):
                async with running(process, bind=bind):
                    pass
            process.log.close()

    asyncio.run(main())


def test_a_service_that_still_starts_is_alive_and_not_ready_and_leaves_when_it_is_told_to() -> None:
    begun, cut_short = asyncio.Event(), asyncio.Event()

    async def load_for_ever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cut_short.set()

    async def main() -> None:
        process = build(ROUTES, start=load_for_ever)
        leaving = asyncio.Event()

        async def serve() -> None:
            async with running(process, leaving, bind=bind):
                await leaving.wait()

        serving_it = asyncio.create_task(serve())
        await begun.wait()
        assert (await ask(process.bound_port, get("/health")))[0] == 200
        leaving.set()
        await serving_it
        assert cut_short.is_set()
        process.log.close()

    run(main())


def test_a_start_that_fails_is_told_and_gives_everything_back() -> None:
    stopped = []

    async def fail_to_load() -> None:
        raise CannotStart("there is no model named x; set MODEL_ID")

    async def stop() -> None:
        stopped.append(True)

    async def main() -> None:
        process = build(ROUTES, start=fail_to_load, stop=stop)
        with pytest.raises(CannotStart, match="set MODEL_ID"):
            async with running(process, bind=bind):
                pass
        with pytest.raises(ConnectionRefusedError):
            await ask(process.bound_port, get("/health"))
        assert stopped == [True]
        process.log.close()

    run(main())
