"""The payload posted, and every way in which that can end."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from services.governor import app
from services.governor.backends import RESULT_BYTES, HttpBackend
from services.governor.config import GovernorSettings
from services.governor.gate import Gate, GovernorLimits
from services.governor.job import Ended, Result, Work
from services.runtime.keepalive import Pool
from tests.governor.stand import until
from tests.virtual import run

PAYLOAD = b'\x00{"not": even JSON\xff'


@dataclass
class Upstream:
    """A small server: what it was sent, and what it answers; with no answer it says nothing until it is hung up on."""

    answer: bytes
    port: int = 0
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    hung_up: int = 0
    served: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            await self._serve(reader, writer)
        finally:
            self.served += 1
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        self.bodies.append(await reader.readexactly(length))
        self.heads.append(head)
        if self.answer:
            writer.write(self.answer)
        else:
            await reader.read()
            self.hung_up += 1

    def header(self, name: bytes) -> bytes | None:
        """Of the last request."""
        lines = self.heads[-1].split(b"\r\n")
        return next((line[len(name) + 2 :] for line in lines if line.startswith(name + b": ")), None)


def answer(status: bytes, body: bytes = b"", *headers: bytes) -> bytes:
    head = [b"HTTP/1.1 " + status, b"content-length: %d" % len(body), *headers, b"connection: close"]
    return b"\r\n".join([*head, b"", b""]) + body


@asynccontextmanager
async def upstream(sent: bytes) -> AsyncIterator[Upstream]:
    server = Upstream(sent)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    async with listening:
        yield server
        for writer in server.writers:
            writer.transport.abort()
        await until(lambda: server.served == len(server.writers))


def backend(port: int, *, api_key: str = "", within_s: float = 30.0) -> HttpBackend:
    pool = Pool(f"http://127.0.0.1:{port}/v1/completions", max_connections=4)
    return HttpBackend(pool, api_key=api_key, within_s=within_s)


def work(*, content_type: str = "application/json", left_s: float | None = None, auth: str = "") -> Work:
    slot = Gate(cap=1, bounds=GovernorLimits(), random=lambda: 0.0).try_acquire()
    assert slot is not None
    deadline = None if left_s is None else asyncio.get_running_loop().time() + left_s
    return Work("J_a", bytearray(PAYLOAD), content_type, deadline, slot, auth)


async def posted(server: Upstream, given: Work, **options: Any) -> Result:
    posting = backend(server.port, **options)
    try:
        return await posting.run(given)
    finally:
        await posting.close()


def test_the_bytes_go_out_as_they_came_and_the_answer_comes_back_whole() -> None:
    async def main() -> None:
        async with upstream(answer(b"200 OK", b"\x01done\xff", b"content-type: text/weir")) as server:
            result = await posted(server, work())
        assert result.ended is Ended.DONE
        assert dict(result.shown) == {
            "status": 200, "content_type": "text/weir", "body_b64": base64.b64encode(b"\x01done\xff").decode(),
        }  # fmt: skip
        assert server.bodies == [PAYLOAD]
        assert server.heads[0].startswith(b"POST /v1/completions HTTP/1.1\r\n")

    run(main())


def test_what_follows_a_question_mark_in_the_address_is_posted_to_as_well() -> None:
    async def main() -> None:
        async with upstream(answer(b"200 OK")) as server:
            url = f"http://127.0.0.1:{server.port}/deployments/a/completions?api-version=1&x=%20"
            posting = app.backend(GovernorSettings(_env_file=None, governor_upstream_url=url))
            assert (await posting.run(work())).ended is Ended.DONE
            await posting.close()
        assert server.heads[0].startswith(b"POST /deployments/a/completions?api-version=1&x=%20 HTTP/1.1\r\n")

    run(main())


@pytest.mark.parametrize("status", [b"204 No Content", b"201 Created"])
def test_every_success_is_one(status: bytes) -> None:
    async def main() -> None:
        async with upstream(answer(status)) as server:
            assert (await posted(server, work())).ended is Ended.DONE

    run(main())


@pytest.mark.parametrize("status", [b"400 Bad Request", b"401 Unauthorized", b"302 Found", b"500 Oh", b"504 Late"])
def test_every_other_answer_is_a_failure_and_is_shown(status: bytes) -> None:
    async def main() -> None:
        async with upstream(answer(status, b'{"error": {}}')) as server:
            result = await posted(server, work())
        assert result.ended is Ended.FAILED
        assert result.shown["status"] == int(status[:3])
        assert base64.b64decode(str(result.shown["body_b64"])) == b'{"error": {}}'

    run(main())


@pytest.mark.parametrize(
    ("status", "headers", "retry_s"),
    [
        (b"429 Full", [b"retry-after-ms: 1500", b"retry-after: 2"], 1.5),
        (b"503 None", [b"retry-after: 2"], 2.0),
        (b"429 Full", [], 0.0),
        (b"429 Full", [b"retry-after: Wed, 21 Oct 2026 07:28:00 GMT"], 0.0),
        (b"429 Full", [b"retry-after-ms: 99999999999"], 0.0),
        (b"429 Full", [b"x-should-retry: true", b"retry-after-ms: 50"], 0.05),
    ],
)
def test_a_server_that_is_full_wants_the_client_back_when_it_said(
    status: bytes, headers: list[bytes], retry_s: float
) -> None:
    async def main() -> None:
        async with upstream(answer(status, b"{}", *headers)) as server:
            assert await posted(server, work()) == Result(Ended.REFUSED, retry_s=retry_s)

    run(main())


def test_a_refusal_that_no_retry_can_help_is_a_failure() -> None:
    async def main() -> None:
        async with upstream(answer(b"429 Late", b"why", b"x-should-retry: false", b"retry-after: 1")) as server:
            result = await posted(server, work())
        assert (result.ended, result.shown["status"]) == (Ended.FAILED, 429)

    run(main())


def test_a_clients_time_that_has_passed_is_late_and_the_server_is_hung_up_on() -> None:
    async def main() -> None:
        async with upstream(b"") as server:
            for left_s in (0.0101, 0.0127, 0.0149):
                assert (await posted(server, work(left_s=left_s))).ended is Ended.LATE
            await until(lambda: server.hung_up == len(server.heads))

    run(main())


def test_our_own_patience_that_has_passed_is_a_failure() -> None:
    async def main() -> None:
        async with upstream(b"") as server:
            for left_s in (None, 60.0):
                result = await posted(server, work(left_s=left_s), within_s=0.01)
                assert result.ended is Ended.FAILED
                assert result.shown == {"error": "no answer within 0.01 s"}

    run(main())


def test_a_job_that_is_cancelled_hangs_up_and_leaves_its_connection_to_others() -> None:
    async def main() -> None:
        async with upstream(b"") as server:
            posting = backend(server.port)
            task = asyncio.create_task(posting.run(work()))
            await until(lambda: len(server.heads) == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: server.hung_up == 1)
            assert posting._pool.in_use == 0

    run(main())


def test_nobody_there_is_a_failure_that_says_so() -> None:
    async def main() -> None:
        async with upstream(b"") as server:
            port = server.port
        result = await backend(port).run(work())
        assert result.ended is Ended.FAILED
        assert "no connection" in str(result.shown["error"])
        assert "127.0.0.1" not in str(result.shown["error"])

    run(main())


@pytest.mark.parametrize("sent", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort"])
def test_an_answer_that_is_none_or_is_cut_is_a_failure(sent: bytes) -> None:
    async def main() -> None:
        async with upstream(sent) as server:
            result = await posted(server, work())
        assert (result.ended, list(result.shown)) == (Ended.FAILED, ["error"])

    run(main())


@pytest.mark.parametrize(("more", "ended"), [(0, Ended.DONE), (1, Ended.FAILED)])
def test_an_answer_is_passed_back_up_to_its_bound(more: int, ended: Ended) -> None:
    async def main() -> None:
        async with upstream(answer(b"200 OK", b"x" * (RESULT_BYTES + more))) as server:
            result = await posted(server, work())
        assert result.ended is ended
        assert ("error" in result.shown) == bool(more)

    run(main())


@pytest.mark.parametrize(
    ("auth", "api_key", "sent"),
    [
        ("", "", None),
        ("", "ours", b"Bearer ours"),
        ("theirs", "ours", b"Bearer theirs"),
        ("theirs\r\nx-admin: 1", "", None),
        ("zwei Wörter", "", None),
    ],
)
def test_who_is_asking_is_said_by_the_frame_or_else_for_all(auth: str, api_key: str, sent: bytes | None) -> None:
    async def main() -> None:
        async with upstream(answer(b"200 OK")) as server:
            await posted(server, work(auth=auth), api_key=api_key)
        assert server.header(b"authorization") == sent
        assert server.header(b"x-admin") is None

    run(main())


@pytest.mark.parametrize(
    ("declared", "sent"),
    [
        ("text/plain; charset=utf-8", b"text/plain; charset=utf-8"),
        ("", b"application/json"),
        ("text/plain\r\nx-admin: 1", b"application/json"),
        ("nonsense", b"application/json"),
    ],
)
def test_what_it_is_is_said_as_the_manifest_did_if_a_header_can(declared: str, sent: bytes) -> None:
    async def main() -> None:
        async with upstream(answer(b"200 OK")) as server:
            await posted(server, work(content_type=declared))
        assert server.header(b"content-type") == sent
        assert server.header(b"x-admin") is None

    run(main())


def test_how_long_there_is_goes_along_and_is_the_shorter_of_ours_and_the_clients() -> None:
    async def main() -> None:
        async with upstream(answer(b"200 OK")) as server:
            sent = []
            for left_s in (None, 60.0, 5.0):
                await posted(server, work(left_s=left_s))
                header = server.header(b"x-envoy-expected-rq-timeout-ms")
                assert header is not None
                sent.append(int(header))
        assert sent[:2] == [30_000, 30_000]
        assert 0 < sent[2] <= 5000

    run(main())
