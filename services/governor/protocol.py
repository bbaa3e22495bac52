"""One connection with the governor, without a socket: bytes in, replies and actions out.

    client                                   governor
    share manifest  ------------------------>  clarify ok      what will come, and how much of it
    share chunk     ------------------------>  clarify ok      checked before it is kept
    share chunk (the last)  ---------------->  confirm done    a slot was free: it ran
                                           or  clarify yield   none was: keep it, send this chunk again later

Strictly one reply for one line, in order: while a job runs, lines that have come already wait. The original (heptamini
v1) is spoken exactly, but for what follows. The last chunk sent again after a yield is a new attempt, where there it
was an error for ever; a manifest is told to come back at once when there is no slot or no memory, before its payload is
sent; `ttl_ms` is a deadline; a payload that turns out wrong has to begin again; a line that the idle limit has cut is
no line; a name longer than `frame.MOST_NAME_BYTES` spoils its envelope, because names are kept.

All that a connection keeps is held in the gate: what is unread of its lines, the names of its jobs and what their
manifests say, payloads as large as they were declared, the token of the job that runs, the name in the last frame, and
the replies that its client has not read. Where the gate has no room, the client is told so, and nothing is kept.

Each call that may change anything returns a `Turn` for the shell to carry out. The protocol keeps no clock: `now` is
in seconds of any clock that does not go back.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from services.governor import reply
from services.governor.frame import MOST_AUTH_BYTES, MOST_NAME_BYTES, Chunk, Frame, Manifest, NotAFrame, read, size
from services.governor.gate import Gate, Place
from services.governor.reply import Say
from services.governor.upload import Upload, declared_bytes

READ_AHEAD_BYTES = 65_536  # of lines that wait for a job to end, beyond one whole line
MOST_OUT_BYTES = 65_536  # of replies in one turn, and one reply more: a line of two bytes is answered by 400
OTHERS_BYTES = 7 * MOST_NAME_BYTES + MOST_AUTH_BYTES  # held beside a line and a payload: the names of one job
NOBODY = "J_?"


class Ended(Enum):
    """How a job that ran has ended."""

    DONE = "done"
    FAILED = "failed"
    LATE = "late"
    CANCELLED = "cancelled"
    REFUSED = "refused"  # by a backend that is full itself: come back


@dataclass(frozen=True, slots=True)
class Result:
    """What a backend made of a payload; `shown` goes to the client, and so does when a full one wants it back."""

    ended: Ended
    seconds: float = 0.0
    retry_s: float = 0.0
    shown: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Work:
    """A whole payload to be run by `deadline` (None: no limit of the client's), in the place that it holds."""

    job: str
    payload: bytes
    content_type: str
    deadline: float | None
    place: Place
    auth: str = ""


@dataclass(slots=True)
class Turn:
    """What to do now: write this, run that, then perhaps close. `more`: once it is written, `go_on`."""

    out: bytearray = field(default_factory=bytearray)
    work: Work | None = None
    close: bool = False
    more: bool = False


class Said(NamedTuple):
    """What a reply repeats of its frame: all that is kept of one."""

    job: str
    seq: int
    ttl_ms: int


@dataclass(slots=True)
class _Job:
    """A job of this connection: its payload as far as it has come, and the time it has."""

    name: str
    upload: Upload | None = None
    deadline: float | None = None
    told: bool = False  # it was told to come back, and is not back


class Conversation:
    """The governor's side of one connection."""

    def __init__(self, gate: Gate, now: float) -> None:
        self._gate = gate
        self._bounds = gate.bounds
        self._buffer = bytearray()
        self._searched = 0
        self._held = 0  # bytes that this connection has in the gate: of these
        self._held_lines = 0  # are so many the buffer's,
        self._held_replies = 0  # so many the replies' that are not read,
        self._held_token = 0  # and so many the token's that the running job goes with
        self._jobs: dict[str, _Job] = {}
        self._last = Said(NOBODY, 0, 0)
        self._running: Said | None = None
        self._waits_since = now
        self._settled = False
        self._half_closed = False
        self._stopped = False
        self._over = False

    @property
    def running(self) -> bool:
        """A job of this connection runs: whatever comes has to wait."""
        return self._running is not None

    @property
    def full(self) -> bool:
        """So much waits already that nothing more should be read."""
        return len(self._buffer) > self._bounds.line_bytes + READ_AHEAD_BYTES

    @property
    def idle_at(self) -> float:
        """When a whole line must have come."""
        return self._waits_since + self._bounds.idle_s

    def receive(self, data: bytes, now: float) -> Turn:
        """What the peer has sent."""
        turn = Turn()
        if not self._over:
            self._buffer += data
            self._read_on(turn, now)
        return turn

    def ended(self, result: Result, now: float) -> Turn:
        """The job that ran has ended, and its place was given back."""
        turn = Turn()
        frame, self._running = self._running, None
        if frame is None:
            raise RuntimeError("a job ended that was not running")
        self._account_token(0)
        if self._over:
            return turn
        self._tell(turn, frame, result)
        self._waits_since = now
        if self._gate.draining:
            self._close(turn, reply.DRAINING)
        else:
            self._read_on(turn, now)
        return turn

    def _tell(self, turn: Turn, frame: Said, result: Result) -> None:
        bytes_in = self._bytes_in(frame.job)
        if result.ended is Ended.REFUSED:
            job = self._jobs[frame.job]
            self._yield(turn, reply.YIELDED, frame, job, bytes_in=bytes_in, at_least_s=result.retry_s)
            return
        self._drop(frame.job)
        backend_ms = None if result.ended is Ended.LATE else int(result.seconds * 1000)
        self._say(turn, _ENDINGS[result.ended], frame, bytes_in=bytes_in, backend_ms=backend_ms, shown=result.shown)

    def half_closed(self, now: float) -> Turn:
        """The peer sends nothing more, or has gone: a write will tell. What runs goes on."""
        turn = Turn()
        self._half_closed = True
        if not self._over:
            self._read_on(turn, now)
        return turn

    def stop(self, unread_bytes: int) -> bool:
        """The peer does not read: what else it has sent waits, and its replies are held. False: no room for them."""
        self._stopped = True
        return self._account_replies(unread_bytes)

    def go_on(self, now: float) -> Turn:
        """It reads again."""
        turn = Turn()
        self._stopped = False
        self._account_replies(0)
        if not self._over:
            self._read_on(turn, now)
        return turn

    def still_running(self) -> bytes:
        """A word that the job is not forgotten. A client reads over it; where one has gone, it brings a reset."""
        turn = Turn()
        if self._running is not None and not self._over:
            self._say(turn, reply.OK, self._running, bytes_in=self._bytes_in(self._running.job))
        return bytes(turn.out)

    def idled(self, now: float) -> Turn:
        """Close if no whole line has come for too long."""
        turn = Turn()
        if self._running is None and not self._over and now >= self.idle_at:
            self._close(turn, reply.IDLE_TOO_LONG)
        return turn

    def drain(self) -> Turn:
        """The governor is leaving: what runs may end."""
        turn = Turn()
        if self._running is None and not self._over:
            self._close(turn, reply.DRAINING)
        return turn

    def refuse(self) -> Turn:
        """One connection too many."""
        turn = Turn()
        self._close(turn, reply.TOO_MANY_PEERS)
        return turn

    def lost(self) -> None:
        """The connection is no more: let go of all it held. Its running job's place is given back by who runs it."""
        self._over = True
        self._buffer.clear()
        for job in list(self._jobs):
            self._drop(job)
        known = self._held_lines + self._held_replies + self._held_token + self._held_name
        held, self._last = self._held, Said(NOBODY, 0, 0)
        self._held_lines = self._held_replies = self._held_token = 0
        self._let_go(held)
        assert held == known, f"{held} bytes were held, of which {known} are known: {self._gate!r}"

    def _read_on(self, turn: Turn, now: float) -> None:
        while self._running is None and not self._over and not self._stopped:
            if len(turn.out) >= MOST_OUT_BYTES:
                turn.more = True
                break
            end = self._buffer.find(b"\n", self._searched)
            if end < 0:
                self._no_whole_line(turn, now)
                break
            length = end - 1 if end and self._buffer[end - 1] == 0x0D else end
            if length > self._bounds.line_bytes:
                self._close(turn, reply.LINE_TOO_LONG)
                break
            line = bytes(self._buffer[:length])
            del self._buffer[: end + 1]
            self._searched = 0
            self._waits_since = now
            self._line(turn, line, now)
        if not self._account_lines():
            self._close(turn, reply.TOO_MANY_BYTES)

    def _no_whole_line(self, turn: Turn, now: float) -> None:
        buffer, most = self._buffer, self._bounds.line_bytes
        self._searched = len(buffer)
        if len(buffer) > most and not (len(buffer) == most + 1 and buffer.endswith(b"\r")):
            self._close(turn, reply.LINE_TOO_LONG)
        elif self._half_closed:
            line = bytes(buffer)
            buffer.clear()
            self._searched = 0
            self._line(turn, line, now)
            if self._running is None and not self._over:
                self._close(turn, None if self._settled else reply.HAS_GONE)

    def _account_lines(self) -> bool:
        """Half a line is held memory, too."""
        held = self._rehold(self._held_lines, len(self._buffer))
        if held:
            self._held_lines = len(self._buffer)
        return held

    def _account_replies(self, unread_bytes: int) -> bool:
        held = self._rehold(self._held_replies, unread_bytes)
        if held:
            self._held_replies = unread_bytes
        return held

    def _account_token(self, token_bytes: int) -> bool:
        held = self._rehold(self._held_token, token_bytes)
        if held:
            self._held_token = token_bytes
        return held

    def _rehold(self, before: int, after: int) -> bool:
        """Hold `after` bytes in the place of `before`; False, and nothing has changed, where there is no room."""
        if after > before:
            return self._hold(after - before)
        self._let_go(before - after)
        return True

    def _hold(self, more: int) -> bool:
        if not self._gate.hold(more, self._held):
            return False
        self._held += more
        return True

    def _let_go(self, fewer: int) -> None:
        self._held -= fewer
        self._gate.let_go(fewer)
        assert 0 <= self._held <= self._gate.held_bytes, f"{self._held} bytes are held here, in {self._gate!r}"

    def _line(self, turn: Turn, line: bytes, now: float) -> None:
        try:
            frame = read(line)
        except NotAFrame as error:
            self._say(turn, reply.not_a_frame(str(error)), self._last)
            return
        if frame is None:
            return
        if not frame.sound:
            self._say(turn, reply.ENVELOPE_BAD, frame if size(frame.job) <= MOST_NAME_BYTES else _unnamed(frame))
            return
        self._remember(frame)
        if frame.verb == "ping":
            self._say(turn, reply.OK_PING, frame)
        elif not self._known(frame):
            self._say(turn, reply.NOT_KNOWN, frame)
        else:
            self._of_a_job(turn, frame, now)

    @property
    def _held_name(self) -> int:
        """Bytes of the name in the last frame."""
        return 0 if self._last.job is NOBODY else size(self._last.job)

    def _known(self, frame: Frame) -> bool:
        tokens, given = self._gate.tokens, frame.auth.encode()
        return not tokens or any(hmac.compare_digest(token.encode(), given) for token in tokens)

    def _remember(self, frame: Frame) -> None:
        """For the replies to lines that have no envelope. Its name is dropped where there is no room for it."""
        before = self._held_name
        held = self._rehold(before, size(frame.job))
        if not held:
            self._let_go(before)
        self._last = Said(frame.job if held else NOBODY, frame.seq, frame.ttl_ms)

    def _of_a_job(self, turn: Turn, frame: Frame, now: float) -> None:
        job = self._jobs.get(frame.job) or self._begun(turn, frame)
        if job is None:
            return
        self._back(job)
        if frame.payload_manifest is not None:
            self._manifest(turn, frame, job, frame.payload_manifest, now)
        elif frame.payload_chunk is not None:
            self._chunk(turn, frame, job, frame.payload_chunk, now)
        else:
            self._say(turn, reply.NO_PAYLOAD, frame, bytes_in=self._bytes_in(frame.job))

    def _begun(self, turn: Turn, frame: Frame) -> _Job | None:
        """A new job; or None, and the client has been told that there is no room for one."""
        if len(self._jobs) >= self._bounds.jobs:
            self._close(turn, reply.TOO_MANY_JOBS, frame)
            return None
        if not self._hold(size(frame.job)):
            if frame.payload_manifest is None:
                self._close(turn, reply.TOO_MANY_BYTES, frame)
            else:
                self._say(turn, reply.EARLY_YIELD, frame, hint_ms=self._gate.hint_ms())
            return None
        job = self._jobs[frame.job] = _Job(frame.job)
        return job

    def _manifest(self, turn: Turn, frame: Frame, job: _Job, manifest: Manifest, now: float) -> None:
        most = declared_bytes(manifest)
        if most is None:
            self._say(turn, reply.MANIFEST_BAD, frame)
            return
        self._forget(job)
        job.deadline = _deadline(frame, now)
        upload = Upload(manifest, most)
        if self._gate.saturated or not self._hold(upload.held_bytes):
            self._yield(turn, reply.EARLY_YIELD, frame, job)
            return
        job.upload = upload
        self._say(turn, reply.OK, frame)

    def _chunk(self, turn: Turn, frame: Frame, job: _Job, chunk: Chunk, now: float) -> None:
        if job.upload is None:
            self._say(turn, reply.chunk_refused("manifest_missing"), frame)
            return
        job.deadline = _sooner(job.deadline, _deadline(frame, now))
        if job.deadline is not None and now >= job.deadline:
            self._drop(frame.job)
            self._say(turn, reply.TOO_LATE, frame)
            return
        wrong = job.upload.take(chunk)
        if wrong is not None:
            self._say(turn, reply.chunk_refused(wrong.need), frame, bytes_in=job.upload.bytes_in)
            if wrong.over:
                self._forget(job)
        elif job.upload.whole:
            self._run(turn, frame, job, job.upload)
        else:
            self._say(turn, reply.OK, frame, bytes_in=job.upload.bytes_in)

    def _run(self, turn: Turn, frame: Frame, job: _Job, upload: Upload) -> None:
        """Admission: a slot now, or come back."""
        place = self._gate.try_take() if self._account_token(size(frame.auth)) else None
        if place is None:
            self._account_token(0)
            self._yield(turn, reply.YIELDED, frame, job, bytes_in=upload.bytes_in)
            return
        assert self._running is None, f"{job.name!r} would run beside {self._running!r}"
        self._running = Said(job.name, frame.seq, frame.ttl_ms)
        turn.work = Work(job.name, upload.payload, upload.content_type, job.deadline, place, frame.auth)

    def _yield(
        self, turn: Turn, say: Say, frame: Frame | Said, job: _Job, *, bytes_in: int = 0, at_least_s: float = 0.0
    ) -> None:
        job.told = True
        self._gate.waiting += 1
        self._say(turn, say, frame, bytes_in=bytes_in, hint_ms=self._gate.hint_ms(at_least_s))

    def _back(self, job: _Job) -> None:
        if job.told:
            job.told = False
            self._gate.waiting -= 1
            assert self._gate.waiting >= 0, f"it came back twice: {self._gate!r}"

    def _drop(self, name: str) -> None:
        """The job's name is free again."""
        job = self._jobs.pop(name, None)
        if job is not None:
            self._back(job)
            self._forget(job)
            self._let_go(size(name))

    def _forget(self, job: _Job) -> None:
        """Its payload, as far as it had come."""
        if job.upload is not None:
            self._let_go(job.upload.held_bytes)
            job.upload = None

    def _bytes_in(self, name: str) -> int:
        job = self._jobs.get(name)
        return job.upload.bytes_in if job is not None and job.upload is not None else 0

    def _say(
        self,
        turn: Turn,
        say: Say,
        frame: Frame | Said,
        *,
        bytes_in: int = 0,
        hint_ms: int = 0,
        backend_ms: int | None = None,
        shown: Mapping[str, object] | None = None,
    ) -> None:
        self._settled = self._settled or say.status in ("yield", "done", "abort")
        turn.out += reply.line(
            say, self._gate.standing, job=frame.job or NOBODY, seq=frame.seq, ttl_ms=frame.ttl_ms,
            bytes_in=bytes_in, hint_ms=hint_ms, backend_ms=backend_ms, result=(shown or {}).items(),
        )  # fmt: skip

    def _close(self, turn: Turn, say: Say | None, frame: Frame | None = None) -> None:
        if say is not None:
            self._say(turn, say, frame or self._last)
        turn.close = True
        self._over = True
        self._buffer.clear()
        self._searched = 0
        self._account_lines()


def _unnamed(frame: Frame) -> Said:
    """A name that is too long is not repeated."""
    return Said(NOBODY, frame.seq, frame.ttl_ms)


def _deadline(frame: Frame, now: float) -> float | None:
    """`ttl_ms` counts from when the frame came; 0 says nothing."""
    return now + frame.ttl_ms / 1000 if frame.ttl_ms else None


def _sooner(one: float | None, other: float | None) -> float | None:
    return min(one, other) if one is not None and other is not None else one if other is None else other


_ENDINGS = {
    Ended.DONE: reply.FINISHED,
    Ended.FAILED: reply.BACKEND_FAILED,
    Ended.CANCELLED: reply.BACKEND_FAILED,
    Ended.LATE: reply.RAN_LATE,
}
