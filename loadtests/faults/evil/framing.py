"""Lies about where an answer begins and ends: lengths, chunks, heads, and bytes that belong to somebody else."""

from __future__ import annotations

import gzip

from loadtests.faults.evil.row import CUT, WEIR, Row
from loadtests.faults.evil.talk import CHUNKED, LAST_CHUNK, STATUS, Talk, chunks, length
from loadtests.faults.evil.worker import Trick

HEADERS_BYTES = 200_000
INFORMATIONAL = b"HTTP/1.1 100 Continue\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
CODINGS = (b"content-encoding: gzip\r\n", CHUNKED)


def _size(talk: Talk) -> int:
    return sum(map(len, talk.pieces))


async def length_too_long(talk: Talk) -> None:
    await talk.say(talk.head(length(_size(talk) + 10)), *talk.pieces)
    talk.finish()


async def length_too_short(talk: Talk) -> None:
    begun = sum(map(len, talk.begun))
    await talk.say(talk.head(length(begun)), *talk.begun)
    await talk.say(*talk.pieces[len(talk.begun) :])


async def length_too_short_at_once(talk: Talk) -> None:
    await talk.say(talk.head(length(sum(map(len, talk.begun)))), *talk.pieces)


def framed(*framing: bytes) -> Trick:
    """The right answer under these headers."""

    async def act(talk: Talk) -> None:
        size = _size(talk)
        await talk.say(talk.head(*(line.replace(b"SIZE", b"%d" % size) for line in framing)), *talk.pieces)
        talk.finish()

    return act


async def length_and_chunks(talk: Talk) -> None:
    await talk.say(talk.head(length(_size(talk)), CHUNKED), chunks(*talk.pieces), LAST_CHUNK)


async def chunks_and_short_length(talk: Talk) -> None:
    await talk.say(talk.head(CHUNKED, length(sum(map(len, talk.begun)))), chunks(*talk.pieces), LAST_CHUNK)


async def no_framing(talk: Talk) -> None:
    await talk.say(talk.head(b"connection: close\r\n"), *talk.pieces)
    talk.finish()


async def no_framing_cut(talk: Talk) -> None:
    await talk.say(talk.head(b"connection: close\r\n"), *talk.begun)
    talk.finish()


def after_begun(more: bytes) -> Trick:
    """An answer that has begun in chunks, and then these bytes where the next chunk should be."""

    async def act(talk: Talk) -> None:
        await talk.say(talk.head(), chunks(*talk.begun))
        await talk.say(more, *talk.pieces[len(talk.begun) :])
        talk.finish()

    return act


async def last_chunk_too_early(talk: Talk) -> None:
    await talk.say(talk.head(), chunks(*talk.begun))
    await talk.say(LAST_CHUNK, chunks(*talk.pieces[len(talk.begun) :]), LAST_CHUNK)


async def no_head(talk: Talk) -> None:
    await talk.say(*talk.pieces)
    talk.finish()


def status(line: bytes, *headers: bytes, body: bool = True) -> Trick:
    """The right answer under another status."""

    async def act(talk: Talk) -> None:
        pieces = talk.pieces if body else []
        framing = length(sum(map(len, pieces))) if body else b""
        await talk.say(talk.head(framing, *headers, status=b"HTTP/1.1 " + line + b"\r\n"), *pieces)

    return act


async def giant_headers(talk: Talk) -> None:
    await talk.say(talk.head(b"x-fill: " + b"a" * HEADERS_BYTES + b"\r\n", CHUNKED), chunks(*talk.pieces), LAST_CHUNK)


async def endless_headers(talk: Talk) -> None:
    await talk.say(STATUS)
    while True:
        await talk.say(b"x-fill: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n" * 1000)


async def informational_flood(talk: Talk) -> None:
    await talk.say(INFORMATIONAL * 1000, talk.answered())


async def informational_for_ever(talk: Talk) -> None:
    while True:
        await talk.say(INFORMATIONAL * 10)


async def hints_for_ever(talk: Talk) -> None:
    while True:
        await talk.say(HINTS * 500)


async def compressed(talk: Talk) -> None:
    await talk.say(talk.head(*CODINGS), chunks(gzip.compress(b"".join(talk.pieces), mtime=0)), LAST_CHUNK)


async def said_to_be_compressed(talk: Talk) -> None:
    await talk.say(talk.head(*CODINGS), chunks(*talk.pieces), LAST_CHUNK)


async def leftover_at_once(talk: Talk) -> None:
    await talk.say(talk.answered(), talk.earlier or talk.answered())


async def leftover_soon_after(talk: Talk) -> None:
    await talk.say(talk.answered())
    await talk.say(talk.earlier or talk.answered())


async def leftover_head_only(talk: Talk) -> None:
    await talk.say(talk.answered(), (talk.earlier or talk.answered())[:60])


async def somebody_elses(talk: Talk) -> None:
    """One answer behind: what it gave to the request before, under that one's id."""
    await talk.say(talk.earlier or talk.answered())


async def somebody_elses_unnamed(talk: Talk) -> None:
    """The same from a server that names no request."""
    if talk.earlier:
        named = talk.earlier.index(b"x-request-id")
        await talk.say(talk.earlier[:named], talk.earlier[talk.earlier.index(b"\r\n", named) + 2 :])
    else:
        await talk.say(talk.answered())


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
    Row("no framing, whole", no_framing),
    Row("no framing, cut", no_framing_cut, CUT),
    Row("a transfer coding that nobody knows", framed(b"transfer-encoding: bogus\r\n")),
    Row("a chunk's size that is no number", after_begun(b"zz\r\n"), CUT),
    Row("a chunk's size beyond 64 bits", after_begun(b"ffffffffffffffffff\r\n"), CUT),
    Row("a chunk larger than it says", after_begun(b"2\r\nabcdef\r\n"), CUT),
    Row("a negative chunk", after_begun(b"-5\r\n"), CUT),
    Row("the terminating chunk too early", last_chunk_too_early, CUT),
    Row("no head at all", no_head),
    Row("a status that is no status", status(b"2000 OK")),
    Row("status 101", status(b"101 Switching Protocols", b"upgrade: x\r\n", body=False)),
    Row("status 204", status(b"204 No Content", body=False)),
    Row("status 206 of the whole", status(b"206 Partial Content", b"content-range: bytes 0-9/20\r\n")),
    Row("status 302", status(b"302 Found", b"location: /other\r\n")),
    Row("headers of 200 kB", giant_headers),
    Row("headers without end", endless_headers),
    Row("a thousand 100 Continue, then the answer", informational_flood),
    Row("100 Continue for ever", informational_for_ever),
    Row("103 Early Hints for ever", hints_for_ever, slow=True),
    Row("a compressed answer", compressed),
    Row("an answer said to be compressed that is not", said_to_be_compressed),
    Row("another response behind its own, in one write", leftover_at_once),
    Row("another response behind its own, a moment later", leftover_soon_after),
    Row("half a response behind its own", leftover_head_only),
    Row("the answer to the request before", somebody_elses, kinds=WEIR),
    Row("the answer to the request before, unnamed", somebody_elses_unnamed, kinds=WEIR),
)
