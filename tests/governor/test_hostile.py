"""Peers that mean no good, on the virtual clock: whatever they do and wherever they stop, nothing of theirs stays."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest

from services.governor.backends import StubBackend
from services.governor.job import Ended, Result
from tests.governor.stand import Held, Line, Stand, governor, until
from tests.governor.talk import frame, manifest, ping, receipt, upload
from tests.virtual import run

DATA = b"hello world!"


async def _nothing(line: Line, backend: Held) -> None: ...


async def _half_a_line(line: Line, backend: Held) -> None:
    await line.send(b'{"v":0,"verb":"ping","job":')


async def _a_blank_line(line: Line, backend: Held) -> None:
    await line.send(b"\r\n")


async def _a_ping(line: Line, backend: Held) -> None:
    await line.ask(ping())


async def _a_manifest(line: Line, backend: Held) -> None:
    await line.ask(upload(DATA)[0])


async def _half_an_upload(line: Line, backend: Held) -> None:
    for sent in upload(DATA)[:-1]:
        await line.ask(sent)


async def _half_a_chunk(line: Line, backend: Held) -> None:
    await _a_manifest(line, backend)
    await line.send(upload(DATA)[1][:-9])


async def _a_running_job(line: Line, backend: Held) -> None:
    started = backend.started
    await line.send(*upload(DATA))
    await until(lambda: backend.started == started + 1)


async def _a_running_job_and_more_behind_it(line: Line, backend: Held) -> None:
    await _a_running_job(line, backend)
    await line.send(ping(), *upload(DATA, job="J_b"), ping()[:-7])


async def _a_yield(line: Line, backend: Held) -> None:
    backend.result = Result(Ended.REFUSED)
    backend.release.release()
    await line.send(*upload(DATA))
    while (reply := await line.hear()) and reply["status"] != "yield":
        pass


async def _a_finished_job(line: Line, backend: Held) -> None:
    backend.release.release()
    await line.send(*upload(DATA))
    while (reply := await line.hear()) and reply["status"] != "done":
        pass


async def _rubbish(line: Line, backend: Held) -> None:
    await line.send(b"\x00\xff{[\n" * 50)


# state: how it is reached, and the last thing that is said to whoever sends nothing more
STATES: dict[str, tuple[Callable[[Line, Held], Awaitable[None]], str]] = {
    "nothing": (_nothing, "peer_gone"),
    "half a line": (_half_a_line, "peer_gone"),
    "a blank line": (_a_blank_line, "peer_gone"),
    "a ping": (_a_ping, "peer_gone"),
    "a manifest": (_a_manifest, "peer_gone"),
    "half an upload": (_half_an_upload, "peer_gone"),
    "half a chunk": (_half_a_chunk, "peer_gone"),
    "a running job": (_a_running_job, "done"),
    "a running job and more behind it": (_a_running_job_and_more_behind_it, "json_malformed"),
    "a yield": (_a_yield, "nothing more"),
    "a finished job": (_a_finished_job, "nothing more"),
    "rubbish": (_rubbish, "peer_gone"),
}


async def _nothing_is_left(stand: Stand, backend: Held) -> None:
    gate = stand.gate
    await until(lambda: not stand.server.connections and not stand.server.tasks)
    assert (gate.status.inflight, gate.held_bytes, gate.waiting, backend.running) == (0, 0, 0, 0)
    line = await stand.connect()
    assert receipt(await line.ask(ping()), "server.health") == 1


@pytest.mark.parametrize("state", STATES)
def test_whoever_sends_nothing_more_is_told_what_is_left_to_say_and_let_go(state: str) -> None:
    reach, last = STATES[state]

    async def main() -> None:
        backend = Held()
        async with governor(backend) as stand:
            line = await stand.connect()
            await reach(line, backend)
            line.writer.write_eof()
            await asyncio.sleep(0.05)  # the end comes before its job's end does
            backend.release.release()
            backend.release.release()
            heard = [(reply.get("need_code") or reply["status"]) async for reply in _rest(line)]
            assert (heard or ["nothing more"])[-1] == last
            await _nothing_is_left(stand, backend)

    run(main())


async def _rest(line: Line):  # type: ignore[no-untyped-def]
    while (reply := await line.hear()) is not None:
        yield reply


@pytest.mark.parametrize("state", STATES)
def test_a_connection_that_is_reset_leaves_nothing_behind(state: str) -> None:
    async def main() -> None:
        backend = Held()
        async with governor(backend) as stand:
            line = await stand.connect()
            await STATES[state][0](line, backend)
            sock: socket.socket = line.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            line.writer.transport.abort()
            await _nothing_is_left(stand, backend)
            assert backend.cancelled == (1 if "running" in state else 0)

    run(main())


def test_a_byte_now_and_then_does_not_keep_a_connection() -> None:
    async def main() -> None:
        async with governor(StubBackend(0.0), idle_s=0.5) as stand:
            line = await stand.connect()
            await line.send(b'{"v":0,"verb":"ping","job":"J')
            await until(lambda: stand.gate.held_bytes > 0)
            async with asyncio.timeout(30):
                while stand.server.connections:
                    with contextlib.suppress(ConnectionError):  # what is sent after the end is answered by a reset
                        await line.send(b"J")
                    await asyncio.sleep(0.02)
            assert stand.gate.held_bytes == 0

    run(main())


def test_two_hundred_that_say_nothing_are_in_nobodys_way() -> None:
    async def main() -> None:
        async with governor(StubBackend(0.0)) as stand:
            silent = [await stand.connect() for _ in range(200)]
            line = await stand.connect()
            for sent in upload(DATA)[:-1]:
                assert (await line.ask(sent))["status"] == "ok"
            assert (await line.ask(upload(DATA)[-1]))["status"] == "done"
            assert len(stand.server.connections) == 201
            assert [(await each.ask(ping()))["status"] for each in silent] == ["ok"] * 200

    run(main())


def test_sixty_four_jobs_of_four_megabytes_on_one_connection_are_as_many_as_its_bound_allows() -> None:
    """Every job that is taken is sent in full but for its last byte; the rest is told to come back."""
    size, chunk_bytes, bound = 4_000_000, 190_000, 9_000_000
    piece = b"x" * chunk_bytes
    body = {
        "payload_id": "P_1", "offset": 0, "sha256": hashlib.sha256(piece).hexdigest(),
        "bytes_b64": base64.b64encode(piece).decode(),
    }  # fmt: skip

    async def main() -> None:
        async with governor(StubBackend(0.0), connection_bytes=bound) as stand:
            line, taken, max_bytes = await stand.connect(), 0, 0
            for number in range(64):
                sent = manifest(b"", total_bytes=size, chunk_bytes=chunk_bytes, chunks=22, sha256="")
                reply = await line.ask(frame(verb="share", job=f"J_{number}", seq=1, payload_manifest=sent))
                if reply["status"] == "yield":
                    continue
                assert reply["status"] == "ok"
                taken += 1
                for index in range(21):
                    chunk = {**body, "index": index}
                    reply = await line.ask(frame(verb="share", job=f"J_{number}", seq=2, payload_chunk=chunk))
                    assert reply["status"] == "ok"
                    max_bytes = max(max_bytes, stand.gate.held_bytes)
                assert receipt(reply, "cdr.bytes_in") == 21 * chunk_bytes
            assert (taken, stand.gate.yielded_total) == (2, 62)
            assert max_bytes <= bound
            await line.close()
            await until(lambda: stand.gate.held_bytes == 0)
            assert stand.gate.waiting == 0

    run(main())


def test_slots_come_back_whatever_a_hundred_peers_do() -> None:
    """In every state, all at once, and half are reset. Those whose jobs end go first: they would end others'."""

    async def main() -> None:
        backend = Held()
        async with governor(backend, cap=100) as stand:
            reaches = [reach for reach, _ in STATES.values()] * 4
            for reach in sorted(reaches, key=lambda reach: reach not in (_a_yield, _a_finished_job)):
                line, other = await stand.connect(), await stand.connect()
                backend.result = Result(Ended.DONE)
                await reach(line, backend)
                await other.send(*upload(DATA)[:2], b"{")
            for number, line in enumerate(stand.lines):
                if number % 2:
                    line.writer.transport.abort()
                else:
                    line.writer.close()
            await _nothing_is_left(stand, backend)

    run(main())
