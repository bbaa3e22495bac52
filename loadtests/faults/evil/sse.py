"""An OpenAI-compatible server with valid HTTP and invalid events."""

from __future__ import annotations

import json

from loadtests.faults.evil.events import HTML, Body, body, carriage_returns, error, instead, then
from loadtests.faults.evil.row import CUT, OPENAI, REFUSED, Row
from loadtests.faults.evil.talk import LAST_CHUNK, Talk, chunks, sse
from loadtests.faults.evil.worker import sends

DONE = b"data: [DONE]\n\n"
FAULT = {"error": {"message": "broken", "type": "server_error", "code": 500}}
FLAT = {"object": "error", "message": "broken", "code": 500}
BOM = b"\xef\xbb\xbf"
DEEP = 50_000


def before_the_end(*pieces: bytes) -> Body:
    """Insert pieces into an otherwise right stream; for a whole answer, send only these."""
    return lambda talk: (*pieces, *talk.rest) if talk.stream else pieces


def _without(*texts: bytes) -> Body:
    return lambda talk: tuple(piece for piece in talk.rest if not any(text in piece for text in texts))


def _finish(reason: str | None) -> Body:
    def make(talk: Talk) -> tuple[bytes, ...]:
        if not talk.stream:
            return (json.dumps(talk.completion(reason)).encode(),)
        return (*talk.words[len(talk.started) :], sse(talk.chunk({}, reason)), DONE)

    return make


def _other_choice(talk: Talk) -> tuple[bytes, ...]:
    if not talk.stream:
        return (json.dumps(talk.completion(index=1)).encode(),)
    return (sse(talk.chunk({"content": "another answer"}, index=1)), *talk.rest)


def _after_done(talk: Talk) -> tuple[bytes, ...]:
    return (*talk.rest, talk.token("more"), DONE) if talk.stream else (talk.whole, talk.whole)


def _fault_after_finish(talk: Talk) -> tuple[bytes, ...]:
    return (*talk.pieces[len(talk.started) : -1], sse(FAULT), DONE) if talk.stream else (json.dumps(FAULT).encode(),)


def _model(talk: Talk) -> tuple[bytes, ...]:
    return tuple(piece.replace(talk.model.encode(), b"other-model") for piece in talk.pieces)


def _bytes_in_text(raw: bytes) -> Body:
    return lambda talk: before_the_end(talk.token("MARK").replace(b"MARK", raw))(talk)


def _no_choices(talk: Talk) -> tuple[bytes, ...]:
    empty = {**talk.completion(), "choices": []}
    return (sse(empty), DONE) if talk.stream else (json.dumps(empty).encode(),)


def _completion(talk: Talk) -> tuple[bytes, ...]:
    return (json.dumps(talk.completion()).encode(),)


NESTED = b'data: {"choices": [], "x": ' + b"[" * DEEP + b"]" * DEEP + b"}\n\n"

SSE = (
    Row("SSE: HTML with status 200", body(instead(HTML)), kinds=OPENAI),
    Row("SSE: an empty body", body(instead()), kinds=OPENAI),
    Row("SSE: JSON that is no event", body(instead(sse({"hello": 1}))), kinds=OPENAI),
    Row("SSE: HTML in the middle", then(before_the_end(HTML + b"\n")), CUT, kinds=OPENAI),
    Row("SSE: JSON that is no event in the middle", then(before_the_end(sse({"hello": 1}))), CUT, kinds=OPENAI),
    Row("SSE: half an event and a blank line", then(before_the_end(b'data: {"choices": [{"del\n\n')), CUT,
        kinds=OPENAI),
    Row("SSE: an end without [DONE]", then(_without(b"[DONE]")), kinds=OPENAI),
    Row("SSE: neither finish nor [DONE]", then(_without(b"[DONE]", b'"stop"')), CUT, kinds=OPENAI),
    Row("SSE: [DONE] without a finish", then(_without(b'"stop"')), CUT, kinds=OPENAI),
    Row("SSE: a finish of null at the end", then(_finish(None)), CUT, kinds=OPENAI),
    Row("SSE: finished because aborted", then(_finish("abort")), CUT, kinds=OPENAI),
    Row("SSE: finished because of an error", then(_finish("error")), CUT, kinds=OPENAI),
    Row("SSE: an error object in the middle", then(before_the_end(sse(FAULT))), CUT, kinds=OPENAI),
    Row("SSE: an error told flat in the middle", then(before_the_end(sse(FLAT))), CUT, kinds=OPENAI),
    Row("SSE: an error that is a word", then(before_the_end(sse({"error": "broken"}))), CUT, kinds=OPENAI),
    Row("SSE: an error without its name", then(before_the_end(sse({"message": "broken", "code": 500}))), CUT,
        kinds=OPENAI),
    Row("SSE: an error after the finish", then(_fault_after_finish), CUT, kinds=OPENAI),
    Row("SSE: an error at once", body(instead(sse(FAULT))), kinds=OPENAI),
    Row("SSE: a token after [DONE]", then(_after_done), CUT, kinds=OPENAI),
    Row("SSE: [DONE] twice", then(lambda talk: (*talk.rest, DONE) if talk.stream else (talk.whole,)), kinds=OPENAI),
    Row("SSE: [DONE] and nothing else", body(instead(DONE)), kinds=OPENAI),
    Row("SSE: no choices", body(_no_choices), kinds=OPENAI),
    Row("SSE: another choice between", then(_other_choice), CUT, kinds=OPENAI),
    Row("SSE: another model's name", body(_model), kinds=OPENAI),
    Row("SSE: JSON where a stream was asked for", body(_completion, content_type=b"application/json"), kinds=OPENAI),
    Row("SSE: a byte order mark", body(lambda talk: (BOM, *talk.pieces)), kinds=OPENAI),
    Row("SSE: NUL bytes", then(before_the_end(b"\0\0\n\n")), CUT, kinds=OPENAI),
    Row("SSE: invalid UTF-8", then(_bytes_in_text(b"\xff\xfe")), CUT, kinds=OPENAI),
    Row("SSE: half a character", then(_bytes_in_text(b"\xc3")), CUT, kinds=OPENAI),
    Row("SSE: JSON nested 50,000 deep", then(before_the_end(NESTED)), CUT, kinds=OPENAI),
    Row("SSE: carriage returns", sends(lambda talk: talk.head() + chunks(*carriage_returns(talk)) + LAST_CHUNK),
        kinds=OPENAI),
    Row("SSE: 500 with a reason", error(500, FAULT), kinds=OPENAI),
    Row("SSE: 500 with invalid UTF-8", error(500, b'{"error": {"message": "\xff"}}'), kinds=OPENAI),
    Row("SSE: 404 without a reason", error(404, HTML), kinds=OPENAI),
    Row("SSE: 429 with a hint that is none", error(429, FAULT, b"retry-after: soon\r\n"), kinds=OPENAI),
    Row("SSE: 429 with a negative hint", error(429, FAULT, b"retry-after-ms: -1e300\r\n"), kinds=OPENAI),
    Row("SSE: 400, the client is to blame", error(400, FAULT), REFUSED, REFUSED, OPENAI),
)  # fmt: skip
