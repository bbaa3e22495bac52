"""Broken lines without end: `python -m loadtests.bench governor --only fuzz [--frames N]`.

Lines of the kept corpus are mutated and fed, cut anywhere, to conversations that share one gate with small bounds.
In between peers hang up, fall silent, or do not read, and jobs end in every way. It must not raise; what is held stays
within the bounds, and is nothing when all have left; every reply has the keys, the order and the receipts that the
wire allows. And the short way to read a line reads as the careful one does. The same seed gives the same lines.
What breaks something is kept in the corpus, where the tests replay it.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import msgspec
import psutil

from loadtests.paths import ROOT
from loadtests.report.figure import Figure
from services.governor.frame import Frame, NotAFrame, read, read_with_care
from services.governor.gate import Bounds, Gate
from services.governor.protocol import Conversation, Ended, Result, Turn, Work

CORPUS = ROOT / "tests" / "governor" / "corpus"
BOUNDS = Bounds(line_bytes=4096, jobs=6, connection_bytes=131_072, total_bytes=262_144, idle_s=5.0)
CAP, PEERS = 2, 4
COMPARED_EVERY = 8  # lines: the careful way takes its time
TOKENS = (
    b"null", b"-0", b"0", b"1", b"-1", b"1.0", b"1e2", b"18446744073709551615", b"18446744073709551616", b'""', b"{}",
    b"[]", b"[[[[", b'"\\ud800"', b'"\\u0000"', b"\xff", b"\xef\xbb\xbf", b"\xc2\xa0", b"\x00", b"\r", b"\n", b"\n\n",
    b" ", b":", b",", b'"', b"\\", b"}", b'"share"', b'"ping"', b'"confirm"', b'"V":0,', b'"ttl_ms":1,',
    b'"status":"ok",',
    b'"payload_manifest":null,', b'"payload_chunk":{},', b'"auth":1,', b"GET / HTTP/1.1", b"<html>", b"=", b"52428801",
)  # fmt: skip
REPLY = re.compile(
    rb'\{"v":0,"verb":"(?:clarify|confirm)","job":"(?:[^"\\\x00-\x1f<>&]|\\u[0-9a-f]{4}|\\[nrt"\\])+","seq":\d{1,20},'
    rb'"ttl_ms":\d{1,20},"status":"(?:ok|need|yield|done|abort)"(?:,"need_code":"[a-z0-9_]+")?(?:,"retry_hint_ms":\d+)?'
    rb'(?:,"error_code":"[a-z_]+")?,"receipts":\[\{"kind":"server.health","value_u64":[01]\},'
    rb'\{"kind":"backend.inflight","value_u64":[0-2]\},\{"kind":"backend.cap","value_u64":2\},'
    rb'\{"kind":"server.executed_total","value_u64":\d+\},\{"kind":"server.yielded_total","value_u64":\d+\},'
    rb'\{"kind":"cdr.bytes_in","value_u64":\d+\}(?:,\{"kind":"cdr.backend.ms","value_u64":\d+\})?'
    rb'(?:,\{"kind":"conn.outcome","value_u64":[1-5]\})?(?:,\{"kind":"conn.outcome_reason","value_u64":\d+\})?'
    rb'(?:,\{"kind":"conn.retry_hint_ms","value_u64":\d+\})?\](?:,"result":\{.*\})?\}'
)


class Broken(Exception):
    """The protocol did what it must not do."""


class Peer:
    """A conversation, what it was sent, and the job that runs for it."""

    def __init__(self, gate: Gate, now: float) -> None:
        self.conversation = Conversation(gate, now)
        self.sent = bytearray()
        self.work: Work | None = None
        self.closed = False
        self.lines: list[bytes] = []  # of the corpus, that come next

    def take(self, turn: Turn) -> int:
        """Look at what it says; how many replies that were."""
        if turn.work is not None:
            if self.work is not None:
                raise Broken("a connection has two jobs")
            self.work = turn.work
        replies = bytes(turn.out).split(b"\n")
        if replies.pop():
            raise Broken("a reply has no end")
        if replies and self.closed:
            raise Broken("it spoke after it had closed")
        for reply in replies:
            if REPLY.fullmatch(reply) is None:
                raise Broken(f"this is no reply: {reply!r}")
            msgspec.json.decode(reply)
        self.closed = self.closed or turn.close
        return len(replies)

    def end_job(self, ended: Ended, now: float) -> int:
        work, self.work = self.work, None
        if work is None:
            return 0
        work.place.give_back(0.1)
        return self.take(self.conversation.ended(Result(ended, 0.1, shown={"status": 200}), now))


class Fuzz:
    """One gate, some peers, a clock that it moves itself."""

    def __init__(self, seed: int, corpus: list[bytes]) -> None:
        self.chance = random.Random(seed)
        self.corpus = [[line + b"\n" for line in kept.split(b"\n")] for kept in corpus]
        self.gate = Gate(cap=CAP, bounds=BOUNDS, random=self.chance.random)
        self.now = 0.0
        self.frames = self.replies = self.most_held = 0
        self.peers = [Peer(self.gate, self.now) for _ in range(PEERS)]

    def run(self, frames: int) -> None:
        """So many lines, and then everybody leaves. Raises Broken; or whatever the protocol did."""
        while self.frames < frames:
            place = self.chance.randrange(PEERS)
            peer = self.peers[place]
            try:
                self._turn(peer)
            except Exception:
                _keep(bytes(peer.sent))
                raise
            if peer.closed or self.chance.random() < 0.002:
                self._leave(peer)
                self.peers[place] = Peer(self.gate, self.now)
        for peer in self.peers:
            self._leave(peer)
        gate = self.gate
        if gate.held_bytes or gate.waiting or gate.standing.inflight:
            raise Broken(f"something is left: {gate.held_bytes} bytes, {gate.waiting} waiting, {gate.standing}")

    def _leave(self, peer: Peer) -> None:
        peer.conversation.lost()
        peer.closed = True
        if peer.work is not None:
            peer.end_job(Ended.CANCELLED, self.now)

    def _turn(self, peer: Peer) -> None:
        chance, conversation = self.chance, peer.conversation
        self.now += chance.random() * 0.01
        line = self._line(peer)
        self.frames += 1
        if self.frames % COMPARED_EVERY == 0:
            _compare(line.rstrip(b"\r\n"))
        peer.sent += line
        if len(peer.sent) > 65_536:
            del peer.sent[:-65_536]
        cut = chance.randrange(len(line) + 1) if chance.random() < 0.2 else len(line)
        for piece in (line[:cut], line[cut:]):
            if piece and not conversation.full:
                self.replies += peer.take(conversation.receive(piece, self.now))
        self._something_else(peer)
        held = self.gate.held_bytes
        self.most_held = max(self.most_held, held)
        if not 0 <= held <= BOUNDS.total_bytes or not 0 <= self.gate.standing.inflight <= CAP:
            raise Broken(f"a bound does not hold: {held} bytes, {self.gate.standing}")

    def _something_else(self, peer: Peer) -> None:
        chance, conversation = self.chance, peer.conversation
        which = chance.random()
        if peer.work is not None and which < 0.4:
            self.replies += peer.end_job(chance.choice(list(Ended)), self.now)
        elif which < 0.42:
            peer.take(conversation.half_closed(self.now))
        elif which < 0.44:
            if not conversation.stop(chance.choice((0, 1, 100_000))):
                self._leave(peer)
        elif which < 0.47:
            peer.take(conversation.go_on(self.now))
        elif which < 0.48:
            self.now += chance.choice((1.0, BOUNDS.idle_s))
            peer.take(conversation.idled(self.now))
        elif which < 0.49:
            peer.take(Turn(bytearray(conversation.still_running())))

    def _line(self, peer: Peer) -> bytes:
        if not peer.lines:
            peer.lines = self.chance.choice(self.corpus)[::-1]
        line = peer.lines.pop()
        while self.chance.random() < 0.55:
            line = self.chance.choice(MUTATIONS)(line, self.chance, self.corpus)[: 2 * BOUNDS.line_bytes]
        return line


def _compare(line: bytes) -> None:
    """Both ways to read a line must come to the same."""
    if as_read(read, line) != as_read(read_with_care, line):
        raise Broken(f"read in two ways: {line!r}")


def as_read(how: Callable[[bytes], Frame | None], line: bytes) -> object:
    """The frame as plain data, or what it is called that is none."""
    try:
        frame = how(line)
    except NotAFrame as error:
        return str(error)
    return None if frame is None else msgspec.to_builtins(frame)


Mutation = Callable[[bytes, random.Random, list[list[bytes]]], bytes]


def _flipped(line: bytes, chance: random.Random, _: list[list[bytes]]) -> bytes:
    if not line:
        return line
    at = chance.randrange(len(line))
    return line[:at] + bytes([line[at] ^ (1 << chance.randrange(8))]) + line[at + 1 :]


def _cut(line: bytes, chance: random.Random, _: list[list[bytes]]) -> bytes:
    start, end = sorted((chance.randrange(len(line) + 1), chance.randrange(len(line) + 1)))
    return line[:start] + line[end:]


def _doubled(line: bytes, chance: random.Random, _: list[list[bytes]]) -> bytes:
    start, end = sorted((chance.randrange(len(line) + 1), chance.randrange(len(line) + 1)))
    return line[:end] + line[start:end] * chance.choice((1, 1, 2, 40)) + line[end:]


def _with_a_token(line: bytes, chance: random.Random, _: list[list[bytes]]) -> bytes:
    at = chance.randrange(len(line) + 1)
    return line[:at] + chance.choice(TOKENS) + line[at:]


def _other_number(line: bytes, chance: random.Random, _: list[list[bytes]]) -> bytes:
    found = list(re.finditer(rb":(\d+)", line))
    if not found:
        return line
    start, end = chance.choice(found).span(1)
    return line[:start] + chance.choice(TOKENS[:12]) + line[end:]


def _spliced(line: bytes, chance: random.Random, corpus: list[list[bytes]]) -> bytes:
    other = chance.choice(chance.choice(corpus))
    return line[: chance.randrange(len(line) + 1)] + other[chance.randrange(len(other) + 1) :]


def _in_other_case(line: bytes, chance: random.Random, _: list[list[bytes]]) -> bytes:
    at = chance.randrange(len(line) + 1)
    return line[:at] + line[at : at + 12].swapcase() + line[at + 12 :]


MUTATIONS: tuple[Mutation, ...] = (_flipped, _cut, _doubled, _with_a_token, _other_number, _spliced, _in_other_case)


def kept_corpus() -> list[bytes]:
    return [path.read_bytes() for path in sorted(CORPUS.glob("*.bin"))]


def _keep(sent: bytes) -> None:
    (CORPUS / f"found-{hashlib.sha256(sent).hexdigest()[:12]}.bin").write_bytes(sent)


@dataclass(frozen=True, slots=True)
class Part:
    """What one process has done."""

    frames: int
    replies: int
    most_held: int
    more_mb: float


def run(frames: int, seed: int) -> Part:
    """So many lines in this process. Raises what breaks."""
    Fuzz(seed, kept_corpus()).run(min(frames, 20_000))  # what grows once, has grown
    before_mb = _rss_mb()
    fuzz = Fuzz(seed, kept_corpus())
    fuzz.run(frames)
    return Part(fuzz.frames, fuzz.replies, fuzz.most_held, _rss_mb() - before_mb)


def _rss_mb() -> float:
    return float(psutil.Process().memory_info().rss / 2**20)


def measure(frames: int, seed: int = 7) -> list[Figure]:
    """In as many processes as there are cores, each with a seed of its own. Raises what breaks."""
    count = os.cpu_count() or 1
    began = time.perf_counter()
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        parts = list(pool.map(run, [-(-frames // count)] * count, range(seed, seed + count)))
    took_s = time.perf_counter() - began
    done, replies = sum(part.frames for part in parts), sum(part.replies for part in parts)
    note = (
        f"{replies:,} replies, each read and compared; {done / took_s:,.0f} lines/s; seeds from {seed}, {count} of them"
    )
    grown = max(part.more_mb for part in parts)
    held = max(part.most_held for part in parts)
    return [
        Figure("broken lines that broke nothing", done, "lines", frames, note=note),
        Figure("more memory afterwards", grown, "MB", 8, at_least=False, note="of a process"),
        Figure("most bytes held", held, "bytes", BOUNDS.total_bytes, at_least=False, note="nothing in the end"),
    ]
