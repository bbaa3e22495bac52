"""One connection with the governor, without a socket: bytes in, replies and actions out.

    client                                   governor
    share manifest  ------------------------>  clarify ok      its size is reserved
    share chunk     ------------------------>  clarify ok      checked before it is kept
    share chunk (the last)  ---------------->  confirm done    a slot was free: the job ran
                                           or  clarify yield   none was: send this chunk again later

Each line gets one reply, in order; while a job runs, further lines wait. Differences from the original (heptamini v1)
are listed in docs/architecture/governor.md. Everything that a connection keeps is reserved in the gate
(`ConnectionMemory`); without room the client gets a reply, and nothing is kept.

Each call that can change anything returns `Actions` for the socket side. `now` is in seconds of any monotonic clock.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from services.governor import reply
from services.governor.frame import (
    MAX_AUTH_BYTES,
    MAX_NAME_BYTES,
    NO_JOB_NAME,
    Chunk,
    FrameEnvelope,
    Manifest,
    NotAFrame,
    ProtocolFrame,
    read,
    size,
)
from services.governor.gate import ConnectionMemory, Gate, Use
from services.governor.job import Ended, Result, Work
from services.governor.reply import ReplyTemplate
from services.governor.upload import Upload, declared_bytes

READ_AHEAD_BYTES = 65_536  # of lines that wait, beyond one whole line
MAX_OUT_BYTES = 65_536  # of replies in one step, plus one reply: a line of 2 bytes gets a reply of 400
OVERHEAD_BYTES = 7 * MAX_NAME_BYTES + MAX_AUTH_BYTES  # held besides a line and a payload: the names of one job


@dataclass(slots=True)
class Actions:
    """What to do: write `out`, run `work`, then `close`. `more`: call `go_on` once `out` is written."""

    out: bytearray = field(default_factory=bytearray)
    work: Work | None = None
    close: bool = False
    more: bool = False


@dataclass(slots=True)
class _Job:
    name: str
    upload: Upload | None = None
    deadline: float | None = None
    deferred: bool = False  # it got a retry hint and was not retried yet


class GovernorSession:
    """The governor's side of one connection."""

    def __init__(self, gate: Gate, now: float) -> None:
        self._gate = gate
        self._bounds = gate.bounds
        self._buffer = bytearray()
        self._searched = 0
        self._memory = ConnectionMemory(gate)
        self._jobs: dict[str, _Job] = {}
        self._last = FrameEnvelope(NO_JOB_NAME, 0, 0)
        self._running: FrameEnvelope | None = None
        self._waits_since = now
        self._settled = False
        self._half_closed = False
        self._stopped = False
        self._over = False

    @property
    def running(self) -> bool:
        """A job runs, so further lines wait."""
        return self._running is not None

    @property
    def full(self) -> bool:
        """True: do not read the socket."""
        return len(self._buffer) > self._bounds.line_bytes + READ_AHEAD_BYTES

    @property
    def idle_at(self) -> float:
        """The time by which the next whole line must have arrived."""
        return self._waits_since + self._bounds.idle_s

    def receive(self, data: bytes, now: float) -> Actions:
        if not self._over:
            self._buffer += data
        return self._proceed(now)

    def ended(self, result: Result, now: float) -> Actions:
        """The running job ended, and its slot is released. Raises RuntimeError if no job ran."""
        actions = Actions()
        frame, self._running = self._running, None
        if frame is None:
            raise RuntimeError("a job ended that was not running")
        self._memory.release(Use.TOKEN)
        if self._over:
            return actions
        self._show(actions, frame, result)
        self._waits_since = now
        if self._gate.draining:
            self._close(actions, reply.DRAINING)
        else:
            self._read_on(actions, now)
        return actions

    def _show(self, actions: Actions, frame: FrameEnvelope, result: Result) -> None:
        bytes_in = self._bytes_in(frame.job)
        if result.ended is Ended.REFUSED:
            job = self._jobs[frame.job]
            self._yield(actions, reply.YIELDED, frame, job, bytes_in=bytes_in, min_s=result.retry_s)
            return
        self._drop(frame.job)
        backend_ms = None if result.ended is Ended.LATE else int(result.seconds * 1000)
        self._reply(
            actions, _ENDINGS[result.ended], frame, bytes_in=bytes_in, backend_ms=backend_ms, shown=result.shown
        )

    def half_closed(self, now: float) -> Actions:
        """The client sends nothing more, or has left: only a write can show which. A running job continues."""
        self._half_closed = True
        return self._proceed(now)

    def stop(self, unread_bytes: int) -> bool:
        """The client does not read: its lines wait, and `unread_bytes` are reserved. False: no room for them."""
        self._stopped = True
        return self._memory.resize(Use.REPLIES, unread_bytes)

    def go_on(self, now: float) -> Actions:
        """The client reads again."""
        self._stopped = False
        self._memory.release(Use.REPLIES)
        return self._proceed(now)

    def _proceed(self, now: float) -> Actions:
        actions = Actions()
        if not self._over:
            self._read_on(actions, now)
        return actions

    def keepalive(self) -> bytes:
        """A keepalive line; empty without a running job. A client skips it, or answers with a reset if it has left."""
        actions = Actions()
        if self._running is not None and not self._over:
            self._reply(actions, reply.OK, self._running, bytes_in=self._bytes_in(self._running.job))
        return bytes(actions.out)

    def idled(self, now: float) -> Actions:
        """Close if no whole line arrived within the idle timeout."""
        return self._closed(reply.IDLE_TOO_LONG) if self._waits and now >= self.idle_at else Actions()

    def drain(self) -> Actions:
        """Close, unless a job runs."""
        return self._closed(reply.DRAINING) if self._waits else Actions()

    def refuse(self) -> Actions:
        """Reject the connection: there are too many."""
        return self._closed(reply.TOO_MANY_PEERS)

    @property
    def _waits(self) -> bool:
        return self._running is None and not self._over

    def _closed(self, template: ReplyTemplate) -> Actions:
        actions = Actions()
        self._close(actions, template)
        return actions

    def lost(self) -> None:
        """The connection is closed: release its memory. The task of a running job releases its slot."""
        self._over = True
        self._buffer.clear()
        for job in list(self._jobs):
            self._drop(job)
        self._last = FrameEnvelope(NO_JOB_NAME, 0, 0)
        self._memory.release_all()

    def _read_on(self, actions: Actions, now: float) -> None:
        while self._waits and not self._stopped:
            if len(actions.out) >= MAX_OUT_BYTES:
                actions.more = True
                break
            end = self._buffer.find(b"\n", self._searched)
            if end < 0:
                self._no_whole_line(actions, now)
                break
            length = end - 1 if end and self._buffer[end - 1] == 0x0D else end
            if length > self._bounds.line_bytes:
                self._close(actions, reply.LINE_TOO_LONG)
                break
            line = bytes(self._buffer[:length])
            del self._buffer[: end + 1]
            self._searched = 0
            self._waits_since = now
            self._line(actions, line, now)
        if not self._memory.resize(Use.LINES, len(self._buffer)):
            self._close(actions, reply.TOO_MANY_BYTES)

    def _no_whole_line(self, actions: Actions, now: float) -> None:
        buffer, max_bytes = self._buffer, self._bounds.line_bytes
        self._searched = len(buffer)
        if len(buffer) > max_bytes and not (len(buffer) == max_bytes + 1 and buffer.endswith(b"\r")):
            self._close(actions, reply.LINE_TOO_LONG)
        elif self._half_closed:
            line = bytes(buffer)
            buffer.clear()
            self._searched = 0
            self._line(actions, line, now)
            if self._waits:
                self._close(actions, None if self._settled else reply.PEER_HUNG_UP)

    def _line(self, actions: Actions, line: bytes, now: float) -> None:
        try:
            frame = read(line)
        except NotAFrame as error:
            self._reply(actions, reply.not_a_frame(str(error)), self._last)
            return
        if frame is None:
            return
        if not frame.sound:
            self._reply(actions, reply.ENVELOPE_BAD, frame if size(frame.job) <= MAX_NAME_BYTES else frame.unnamed)
            return
        self._remember(frame)
        if frame.verb == "ping":
            self._reply(actions, reply.OK_PING, frame)
        elif not self._known(frame):
            self._reply(actions, reply.UNAUTHORIZED, frame)
        else:
            self._of_a_job(actions, frame, now)

    def _known(self, frame: ProtocolFrame) -> bool:
        tokens, value = self._gate.tokens, frame.auth.encode()
        return not tokens or any(hmac.compare_digest(token.encode(), value) for token in tokens)

    def _remember(self, frame: ProtocolFrame) -> None:
        """Keep the envelope for replies to lines without one; without room for the name, drop the name."""
        held = self._memory.resize(Use.NAME, size(frame.job))
        if not held:
            self._memory.release(Use.NAME)
        self._last = FrameEnvelope(frame.job if held else NO_JOB_NAME, frame.seq, frame.ttl_ms)

    def _of_a_job(self, actions: Actions, frame: ProtocolFrame, now: float) -> None:
        job = self._jobs.get(frame.job) or self._new_job(actions, frame)
        if job is None:
            return
        self._resume(job)
        if frame.payload_manifest is not None:
            self._manifest(actions, frame, job, frame.payload_manifest, now)
        elif frame.payload_chunk is not None:
            self._chunk(actions, frame, job, frame.payload_chunk, now)
        else:
            self._reply(actions, reply.NO_PAYLOAD, frame, bytes_in=self._bytes_in(frame.job))

    def _new_job(self, actions: Actions, frame: ProtocolFrame) -> _Job | None:
        if len(self._jobs) >= self._bounds.jobs:
            self._close(actions, reply.TOO_MANY_JOBS, frame)
            return None
        if not self._memory.resize((Use.JOB, frame.job), size(frame.job)):
            if frame.payload_manifest is None:
                self._close(actions, reply.TOO_MANY_BYTES, frame)
            else:
                self._reply(actions, reply.EARLY_YIELD, frame, hint_ms=self._gate.hint_ms())
            return None
        job = self._jobs[frame.job] = _Job(frame.job)
        return job

    def _manifest(self, actions: Actions, frame: ProtocolFrame, job: _Job, manifest: Manifest, now: float) -> None:
        max_bytes = declared_bytes(manifest)
        if max_bytes is None:
            self._reply(actions, reply.MANIFEST_BAD, frame)
            return
        self._forget(job)
        job.deadline = _deadline(frame, now)
        upload = Upload(manifest, max_bytes)
        if self._gate.saturated or not self._memory.resize((Use.UPLOAD, job.name), upload.held_bytes):
            self._yield(actions, reply.EARLY_YIELD, frame, job)
            return
        job.upload = upload
        self._reply(actions, reply.OK, frame)

    def _chunk(self, actions: Actions, frame: ProtocolFrame, job: _Job, chunk: Chunk, now: float) -> None:
        if job.upload is None:
            self._reply(actions, reply.chunk_refused("manifest_missing"), frame)
            return
        job.deadline = _sooner(job.deadline, _deadline(frame, now))
        if job.deadline is not None and now >= job.deadline:
            self._drop(frame.job)
            self._reply(actions, reply.TOO_LATE, frame)
            return
        wrong = job.upload.take(chunk)
        if wrong is not None:
            self._reply(actions, reply.chunk_refused(wrong.need), frame, bytes_in=job.upload.bytes_in)
            if wrong.over:
                self._forget(job)
        elif job.upload.whole:
            self._run(actions, frame, job, job.upload)
        else:
            self._reply(actions, reply.OK, frame, bytes_in=job.upload.bytes_in)

    def _run(self, actions: Actions, frame: ProtocolFrame, job: _Job, upload: Upload) -> None:
        slot = self._gate.try_acquire() if self._memory.resize(Use.TOKEN, size(frame.auth)) else None
        if slot is None:
            self._memory.release(Use.TOKEN)
            self._yield(actions, reply.YIELDED, frame, job, bytes_in=upload.bytes_in)
            return
        assert self._running is None, f"{job.name!r} would run beside {self._running!r}"
        self._running = FrameEnvelope(job.name, frame.seq, frame.ttl_ms)
        actions.work = Work(job.name, upload.payload, upload.content_type, job.deadline, slot, frame.auth)

    def _yield(
        self,
        actions: Actions,
        template: ReplyTemplate,
        frame: ProtocolFrame | FrameEnvelope,
        job: _Job,
        *,
        bytes_in: int = 0,
        min_s: float = 0.0,
    ) -> None:
        job.deferred = True
        self._gate.waiting += 1
        self._reply(actions, template, frame, bytes_in=bytes_in, hint_ms=self._gate.hint_ms(min_s))

    def _resume(self, job: _Job) -> None:
        if job.deferred:
            job.deferred = False
            self._gate.waiting -= 1
            assert self._gate.waiting >= 0, f"a job was resumed twice: {self._gate!r}"

    def _drop(self, name: str) -> None:
        job = self._jobs.pop(name, None)
        if job is not None:
            self._resume(job)
            self._forget(job)
            self._memory.release((Use.JOB, name))

    def _forget(self, job: _Job) -> None:
        if job.upload is not None:
            self._memory.release((Use.UPLOAD, job.name))
            job.upload = None

    def _bytes_in(self, name: str) -> int:
        upload = self._jobs[name].upload if name in self._jobs else None
        return 0 if upload is None else upload.bytes_in

    def _reply(
        self,
        actions: Actions,
        template: ReplyTemplate,
        frame: ProtocolFrame | FrameEnvelope,
        *,
        bytes_in: int = 0,
        hint_ms: int = 0,
        backend_ms: int | None = None,
        shown: Mapping[str, object] | None = None,
    ) -> None:
        self._settled = self._settled or template.status in ("yield", "done", "abort")
        actions.out += reply.line(
            template, self._gate.status, job=frame.job or NO_JOB_NAME, seq=frame.seq, ttl_ms=frame.ttl_ms,
            bytes_in=bytes_in, hint_ms=hint_ms, backend_ms=backend_ms, result=(shown or {}).items(),
        )  # fmt: skip

    def _close(self, actions: Actions, template: ReplyTemplate | None, frame: ProtocolFrame | None = None) -> None:
        if template is not None:
            self._reply(actions, template, frame or self._last)
        actions.close = True
        self._over = True
        self._buffer.clear()
        self._searched = 0
        self._memory.release(Use.LINES)


def _deadline(frame: ProtocolFrame, now: float) -> float | None:
    """`ttl_ms` counts from the arrival of the frame; 0 sets no deadline."""
    return now + frame.ttl_ms / 1000 if frame.ttl_ms else None


def _sooner(one: float | None, other: float | None) -> float | None:
    return min(one, other) if one is not None and other is not None else one if other is None else other


_ENDINGS = {
    Ended.DONE: reply.FINISHED,
    Ended.FAILED: reply.BACKEND_FAILED,
    Ended.CANCELLED: reply.BACKEND_FAILED,
    Ended.LATE: reply.RAN_LATE,
}
