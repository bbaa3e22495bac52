"""The client against a real governor, and against a server that behaves as the original does."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from services.governor.backends import StubBackend
from services.governor.client import Client, Effort, Exit, SendFailed, as_csv, connect, in_words, result_of
from services.governor.job import Ended, Result
from services.governor.server import ServerLimits
from tests.governor.stand import Held, Stand, governor, until
from tests.virtual import run

DATA = b"a payload of a few chunks"


async def client_of(port: int, effort: Effort | None = None, show: Callable[[Any], None] = lambda _: None) -> Client:
    return await connect(("127.0.0.1", port), job="J_test", effort=effort or Effort(), show=show)


async def sent(stand: Stand, effort: Effort | None = None, data: bytes = DATA) -> dict[str, Any]:
    client = await client_of(stand.process.bound_port, effort)
    try:
        return await client.send(data, chunk_bytes=8, content_type="text/plain")
    finally:
        client.close()


def test_a_crowd_that_obeys_its_hints_comes_through_one_slot() -> None:
    async def main() -> None:
        async with governor(StubBackend(0.01)) as stand:
            replies = await asyncio.gather(*(sent(stand) for _ in range(20)))
            assert [reply["status"] for reply in replies] == ["done"] * 20
            assert stand.gate.yielded_total >= 19
            assert (stand.gate.status.executed_total, stand.gate.waiting) == (20, 0)
            await until(lambda: stand.gate.held_bytes == 0)

    run(main())


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 40])
def test_any_payload_arrives_as_it_is_and_its_result_comes_back(data: bytes) -> None:
    class Echo(Held):
        async def run(self, work):  # type: ignore[no-untyped-def]
            return Result(Ended.DONE, shown={"status": 200, "body_b64": base64.b64encode(bytes(work.payload)).decode()})

    async def main() -> None:
        async with governor(Echo()) as stand:
            assert result_of(await sent(stand, data=data)) == data

    run(main())


def test_a_failed_job_is_an_abort_that_says_so() -> None:
    async def main() -> None:
        backend = Held()
        backend.result = Result(Ended.FAILED)
        backend.release.release()
        async with governor(backend) as stand:
            reply = await sent(stand)
            assert (reply["status"], reply["error_code"]) == ("abort", "backend_error")

    run(main())


def test_a_ping_tells_free_from_full_from_gone() -> None:
    async def main() -> None:
        backend = Held()
        async with governor(backend) as stand:
            port = stand.process.bound_port
            one = await client_of(port)
            assert await one.ping() is Exit.DONE
            busy = asyncio.create_task(sent(stand))
            await until(lambda: backend.running == 1)
            assert await one.ping() is Exit.ABORTED
            backend.release.release()
            await busy
            one.close()
        with pytest.raises(SendFailed, match="cannot connect"):
            await client_of(port)

    run(main())


def test_keep_alive_frames_are_read_over() -> None:
    async def main() -> None:
        backend = Held()
        heard: list[str] = []
        async with governor(backend, limits=ServerLimits(keepalive_every_s=0.02)) as stand:
            client = await client_of(stand.process.bound_port, show=lambda reply: heard.append(reply["status"]))
            sending = asyncio.create_task(client.send(b"x", chunk_bytes=8, content_type=""))
            await until(lambda: len(heard) > 4)
            backend.release.release()
            assert (await sending)["status"] == "done"
            client.close()

    run(main())


def test_who_gives_up_says_why() -> None:
    async def main() -> None:
        backend = Held()
        async with governor(backend) as stand:
            busy = asyncio.create_task(sent(stand))
            await until(lambda: backend.running == 1)
            with pytest.raises(SendFailed, match="deferred 1 times: --max-retries allows 0"):
                await sent(stand, Effort(retries=0))
            with pytest.raises(SendFailed, match="the deadline would pass"):
                await sent(stand, Effort(deadline_s=0.2))
            backend.release.release()
            await busy

    run(main())


async def a_server(answer: Callable[[dict[str, Any]], list[bytes]]) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            for sent in answer(json.loads(line)):
                writer.write(sent + b"\n")
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


async def against(answer: Callable[[dict[str, Any]], list[bytes]], effort: Effort | None = None) -> dict[str, Any]:
    server = await a_server(answer)
    async with server:
        client = await client_of(server.sockets[0].getsockname()[1], effort)
        try:
            return await client.send(DATA, chunk_bytes=8, content_type="")
        finally:
            client.close()
            await asyncio.sleep(0.01)


def test_the_originals_refusal_of_a_second_last_chunk_begins_the_upload_again() -> None:
    """There a yield keeps the payload but takes no chunk twice: only a manifest helps."""
    seen: list[str] = []

    def original(frame: dict[str, Any]) -> list[bytes]:
        what = "manifest" if "payload_manifest" in frame else f"chunk {frame['payload_chunk']['index']}"
        seen.append(what)
        if what != "chunk 3":
            status: dict[str, Any] = {"status": "ok"}
        elif seen.count(what) == 1:
            status = {"status": "yield", "retry_hint_ms": 1}
        elif seen.count(what) == 2:
            status = {"status": "need", "need_code": "chunk_expected_index"}
        else:
            status = {"status": "done"}
        return [json.dumps({"v": 0, "verb": "clarify", "job": "J_test", "seq": 1, **status}).encode()]

    assert run(against(original))["status"] == "done"
    upload = ["manifest", "chunk 0", "chunk 1", "chunk 2", "chunk 3"]
    assert seen == [*upload, "chunk 3", *upload]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (
            b'{"verb":"clarify","status":"need","need_code":"manifest_invalid"}',
            "unexpected reply from the governor: manifest_invalid",
        ),
        (b"HTTP/1.1 400 Bad Request", "not a governor"),
        (b"[]", "not a governor"),
        (b'{"verb":7}', "not a governor"),
    ],
)
def test_what_is_not_understood_is_told(sent: bytes, why: str) -> None:
    with pytest.raises(SendFailed, match=why):
        run(against(lambda _: [sent]))


def test_silence_is_not_waited_for_without_end() -> None:
    with pytest.raises(SendFailed, match=r"no reply within 0\.05 s"):
        run(against(lambda _: [], Effort(timeout_s=0.05)))


def test_replies_are_told_as_the_originals_client_tells_them() -> None:
    reply = {"v": 0, "verb": "clarify", "job": "J_a", "seq": 4, "status": "yield", "need_code": "server_busy",
             "retry_hint_ms": 500, "error_code": "busy"}  # fmt: skip
    assert in_words(reply) == "recv v=0 verb=clarify job=J_a seq=4 status=yield need=server_busy err=busy"
    assert as_csv(reply, 1500) == "1500,clarify,J_a,4,yield,server_busy,500,busy"
