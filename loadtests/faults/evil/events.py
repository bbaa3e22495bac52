"""A Weir worker with valid HTTP and invalid events."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from loadtests.faults.evil.row import CUT, REFUSED, WEIR, Row
from loadtests.faults.evil.talk import LAST_CHUNK, STATUS, Talk, chunks, length, line
from loadtests.faults.evil.worker import Trick, sends
from loadtests.judging.nonces import right

FAILED = {"event": "failed", "code": "internal_error", "message": "broken"}
DEEP = 50_000
HUGE_TOKENS = 10**6
HTML = b"<!doctype html><title>502</title><p>Bad gateway</p>\n"

Body = Callable[[Talk], tuple[bytes, ...]]


def body(make: Body, **head: bytes) -> Trick:
    """A trick that sends only this body, in one write."""

    async def act(talk: Talk) -> None:
        await talk.body(*make(talk), **head)

    return act


def then(make: Body) -> Trick:
    """A trick that sends a good beginning and then this; for a whole answer, only this."""

    async def act(talk: Talk) -> None:
        if talk.stream:
            await talk.send(talk.beginning())
            await talk.send(chunks(*make(talk)), LAST_CHUNK)
        else:
            await talk.body(*make(talk))

    return act


def instead(*pieces: bytes) -> Body:
    return lambda talk: pieces


def before_the_end(*pieces: bytes) -> Body:
    """Insert pieces into an otherwise right answer."""
    return lambda talk: (*pieces, *talk.rest)


def done(**changed: Any) -> Trick:
    """A trick that sends every token, and an end with these fields changed; `...` removes a field."""

    async def act(talk: Talk) -> None:
        if talk.stream:
            await talk.send(talk.head(), chunks(*talk.words))
            await talk.send(chunks(talk.done(**changed)), LAST_CHUNK)
        else:
            await talk.body(talk.done(**changed))

    return act


def usage(prompt_tokens: float, completion_tokens: float) -> Trick:
    return done(usage={"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens})


def after_the_end(*pieces: bytes) -> Body:
    return lambda talk: (*talk.rest, *pieces)


event_after_the_end_later = sends(
    lambda talk: talk.head() + chunks(*talk.pieces), lambda talk: chunks(talk.token("more")) + LAST_CHUNK
)
whole_for_a_stream = body(lambda talk: (talk.done(text=right(talk.nonce)),))
stream_for_a_whole = body(lambda talk: (*talk.words, talk.done(text=...)))


async def no_newline_at_the_end(talk: Talk) -> None:
    """The last byte is missing: the end is there without its newline."""
    if talk.stream:
        await talk.send(talk.head(), chunks(*talk.words))
        await talk.send(chunks(talk.done()[:-1]), LAST_CHUNK)
    else:
        await talk.body(talk.done()[:-1])


def error(status: int, payload: Any, *headers: bytes) -> Trick:
    """A trick that answers with a status and body; bytes are sent unchanged."""
    content = payload if isinstance(payload, bytes) else json.dumps(payload).encode()

    async def act(talk: Talk) -> None:
        head = STATUS.replace(b"200 OK", b"%d Trouble" % status)
        await talk.send(talk.head(length(len(content)), *headers, status=head), content)

    return act


def problem(code: str, **details: Any) -> dict[str, Any]:
    return {"error": {"message": "trouble", "type": code, "code": code, "param": None, "details": details}}


def carriage_returns(talk: Talk) -> tuple[bytes, ...]:
    return tuple(piece.replace(b"\n", b"\r\n") for piece in talk.pieces)


def _no_text(talk: Talk) -> tuple[bytes, ...]:
    return tuple(talk.pieces) if talk.stream else (talk.done(text=...),)


def _twice(key: bytes, text: bytes) -> bytes:
    return b'{"event":"token",' + key + b',"text":"' + text + b'"}\n'


NESTED = b'{"event":"token","x":' + b"[" * DEEP + b"]" * DEEP + b',"text":"a"}\n'

EVENTS = (
    Row("HTML with status 200", body(instead(HTML)), kinds=WEIR),
    Row("an empty body", body(instead()), kinds=WEIR),
    Row("JSON that is no event", body(instead(b'{"hello": 1}\n')), kinds=WEIR),
    Row("a JSON array", body(instead(b"[1, 2]\n")), kinds=WEIR),
    Row("null", body(instead(b"null\n")), kinds=WEIR),
    Row("an event that nobody knows", then(before_the_end(line({"event": "shrug", "text": "x"}))), CUT, kinds=WEIR),
    Row("HTML in the middle", then(before_the_end(HTML)), CUT, kinds=WEIR),
    Row("a blank line in the middle", then(before_the_end(b"\n")), CUT, kinds=WEIR),
    Row("half an event, and the next on its line", then(before_the_end(b'{"event":"tok')), CUT, kinds=WEIR),
    Row("a token after the end", then(after_the_end(line({"event": "token", "text": "x"}))), CUT, kinds=WEIR),
    Row("two ends", then(lambda talk: (*after_the_end()(talk), talk.done())), CUT, kinds=WEIR),
    Row("a failure after the end", then(after_the_end(line(FAILED))), CUT, kinds=WEIR),
    Row("a token long after the end", event_after_the_end_later, kinds=WEIR),
    Row("the end before the words", body(lambda talk: (talk.done(), *talk.words)), kinds=WEIR),
    Row("an end without usage", done(usage=...), CUT, kinds=WEIR),
    Row("an end with usage null", done(usage=None), CUT, kinds=WEIR),
    Row("an end that counts no token", usage(9, 0), CUT, kinds=WEIR),
    Row("an end that counts more than was asked", usage(9, HUGE_TOKENS), CUT, kinds=WEIR),
    Row("an end with a negative count", usage(-9, -3), CUT, kinds=WEIR),
    Row("an end with a broken count", usage(9, 2.5), CUT, kinds=WEIR),
    Row("an end for a reason that is none", done(finish_reason="tired"), CUT, kinds=WEIR),
    Row("an end for no reason", done(finish_reason=None), CUT, kinds=WEIR),
    Row("an end without its times", done(timings=...), CUT, kinds=WEIR),
    Row("a whole answer without text", body(_no_text), kinds=WEIR),
    Row("one piece where a stream was asked for", whole_for_a_stream, kinds=WEIR),
    Row("a stream where one piece was asked for", stream_for_a_whole, kinds=WEIR),
    Row("a failure at once", body(instead(line(FAILED))), kinds=WEIR),
    Row("a failure in the middle", then(instead(line(FAILED))), CUT, kinds=WEIR),
    Row("tokens after a failure", then(before_the_end(line(FAILED))), CUT, kinds=WEIR),
    Row("two failures", then(instead(line(FAILED), line(FAILED))), CUT, kinds=WEIR),
    Row("a failure by deadline", then(instead(line({**FAILED, "code": "deadline_exceeded"}))), CUT, REFUSED, WEIR),
    Row("a text that is a number", then(before_the_end(line({"event": "token", "text": 5}))), CUT, kinds=WEIR),
    Row("a text that is null", then(before_the_end(line({"event": "token", "text": None}))), CUT, kinds=WEIR),
    Row("JSON nested 50,000 deep", then(before_the_end(NESTED)), CUT, kinds=WEIR),
    Row("invalid UTF-8", then(before_the_end(b'{"event":"token","text":"\xff\xfe"}\n')), CUT, kinds=WEIR),
    Row("half a character in a text", then(before_the_end(b'{"event":"token","text":"\xc3"}\n')), CUT, kinds=WEIR),
    Row("a lone surrogate", then(before_the_end(b'{"event":"token","text":"\\ud800"}\n')), CUT, kinds=WEIR),
    Row("NUL bytes", then(before_the_end(b"\0\0\0\0")), CUT, kinds=WEIR),
    Row("a byte order mark", body(lambda talk: (b"\xef\xbb\xbf", *talk.pieces)), kinds=WEIR),
    Row("a key twice", then(before_the_end(_twice(b'"event":"failed"', b"x"))), CUT, kinds=WEIR),
    Row("an end without its newline", no_newline_at_the_end, CUT, kinds=WEIR),
    Row("carriage returns", body(carriage_returns), kinds=WEIR),
    Row("another content type", body(lambda talk: tuple(talk.pieces), content_type=b"text/html"), kinds=WEIR),
    Row("500 with a reason", error(500, problem("internal_error")), kinds=WEIR),
    Row("500 with HTML", error(500, HTML), kinds=WEIR),
    Row("500 with invalid UTF-8", error(500, b'{"error": {"message": "\xff"}}'), kinds=WEIR),
    Row("429 with a hint that is none", error(429, problem("yield", predicted_wait_ms="soon")), kinds=WEIR),
    Row("429 with a negative hint", error(429, problem("yield", predicted_wait_ms=-1e300)), kinds=WEIR),
    Row("429 with a hint of a year", error(429, problem("yield", predicted_wait_ms=3e10)), kinds=WEIR),
    Row("429 with nothing", error(429, b""), kinds=WEIR),
    Row("400: the client is to blame", error(400, problem("invalid_request")), REFUSED, REFUSED, WEIR),
)  # fmt: skip
