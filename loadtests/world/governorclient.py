"""The governor's clients: its line protocol by callbacks, one job at a time per connection. Each job ends once.

`Peer` checks each reply against the request: job, number, time and the bytes received. Violations go to `Job.wrong`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from loadtests.judging.nonces import nonce, prompt
from loadtests.world.client import MAX_TOKENS
from loadtests.world.governorplan import JobAsk
from loadtests.world.machine import Asked, Machine, Wire
from services.governor.upload import MAX_PAYLOAD_BYTES

if TYPE_CHECKING:
    from loadtests.cluster.loop import SimLoop

FIRST_NONCE = 1_000_000_000
"""Keeps jobs' nonces apart from requests'."""
OF_CONNECTION = frozenset({"server_draining", "too_many_connections"})
"""Aborts that concern the connection, whatever job they name."""
NO_JOB = "J_?"
HINTS_MS = (50, 5000)


class Job(Asked):
    __slots__ = ("ask", "final", "frames", "name", "nonce", "payload", "received", "wrong", "yields")

    def __init__(self, number: int, ask: JobAsk, *, router: bool) -> None:
        super().__init__()
        self.ask = ask
        self.name = f"g{number}"
        self.nonce = nonce(FIRST_NONCE + number)
        question = {"prompt": prompt(self.nonce), "max_tokens": MAX_TOKENS, "stream": False}
        self.payload = json.dumps(question).encode() if router else self.nonce.encode() * (number % 7)
        self.frames = frames(self.payload, ask)
        self.final: dict[str, Any] = {}
        self.received = 0
        self.yields = 0
        self.wrong: list[str] = []

    def __repr__(self) -> str:
        return f"<Job {self.name} {self.ask.manner} {self.end or 'open'}>"


def frames(payload: bytes, ask: JobAsk) -> list[dict[str, Any]]:
    """The frames of a job in order."""
    size = max(1, -(-len(payload) // ask.chunks))
    pieces = [payload[at : at + size] for at in range(0, max(1, len(payload)), size)]
    greedy = ask.manner == "greedy"
    manifest = {
        "payload_id": "P_1", "content_type": "application/json", "content_encoding": "identity", "cipher": "none",
        "total_bytes": MAX_PAYLOAD_BYTES if greedy else len(payload),
        "chunk_bytes": MAX_PAYLOAD_BYTES if greedy else size,
        "chunks": len(pieces), "sha256": hashlib.sha256(payload).hexdigest(),
    }  # fmt: skip
    made: list[dict[str, Any]] = [{"verb": "ping"}] if ask.pings else []
    made.append({"verb": "share", "payload_manifest": manifest})
    for index, piece in enumerate(pieces):
        chunk = {
            "payload_id": "P_1", "index": index, "offset": index * size, "sha256": hashlib.sha256(piece).hexdigest(),
            "bytes_b64": base64.b64encode(piece).decode(),
        }  # fmt: skip
        made.append({"verb": "share", "payload_chunk": chunk})
    return made


class Peer(Wire):
    """One connection and its current job. The governor closes an idle connection after 60 s."""

    rests_s = 30.0

    def __init__(self, machine: GovernorClient) -> None:
        super().__init__(machine.loop)
        self._machine = machine
        self._job: Job | None = None
        self._names = {NO_JOB}
        self._buffer = b""
        self._seq = 0
        self._step = 0
        self._ttl_ms = 0
        self._waits: asyncio.TimerHandle | None = None
        self.refused: dict[str, Any] | None = None
        """The governor's reply when it rejects this connection."""

    def carry(self, job: Job) -> None:
        """Send a job. The connection must be idle."""
        assert self._job is None, "a connection carries one job at a time"
        self._job, self._step = job, 0
        self._names.add(job.name)
        self._send()

    def _send(self) -> None:
        job = self._job
        assert job is not None
        self._waits = None
        self._seq += 1
        remaining_s = job.sent_at + job.ask.client_timeout_s - self.loop.time()
        self._ttl_ms = max(1, int(remaining_s * 1000)) if job.ask.sends_ttl else 0
        frame = {
            "v": 0, "job": job.name, "seq": self._seq, "ttl_ms": self._ttl_ms, "auth": self._machine.auth,
            **job.frames[self._step],
        }  # fmt: skip
        line = msgspec.json.encode(frame) + b"\n"
        if job.ask.manner == "half" and self._step == len(job.frames) - 1:
            self.transport.write(line[: len(line) // 2])
            self.transport.write_eof()
        else:
            self.transport.write(line)

    def data_received(self, data: bytes) -> None:
        lines = (self._buffer + data).split(b"\n")
        self._buffer = lines.pop()
        for line in lines:
            self._reply(msgspec.json.decode(line))

    def connection_lost(self, exc: Exception | None) -> None:
        self._machine.forget(self)
        half = self._job is not None and self._job.ask.manner == "half" and exc is None
        self._end("half" if half else "reset" if exc is not None else "closed")

    def abort(self, end: str = "closed by us") -> None:
        """Disconnect. `end` is the end of the job under way, if there is one."""
        self._end(end)
        super().abort()

    def _reply(self, reply: dict[str, Any]) -> None:
        job, need = self._job, reply.get("need_code", "")
        if need in OF_CONNECTION and reply["status"] == "abort":
            if reply["job"] not in self._names:
                self._machine.garbage.append(repr(reply))
            self.refused = reply
            self._finish(reply)
            return
        if job is None or self._waits is not None:
            self._machine.garbage.append(repr(reply))
            return
        job.received += 1
        self._hold_against(job, reply)
        status = reply["status"]
        if status == "ok":
            if self._step + 1 < len(job.frames):
                self._step += 1
                if job.ask.manner != "greedy" or reply["verb"] == "confirm":
                    self._send()
        elif status == "yield":
            self._yielded(job, reply)
        elif status == "need" and job.ask.manner != "half":
            job.wrong.append(f"needs something else: {reply}")
            self._finish(reply)
        elif status != "need":
            self._finish(reply)

    def _yielded(self, job: Job, reply: dict[str, Any]) -> None:
        """Retry at the hinted time, unless that is too late."""
        job.yields += 1
        hint_ms = reply.get("retry_hint_ms", 0)
        if not HINTS_MS[0] <= hint_ms <= HINTS_MS[1]:
            job.wrong.append(f"has a hint of {hint_ms} ms")
        if self.loop.time() + hint_ms / 1000 >= job.sent_at + job.ask.client_timeout_s:
            self.abort("gave up")
        else:
            self._waits = self.loop.call_later(hint_ms / 1000, self._send)

    def _hold_against(self, job: Job, reply: dict[str, Any]) -> None:
        """Check that a reply belongs to its request."""
        receipts = {each["kind"]: each["value_u64"] for each in reply["receipts"]}
        ahead = reply["seq"] - self._seq
        late = reply["status"] in ("yield", "done") or reply.get("need_code") in ("backend_error", "deadline")
        if reply["job"] != job.name or reply["ttl_ms"] != self._ttl_ms or ahead not in ((1, 2) if late else (1,)):
            half = job.ask.manner == "half" and reply.get("need_code") in ("json_malformed", "peer_gone")
            if not half or reply["job"] not in self._names:
                job.wrong.append(f"was sent as {job.name} {self._seq} {self._ttl_ms}, and got {reply}")
        if receipts["backend.cap"] != self._machine.cap or not 0 <= receipts["backend.inflight"] <= self._machine.cap:
            job.wrong.append(f"got {receipts}, where {self._machine.cap} is the cap")
        if reply["status"] == "done" and receipts["cdr.bytes_in"] != len(job.payload):
            job.wrong.append(f"sent {len(job.payload)} bytes, and the receipt says {receipts['cdr.bytes_in']}")

    def _finish(self, reply: dict[str, Any]) -> None:
        """Take the final reply of a job."""
        job, need = self._job, reply.get("need_code", "")
        if job is not None:
            job.final = reply
            self._end(f"{reply['status']} {need}".strip())
        if need in ("", "backend_error", "deadline"):
            self._machine.rest(self)
        elif need != "peer_gone":
            self.transport.close()

    def _end(self, end: str) -> None:
        job, self._job = self._job, None
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None
        if job is not None:
            self._machine.ended(job, end)


class GovernorClient(Machine[Job, Peer]):
    def __init__(
        self, loop: SimLoop, governor: tuple[str, int], on_end: Callable[[Job], None], *, auth: str, cap: int
    ) -> None:
        super().__init__(loop, governor, on_end)
        self.auth = auth
        self.cap = cap
        self._carried: dict[Job, Peer] = {}

    def send(self, job: Job) -> None:
        """Send a job now. Call it in this machine's loop."""
        job.sent_at = self.loop.time()
        leaves = job.ask.manner in ("leaves", "greedy")
        after_s = job.ask.leaves_after_s if leaves else job.ask.reply_within_s
        job.timer = self.loop.call_later(after_s, self._leave, job, "left" if leaves else "not heard of")
        if (peer := self.idle()) is not None:
            self._carry(peer, job)
        else:
            self.start(self._connect(job))

    def _carry(self, peer: Peer, job: Job) -> None:
        self._carried[job] = peer
        peer.carry(job)

    async def _connect(self, job: Job) -> None:
        try:
            _, peer = await self.loop.create_connection(lambda: Peer(self), *self._server)
        except OSError as error:
            if job.ended_at is None:
                self.ended(job, f"connect {type(error).__name__}")
            return
        self._connections[peer] = None
        if job.ended_at is not None:
            self.rest(peer)
        elif peer.refused is not None:
            job.final = peer.refused
            self.ended(job, f"abort {peer.refused['need_code']}")
        elif not peer.open:
            self.ended(job, "closed")
        else:
            self._carry(peer, job)

    def ended(self, asked: Job, end: str) -> None:
        self._carried.pop(asked, None)
        super().ended(asked, end)

    def _leave(self, job: Job, end: str) -> None:
        job.timer = None
        peer = self._carried.get(job)
        if peer is None:
            self.ended(job, end)
        else:
            peer.abort(end)
