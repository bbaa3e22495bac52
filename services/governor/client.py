"""`python -m services.governor.client FILE`: send a payload to a governor, and retry when it yields.

    manifest -> ok, chunk -> ok, ..., last chunk -> done | abort | yield

After a yield the same frame is sent again when the hint has passed, within the deadline and the number of retries. The
original server cannot take its last chunk twice: if it asks for another index after a yield, the whole payload is sent
again.

Exit status of an upload: 0 done, 2 aborted, 1 anything else. Of `--ping`: 0 a slot is free, 2 none is, 1 no answer. The
backend's result goes to standard output, progress to standard error.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from services.governor.upload import MAX_PAYLOAD_BYTES
from services.runtime.clock import unix_milliseconds

Reply = dict[str, Any]
CSV_HEADER = "ts_unix_ms,verb,job,seq,status,need_code,retry_hint_ms,error"
PAYLOAD_ID = "P_1"
WITHOUT_HINT_S = 0.05
MAX_REPLY_BYTES = 16_777_216


class Exit(IntEnum):
    """Exit statuses, as those of the original's client."""

    DONE = 0
    FAILED = 1
    ABORTED = 2


class SendFailed(Exception):
    """The upload cannot succeed; the message says why."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Limits of an upload. `deadline_s` is sent to the governor as `ttl_ms`; None: no limit."""

    timeout_s: float = 20.0
    retries: int = 50
    longest_wait_s: float = 5.0
    deadline_s: float | None = None


class Client:
    """One connection with one job, opened by `connect`. `show` is called with every reply."""

    def __init__(
        self,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        *,
        job: str,
        effort: Effort,
        show: Callable[[Reply], None],
        auth: str = "",
    ) -> None:
        self._reader, self._writer = streams
        self._now = asyncio.get_running_loop().time
        self._effort = effort
        self._job = job
        self._show = show
        self._auth = {"auth": auth} if auth else {}
        self._seq = 0
        self._yields = 0
        self._give_up_at = None if effort.deadline_s is None else self._now() + effort.deadline_s

    def close(self) -> None:
        self._writer.close()

    async def ping(self) -> Exit:
        """DONE if a slot is free, ABORTED if none is, FAILED if the reply does not say."""
        reply = await self._ask(verb="ping")
        health = {receipt["kind"]: receipt["value_u64"] for receipt in reply.get("receipts", [])}.get("server.health")
        if reply["status"] != "ok" or health is None:
            return Exit.FAILED
        return Exit.DONE if health == 1 else Exit.ABORTED

    async def send(self, payload: bytes, *, chunk_bytes: int, content_type: str) -> Reply:
        """The last reply, with status `done` or `abort`. Raises SendFailed if there is neither."""
        while True:
            reply = await self._once(payload, chunk_bytes, content_type)
            if reply["status"] in ("done", "abort"):
                return reply
            if not (self._yields and reply.get("need_code") == "chunk_expected_index"):
                raise SendFailed(f"unexpected reply from the governor: {reply.get('need_code', reply['status'])}")

    async def _once(self, payload: bytes, chunk_bytes: int, content_type: str) -> Reply:
        reply: Reply = {}
        for fields in _frames(payload, chunk_bytes, content_type):
            reply = await self._obey(fields)
            if reply["status"] != "ok":
                return reply
        while reply["status"] == "ok":  # keepalive lines may precede the result
            reply = await self._receive()
        return reply

    async def _obey(self, fields: Reply) -> Reply:
        """Send a frame, and again after each yield."""
        while True:
            reply = await self._ask(verb="share", **fields)
            if reply["status"] != "yield":
                return reply
            self._yields += 1
            hint_s = reply.get("retry_hint_ms", 0) / 1000 or WITHOUT_HINT_S
            await self._wait(min(hint_s, self._effort.longest_wait_s))

    async def _wait(self, seconds: float) -> None:
        if self._yields > self._effort.retries:
            raise SendFailed(f"deferred {self._yields} times: --max-retries allows {self._effort.retries}")
        if self._give_up_at is not None and self._now() + seconds >= self._give_up_at:
            raise SendFailed("the deadline would pass before the next retry")
        await asyncio.sleep(seconds)

    async def _ask(self, **fields: Any) -> Reply:
        self._seq += 1
        left_ms = 0 if self._give_up_at is None else max(1, int((self._give_up_at - self._now()) * 1000))
        frame = {"v": 0, "job": self._job, "seq": self._seq, "ttl_ms": left_ms, **self._auth, **fields}
        self._writer.write(json.dumps(frame, separators=(",", ":")).encode() + b"\n")
        return await self._receive()

    async def _receive(self) -> Reply:
        """The next reply. Unknown verbs are skipped, so that later versions may add some."""
        while True:
            try:
                async with asyncio.timeout(self._effort.timeout_s):
                    line = await self._reader.readline()
            except TimeoutError:
                raise SendFailed(f"no reply within {self._effort.timeout_s:g} s") from None
            except (OSError, ValueError) as error:
                raise SendFailed(f"the connection was lost: {error}") from None
            if not line.endswith(b"\n"):
                raise SendFailed("the connection ended before a reply did")
            reply = _read(line)
            self._show(reply)
            if reply["verb"] in ("clarify", "confirm"):
                return reply


