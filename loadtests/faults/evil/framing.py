"""False framing: lengths, chunks, heads, and bytes of another request's answer."""

from __future__ import annotations

import gzip

from loadtests.faults.evil.row import CUT, WEIR, Row
from loadtests.faults.evil.talk import CHUNKED, LAST_CHUNK, STATUS, Talk, chunks, length
from loadtests.faults.evil.worker import Trick, sends, sends_for_ever

HEADERS_BYTES = 200_000
CLOSE = b"connection: close\r\n"
INFORMATIONAL = b"HTTP/1.1 100 Continue\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
CODINGS = (b"content-encoding: gzip\r\n", CHUNKED)
FILL = b"x-fill: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n" * 1000


def _whole(talk: Talk) -> bytes:
    return b"".join(talk.pieces)


def _first_part(talk: Talk) -> bytes:
    return b"".join(talk.started)


def _second_part(talk: Talk) -> bytes:
    return b"".join(talk.pieces[len(talk.started) :])


def _in_chunks(talk: Talk) -> bytes:
    return chunks(*talk.pieces) + LAST_CHUNK


def _earlier(talk: Talk) -> bytes:
    """The answer to the request before, under that request's id."""
    return talk.earlier or talk.answered()


def _earlier_unnamed(talk: Talk) -> bytes:
    """The same without a request id."""
    if not talk.earlier:
        return talk.answered()
    before, _, after = talk.earlier.partition(b"x-request-id")
    return before + after.partition(b"\r\n")[2]


def framed(*framing: bytes) -> Trick:
    """A trick: the right answer under these headers."""

    def answer(talk: Talk) -> bytes:
        return talk.head(*(line.replace(b"SIZE", b"%d" % talk.size) for line in framing)) + _whole(talk)

    return sends(answer, then=Talk.finish)


def after_start(more: bytes) -> Trick:
    """A trick: a chunked answer begins, then these bytes replace the next chunk."""
    return sends(Talk.beginning, lambda talk: more + _second_part(talk), then=Talk.finish)


def status(line: bytes, *headers: bytes, body: bool = True) -> Trick:
    def answer(talk: Talk) -> bytes:
        framing = length(talk.size) if body else b""
        return talk.head(framing, *headers, status=b"HTTP/1.1 " + line + b"\r\n") + (_whole(talk) if body else b"")

    return sends(answer)


length_too_long = sends(lambda talk: talk.head(length(talk.size + 10)) + _whole(talk), then=Talk.finish)
length_too_short = sends(
    lambda talk: talk.head(length(len(_first_part(talk)))) + _first_part(talk),
    _second_part,
)
length_too_short_at_once = sends(lambda talk: talk.head(length(len(_first_part(talk)))) + _whole(talk))
length_and_chunks = sends(lambda talk: talk.head(length(talk.size), CHUNKED) + _in_chunks(talk))
chunks_and_short_length = sends(lambda talk: talk.head(CHUNKED, length(len(_first_part(talk)))) + _in_chunks(talk))
last_chunk_too_early = sends(
    Talk.beginning, lambda talk: LAST_CHUNK + chunks(*talk.pieces[len(talk.started) :]) + LAST_CHUNK
)
giant_headers = sends(lambda talk: talk.head(b"x-fill: " + b"a" * HEADERS_BYTES + b"\r\n", CHUNKED) + _in_chunks(talk))
compressed = sends(lambda talk: talk.head(*CODINGS) + chunks(gzip.compress(_whole(talk), mtime=0)) + LAST_CHUNK)

FRAMING = (
    Row("a length that is too long", length_too_long),
    Row("a length that is too short", length_too_short, CUT),
    Row("a length that is too short, in one write", length_too_short_at_once),
    Row("a negative length", framed(b"content-length: -5\r\n")),
    Row("a length that is no number", framed(b"content-length: 12abc\r\n")),
    Row("a length beyond 64 bits", framed(b"content-length: 99999999999999999999999\r\n")),
    Row("two different lengths", framed(b"content-length: 20\r\n", b"content-length: SIZE\r\n")),
    Row("length and chunks together", length_and_chunks),
    Row("chunks and a short length", chunks_and_short_length),
    Row("no framing, whole", sends(lambda talk: talk.head(CLOSE) + _whole(talk), then=Talk.finish)),
    Row("no framing, cut", sends(lambda talk: talk.head(CLOSE) + _first_part(talk), then=Talk.finish), CUT),
    Row("a transfer coding that nobody knows", framed(b"transfer-encoding: bogus\r\n")),
    Row("a chunk's size that is no number", after_start(b"zz\r\n"), CUT),
    Row("a chunk's size beyond 64 bits", after_start(b"ffffffffffffffffff\r\n"), CUT),
    Row("a chunk larger than it says", after_start(b"2\r\nabcdef\r\n"), CUT),
    Row("a negative chunk", after_start(b"-5\r\n"), CUT),
    Row("the terminating chunk too early", last_chunk_too_early, CUT),
    Row("no head at all", sends(_whole, then=Talk.finish)),
    Row("a status that is no status", status(b"2000 OK")),
    Row("status 101", status(b"101 Switching Protocols", b"upgrade: x\r\n", body=False)),
    Row("status 204", status(b"204 No Content", body=False)),
    Row("status 206 of the whole", status(b"206 Partial Content", b"content-range: bytes 0-9/20\r\n")),
    Row("status 302", status(b"302 Found", b"location: /other\r\n")),
    Row("headers of 200 kB", giant_headers),
    Row("headers without end", sends_for_ever(lambda talk: STATUS, again=lambda talk: FILL)),
    Row("a thousand 100 Continue, then the answer", sends(lambda talk: INFORMATIONAL * 1000 + talk.answered())),
    Row("100 Continue for ever", sends_for_ever(again=lambda talk: INFORMATIONAL * 10)),
    Row("103 Early Hints for ever", sends_for_ever(again=lambda talk: HINTS * 500), slow=True),
    Row("a compressed answer", compressed),
    Row("an answer said to be compressed that is not", sends(lambda talk: talk.head(*CODINGS) + _in_chunks(talk))),
    Row("another response behind its own, in one write", sends(lambda talk: talk.answered() + _earlier(talk))),
    Row("another response behind its own, a moment later", sends(Talk.answered, _earlier)),
    Row("half a response behind its own", sends(lambda talk: talk.answered() + _earlier(talk)[:60])),
    Row("the answer to the request before", sends(_earlier), kinds=WEIR),
    Row("the answer to the request before, unnamed", sends(_earlier_unnamed), kinds=WEIR),
)
