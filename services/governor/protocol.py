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
no line.

Each call that may change anything returns a `Turn` for the shell to carry out. The protocol keeps no clock: `now` is
in seconds of any clock that does not go back.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from services.governor import reply
from services.governor.frame import Chunk, Frame, Manifest, NotAFrame, read
from services.governor.gate import Gate, Place
from services.governor.reply import Say
from services.governor.upload import Upload, declared_bytes

READ_AHEAD_BYTES = 65_536  # of lines that wait for a job to end, beyond one whole line
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
    payload: bytearray
    content_type: str
    deadline: float | None
    place: Place
    auth: str = ""


@dataclass(slots=True)
class Turn:
    """What to do now: write this, run that, then perhaps close."""

    out: bytearray = field(default_factory=bytearray)
    work: Work | None = None
    close: bool = False


@dataclass(slots=True)
class _Job:
    """A job of this connection: its payload as far as it has come, and the time it has."""

    upload: Upload | None = None
    deadline: float | None = None


class Conversation:
    """The governor's side of one connection."""

    def __init__(self, gate: Gate, now: float) -> None:
        self._gate = gate
        self._bounds = gate.bounds
        self._buffer = bytearray()
        self._searched = 0
        self._held_lines = 0  # bytes of the buffer that are accounted for
        self._held_payloads = 0
        self._jobs: dict[str, _Job] = {}
        self._told: set[str] = set()  # jobs that were told to come back, and are not back
        self._last = Frame(job=NOBODY)
        self._running: Frame | None = None
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
        if self._over:
            return turn
        self._tell(turn, frame, result)
        self._waits_since = now
        if self._gate.draining:
            self._close(turn, reply.DRAINING)
        else:
            self._read_on(turn, now)
        return turn

    def _tell(self, turn: Turn, frame: Frame, result: Result) -> None:
        bytes_in = self._bytes_in(frame.job)
        if result.ended is Ended.REFUSED:
            self._yield(turn, reply.YIELDED, frame, bytes_in=bytes_in, at_least_s=result.retry_s)
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

    def stop(self) -> None:
        """The peer does not read: whatever else it has sent waits."""
        self._stopped = True

    def go_on(self, now: float) -> Turn:
        """It reads again."""
        turn = Turn()
        self._stopped = False
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
        self._account_lines()
        for job in list(self._jobs):
            self._drop(job)

    def _read_on(self, turn: Turn, now: float) -> None:
        while self._running is None and not self._over and not self._stopped:
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
        more = len(self._buffer) - self._held_lines
        if more > 0 and not self._gate.hold(more, self._held_lines + self._held_payloads):
            return False
        if more < 0:
            self._gate.let_go(-more)
        self._held_lines = len(self._buffer)
        return True

    def _line(self, turn: Turn, line: bytes, now: float) -> None:
        try:
            frame = read(line)
        except NotAFrame as error:
            self._say(turn, reply.not_a_frame(str(error)), self._last)
            return
        if frame is None:
            return
        if not frame.sound:
            self._say(turn, reply.ENVELOPE_BAD, frame)
            return
        self._last = frame
        if frame.verb == "ping":
            self._say(turn, reply.OK_PING, frame)
        elif not self._known(frame):
            self._say(turn, reply.NOT_KNOWN, frame)
        else:
            self._of_a_job(turn, frame, now)

    def _known(self, frame: Frame) -> bool:
        tokens, given = self._gate.tokens, frame.auth.encode()
        return not tokens or any(hmac.compare_digest(token.encode(), given) for token in tokens)

    def _of_a_job(self, turn: Turn, frame: Frame, now: float) -> None:
        if frame.job in self._told:
            self._back(frame.job)
        job = self._jobs.get(frame.job)
        if job is None:
            if len(self._jobs) >= self._bounds.jobs:
                self._close(turn, reply.TOO_MANY_JOBS, frame)
                return
            job = self._jobs[frame.job] = _Job()
        if frame.payload_manifest is not None:
            self._manifest(turn, frame, job, frame.payload_manifest, now)
        elif frame.payload_chunk is not None:
            self._chunk(turn, frame, job, frame.payload_chunk, now)
        else:
            self._say(turn, reply.NO_PAYLOAD, frame, bytes_in=self._bytes_in(frame.job))

    def _manifest(self, turn: Turn, frame: Frame, job: _Job, manifest: Manifest, now: float) -> None:
        most = declared_bytes(manifest)
        if most is None:
            self._say(turn, reply.MANIFEST_BAD, frame)
            return
        self._forget(job)
        job.deadline = _deadline(frame, now)
        if self._gate.saturated or not self._gate.hold(most, self._held_lines + self._held_payloads):
            self._yield(turn, reply.EARLY_YIELD, frame)
            return
        self._held_payloads += most
        job.upload = Upload(manifest, most)
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
        place = self._gate.try_take()
        if place is None:
            self._yield(turn, reply.YIELDED, frame, bytes_in=upload.bytes_in)
            return
        self._running = frame
        turn.work = Work(frame.job, upload.payload, upload.content_type, job.deadline, place, frame.auth)

    def _yield(self, turn: Turn, say: Say, frame: Frame, *, bytes_in: int = 0, at_least_s: float = 0.0) -> None:
        self._told.add(frame.job)
        self._gate.waiting += 1
        self._say(turn, say, frame, bytes_in=bytes_in, hint_ms=self._gate.hint_ms(at_least_s))

    def _back(self, job: str) -> None:
        self._told.discard(job)
        self._gate.waiting -= 1

    def _drop(self, name: str) -> None:
        """The job's name is free again."""
        if name in self._told:
            self._back(name)
        job = self._jobs.pop(name, None)
        if job is not None:
            self._forget(job)

    def _forget(self, job: _Job) -> None:
        """Its payload, as far as it had come."""
        if job.upload is not None:
            self._gate.let_go(job.upload.reserved)
            self._held_payloads -= job.upload.reserved
            job.upload = None

    def _bytes_in(self, name: str) -> int:
        job = self._jobs.get(name)
        return job.upload.bytes_in if job is not None and job.upload is not None else 0

    def _say(
        self,
        turn: Turn,
        say: Say,
        frame: Frame,
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