async def connect(
    address: tuple[str, int], *, job: str, effort: Effort, show: Callable[[Reply], None], auth: str = ""
) -> Client:
    """Open a connection to `address`. Raises SendFailed."""
    try:
        async with asyncio.timeout(effort.timeout_s):
            streams = await asyncio.open_connection(*address, limit=MAX_REPLY_BYTES)
    except (OSError, TimeoutError) as error:
        raise SendFailed(f"cannot connect to {address[0]}:{address[1]}: {error or 'no answer'}") from None
    return Client(streams, job=job, effort=effort, show=show, auth=auth)


def _read(line: bytes) -> Reply:
    try:
        reply = json.loads(line)
        if isinstance(reply, dict) and isinstance(reply["verb"], str) and isinstance(reply.get("status", ""), str):
            return {"status": "", **reply}
    except (ValueError, KeyError):
        pass
    raise SendFailed("this is not a governor: it sent an invalid reply")


def _frames(payload: bytes, chunk_bytes: int, content_type: str) -> Iterator[Reply]:
    count = max(1, -(-len(payload) // chunk_bytes))
    yield {
        "payload_manifest": {
            "payload_id": PAYLOAD_ID, "content_type": content_type, "content_encoding": "identity", "cipher": "none",
            "total_bytes": len(payload), "chunk_bytes": chunk_bytes, "chunks": count,
            "sha256": hashlib.sha256(payload).hexdigest(),
        }
    }  # fmt: skip
    for index in range(count):
        data = payload[index * chunk_bytes : (index + 1) * chunk_bytes]
        yield {
            "payload_chunk": {
                "payload_id": PAYLOAD_ID, "index": index, "offset": index * chunk_bytes,
                "sha256": hashlib.sha256(data).hexdigest(), "bytes_b64": base64.b64encode(data).decode("ascii"),
            }
        }  # fmt: skip


def address_of(text: str) -> tuple[str, int]:
    """Parse HOST:PORT. Raises typer.BadParameter."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise typer.BadParameter("is not HOST:PORT", param_hint="--addr")
    return host.strip("[]"), int(port)


def in_words(reply: Reply) -> str:
    """A reply as a line of text, in the format of the original's client."""
    return (
        f"recv v={reply.get('v', 0)} verb={reply['verb']} job={reply.get('job', '')} seq={reply.get('seq', 0)} "
        f"status={reply['status']} need={reply.get('need_code', '')} err={reply.get('error_code', '')}"
    )


def as_csv(reply: Reply, unix_ms: int) -> str:
    """A reply as a row under `CSV_HEADER`."""
    keys = ("verb", "job", "seq", "status", "need_code", "retry_hint_ms", "error_code")
    return ",".join([str(unix_ms), *(str(reply.get(key, "")).replace(",", " ") for key in keys)])


def result_of(reply: Reply) -> bytes | None:
    """The backend's result; None without one."""
    body = (reply.get("result") or {}).get("body_b64")
    return base64.b64decode(body) if isinstance(body, str) else None


def command(
    file: Annotated[Path | None, typer.Argument(help="The payload; none with --ping.")] = None,
    addr: Annotated[str, typer.Option(help="Address of the governor.")] = "127.0.0.1:7777",
    ping: Annotated[bool, typer.Option("--ping", help="Only check whether a slot is free.")] = False,
    chunk: Annotated[int, typer.Option(min=1, max=190_000, help="Bytes in a chunk.")] = 8192,
    content_type: Annotated[str, typer.Option(help="The payload's content type.")] = "application/json",
    timeout_s: Annotated[float, typer.Option(min=0.001, help="Seconds to wait for a reply.")] = 20.0,
    deadline_s: Annotated[float, typer.Option(min=0, help="Seconds for the whole upload and job; 0: no limit.")] = 0.0,
    max_retries: Annotated[int, typer.Option(min=0, help="How often to retry after a yield.")] = 50,
    auth: Annotated[str, typer.Option(envvar="GOVERNOR_AUTH", help="Token, if the governor requires one.")] = "",
    csv: Annotated[bool, typer.Option("--csv", help="Print replies as CSV rows on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the result.")] = False,
) -> None:
    """Send a payload to a governor, and retry when it yields."""
    if ping == (file is not None):
        raise typer.BadParameter("give a file to send, or --ping")
    payload = b"" if file is None else _payload(file)

    def show(reply: Reply) -> None:
        if csv:
            typer.echo(as_csv(reply, unix_milliseconds()))
        elif not quiet:
            typer.echo(in_words(reply), err=True)

    if csv:
        typer.echo(CSV_HEADER)
    effort = Effort(timeout_s=timeout_s, retries=max_retries, deadline_s=deadline_s or None)

    async def talk() -> int:
        job = "J_ping" if file is None else "J_" + file.name.replace(" ", "_")
        client = await connect(address_of(addr), job=job, effort=effort, show=show, auth=auth)
        try:
            if file is None:
                return await client.ping()
            reply = await client.send(payload, chunk_bytes=chunk, content_type=content_type)
        finally:
            client.close()
        _show(result_of(reply) if not csv else None)
        return Exit.DONE if reply["status"] == "done" else Exit.ABORTED

    try:
        status = asyncio.run(talk())
    except SendFailed as error:
        typer.echo(f"governor: {error}", err=True)
        status = Exit.FAILED
    raise typer.Exit(status)


def _show(body: bytes | None) -> None:
    if body is not None:
        sys.stdout.buffer.write(body)
        sys.stdout.buffer.flush()


def _payload(file: Path) -> bytes:
    try:
        payload = file.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}") from None
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise typer.BadParameter(f"{file}: has {len(payload):,} bytes; a payload has {MAX_PAYLOAD_BYTES:,} at most")
    return payload


if __name__ == "__main__":
    typer.run(command)
