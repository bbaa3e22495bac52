"""Streams as clients meet them: when the head comes, what keeps the line awake, and how a failure is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
import pytest

from services.contracts.generate import Done, GenerateRequest, Token
from services.runtime.http import Exchange
from tests.router.rig import TIMINGS, USAGE, FakeWorker, Stand, answer, cut_after, failing, refuse, standing
from tests.runtime.rig import post as raw_post
from tests.runtime.rig import until
from tests.virtual import run
from tests.wire import Wire

HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", HI),
    "text": ("/v1/completions", {"prompt": "hi", "stream": True}),
    "ask": ("/ask", {"query": "hi", "stream": True}),
}


class Gate:
    """A script that lets the test say when the worker speaks, and with whose words."""

    def __init__(self, script: Any = answer) -> None:
        self.opened = asyncio.Event()
        self.script = script

    async def __call__(self, exchange: Exchange, request: GenerateRequest, worker: FakeWorker) -> None:
        await self.opened.wait()
        await self.script(exchange, request, worker)


def words(pause_s: float, count: int = 1_000_000, size: int = 4) -> Any:
    """A worker that says so many words, with a pause after each."""

    async def speak(exchange: Exchange, request: GenerateRequest, worker: FakeWorker) -> None:
        await exchange.start(200, b"application/x-ndjson")
        for _ in range(count):
            await exchange.write(msgspec.json.encode(Token("x" * size)) + b"\n")
            worker.said = getattr(worker, "said", 0) + size  # type: ignore[attr-defined]  # a script's own
            await asyncio.sleep(pause_s)
        await exchange.end(msgspec.json.encode(Done("stop", USAGE, TIMINGS, 1)) + b"\n")

    return speak


@pytest.fixture
def soon_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.router.serving.response.KEEP_ALIVE_S", 0.02)


@asynccontextmanager
async def opened(stand: Stand, route: str = "chat", **headers: str) -> AsyncIterator[httpx2.Response]:
    path, body = ROUTES[route]
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with stand.client.stream("POST", path, content=json.dumps(body).encode(), headers=named) as response:
        yield response


async def failure_in(stand: Stand, route: str = "chat", **headers: str) -> tuple[str, dict[str, Any]]:
    """A stream that fails after its head: what came before its error event, and the error."""
    async with opened(stand, route, **headers) as response:
        assert response.status_code == 200
        text = (await response.aread()).decode()
    assert "[DONE]" not in text
    before, _, last = text.rpartition("event: error\ndata: ")
    assert last.endswith("\n\n")
    error: dict[str, Any] = json.loads(last)["error"]
    return before, error


@pytest.mark.parametrize("route", ROUTES)
def test_the_head_comes_with_the_first_token(route: str) -> None:
    async def main() -> None:
        gate = Gate()
        async with standing(FakeWorker(gate)) as stand, asyncio.TaskGroup() as tasks:
            entering = opened(stand, route)
            head = tasks.create_task(entering.__aenter__())
            await until(lambda: stand.workers[0].running == 1)
            await asyncio.sleep(0.05)
            assert not head.done()
            gate.opened.set()
            response = await head
            assert (response.status_code, response.headers["cache-control"]) == (200, "no-cache")
            assert (await response.aread()).endswith(b"data: [DONE]\n\n")
            await entering.__aexit__(None, None, None)

    run(main)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.usefixtures("soon_awake")
def test_a_line_is_kept_awake_by_comments_until_the_first_token(route: str) -> None:
    async def main() -> None:
        gate = Gate()
        async with standing(FakeWorker(gate)) as stand, opened(stand, route) as response:
            assert response.status_code == 200
            lines = response.aiter_lines()
            comments = [await anext(lines) for _ in range(6)]
            assert comments == [": keep-alive", ""] * 3
            gate.opened.set()
            rest = [line async for line in lines]
            data = [line for line in rest if line.startswith("data: ")]
            assert data[-1] == "data: [DONE]"
            first = rest.index(data[0])
            assert not [line for line in rest[first:] if line.startswith(":")]

    run(main)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.usefixtures("soon_awake")
def test_a_failure_after_a_comment_is_an_event_and_nothing_is_done(route: str) -> None:
    async def main() -> None:
        gates = [Gate(failing()), Gate(failing())]
        async with standing(*(FakeWorker(gate) for gate in gates)) as stand:
            telling_it = asyncio.create_task(failure_in(stand, route))
            await until(lambda: any(worker.running for worker in stand.workers))
            await asyncio.sleep(0.1)
            for gate in gates:
                gate.opened.set()
            before, error = await telling_it
            assert before.replace(": keep-alive\n\n", "") == ""
            assert (error["code"], error["details"]["retry_hint_ms"] > 0) == ("upstream_failed", True)
            assert await stand.counted() == {"upstream_failed": 1}

    run(main)


@pytest.mark.usefixtures("soon_awake")
def test_every_way_to_fail_is_told_in_a_stream_that_was_kept_awake() -> None:
    async def main() -> None:
        gate = Gate(refuse)
        async with standing(FakeWorker(gate)) as stand:
            _, late = await failure_in(stand, x_weir_deadline_ms="150")
            assert (late["code"], late["details"]["reason"]) == ("deadline_exceeded", "deadline")
            _, slow = await failure_in(stand, x_weir_ttft_ms="150")
            assert (slow["code"], slow["details"]["reason"]) == ("deadline_exceeded", "first_token")
            busy = asyncio.create_task(failure_in(stand))
            await until(lambda: stand.workers[0].running == 1)
            await asyncio.sleep(0.1)
            gate.opened.set()
            assert (await busy)[1]["details"]["reason"] == "workers_busy"
            assert await stand.counted() == {"deadline_exceeded": 2, "yield": 1}

    run(main)


@pytest.mark.parametrize("route", ROUTES)
def test_a_worker_that_is_cut_after_its_first_words(route: str) -> None:
    async def main() -> None:
        async with standing(FakeWorker(cut_after(2)), FakeWorker(cut_after(2))) as stand:
            before, error = await failure_in(stand, route)
            assert "A " in before
            assert error["code"] == "upstream_failed"
            assert sum(len(worker.asked) for worker in stand.workers) == 1

    run(main)


def test_a_limit_on_the_first_token_holds_only_where_it_was_asked_for_and_only_for_the_first() -> None:
    async def main() -> None:
        gate = Gate()
        async with standing(FakeWorker(gate), default_ttft_ms=30) as stand:
            served = asyncio.create_task(stand.chat(stream=True))
            await until(lambda: stand.workers[0].running == 1)
            await asyncio.sleep(0.1)
            gate.opened.set()
            assert (await served).text.endswith("data: [DONE]\n\n")
            stand.workers[0].script = words(0.2, count=4)
            assert (await stand.chat(stream=True, headers={"x-weir-ttft-ms": "150"})).text.endswith("[DONE]\n\n")

    run(main)


def test_a_worker_that_falls_silent_between_two_words_has_failed_and_is_told() -> None:
    async def main() -> None:
        async with standing(FakeWorker(words(60.0)), stream_silence_s=0.1) as stand:
            before, error = await failure_in(stand)
            assert "xxxx" in before
            assert error["code"] == "upstream_failed"
            worker = stand.workers[0]
            await until(lambda: worker.left == 1, "the worker's notice by its socket")
            await until(lambda: worker.cancelled == [worker.asked[0].id], "the cancel call")

    run(main)


def test_words_that_come_before_each_silence_ends_are_no_silence() -> None:
    async def main() -> None:
        async with standing(FakeWorker(words(0.1, count=8)), stream_silence_s=0.4) as stand:
            assert (await stand.chat(stream=True)).text.endswith("data: [DONE]\n\n")

    run(main)


@pytest.mark.parametrize("route", ROUTES)
def test_a_deadline_that_passes_in_the_middle_of_a_stream(route: str) -> None:
    async def main() -> None:
        async with standing(FakeWorker(words(0.01))) as stand:
            before, error = await failure_in(stand, route, x_weir_deadline_ms="300")
            assert "xxxx" in before
            assert (error["code"], error["type"]) == ("deadline_exceeded", "timeout_error")
            await until(lambda: stand.workers[0].left == 1)
            await until(lambda: len(stand.workers[0].cancelled) == 1)

    run(main)


# ---- clients that do not read


@asynccontextmanager
async def deaf(stand: Stand, route: str, *headers: str) -> AsyncIterator[Wire]:
    """A client that asks, has a small buffer, and reads nothing."""
    path, body = ROUTES[route]
    client = Wire()
    await client.connect(stand.router.bound_port, receive_bytes=4096)
    client.send(raw_post(path, json.dumps(body).encode(), *headers))
    yield client
    client.close()


async def all_of(client: Wire) -> bytes:
    """It reads after all."""
    data = b""
    while piece := await client.recv():
        data += piece
    return data


def test_a_client_that_never_reads_loses_its_place() -> None:
    async def main() -> None:
        one = standing(FakeWorker(words(0.0, size=65_536), slots=1), write_stall_s=0.3)
        async with one as stand, deaf(stand, "chat"):
            await until(lambda: stand.workers[0].left == 1, "its worker is free")
            await stand.all_returned()
            assert await stand.counted() == {"client_gone": 1}

    run(main)


def test_a_worker_is_read_no_faster_than_its_client_reads() -> None:
    async def main() -> None:
        size, count = 65_536, 200
        worker = FakeWorker(words(0.0, count=count, size=size))
        async with standing(worker) as stand, deaf(stand, "chat") as client:
            await until(lambda: worker.running == 1)
            said = -1
            while said != getattr(worker, "said", 0):
                said = getattr(worker, "said", 0)
                await asyncio.sleep(0.3)
            assert 0 < said < size * count / 3, "most of it waits at the worker"
            data = await all_of(client)
            assert data.count(b"x") >= size * count
            assert b"data: [DONE]\n\n" in data

    run(main)


def test_after_done_there_is_no_error_however_late_the_client_reads() -> None:
    async def main() -> None:
        # the last event of /ask repeats the whole answer: it is what the client's buffers have no room for
        one = standing(FakeWorker(words(0.0, count=1, size=120_000)))
        async with one as stand, deaf(stand, "ask", "x-weir-deadline-ms: 700") as client:
            while not await stand.counted():
                await asyncio.sleep(0.01)
            data = await all_of(client)
            assert (b"[DONE]" in data) != (b"event: error" in data)
            (outcome,) = await stand.counted()
            assert outcome == ("served" if b"[DONE]" in data else "deadline_exceeded")

    run(main)
