"""What is fuzzed: each reader of a stranger's bytes as a function of those bytes that raises only if it is wrong.

A target calls the reader, catches the errors that the reader declares, and asserts what must hold whatever came: the
same result for whole and for cut input, the verdict of an independent reader, values within their limits. The fuzzer
finds the rest: an undeclared exception, a hang, memory without bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from services.governor import frame
from services.governor.gate import Gate, GovernorLimits
from services.governor.job import Ended, Result
from services.governor.protocol import Actions, GovernorSession
from services.retrieval.cache import Cache, CacheEntry
from services.retrieval.documentinput import page_of
from services.retrieval.documents import PARSERS, UnreadableDocument, parse
from services.retrieval.search_params import SearchParams
from services.router.parsing.parsed import Format, ParsedRequest
from services.router.parsing.slo import FIELD_OF, read
from services.router.request import InferenceRequest
from services.router.tenancy import tenantsfile
from services.router.upstreams import enginepage
from services.router.upstreams.call import Busy, Stream
from services.router.upstreams.openaistream import OpenAIStream
from services.router.upstreams.weir import WeirStream
from services.router.workers import workersfile
from services.runtime import strictjson
from services.runtime.errors import BadInput, WeirError
from services.runtime.guard import GuardLimits, Inbound
from services.runtime.keepalive import Pool
from services.runtime.query import parameters
from services.runtime.upstream import UpstreamError
from services.runtime.upstream_connection import UpstreamConnection
from tests.fuzz.cutting import cut
from tests.router.fleetrig import FakeReply
from tests.runtime.rig import Tape

MAX_MS = 60_000.0
CONVERSATIONS = Path(__file__).parents[1] / "governor" / "corpus"


# ---- HTTP requests ---------------------------------------------------------------------------------------------------


def guard(data: bytes) -> None:
    """Requests are the same however their bytes are cut, and only a WeirError refuses them."""
    whole, pieces = cut(data)
    assert _requests([whole]) == _requests(pieces)


def _give(inbound: Any, piece: bytes) -> None:
    """All of a piece: at once, or, where the guard takes a part at a time, part by part."""
    if hasattr(inbound, "feed"):
        inbound.feed(piece)
        return
    at = 0
    while at < len(piece):
        after = inbound.take(piece, at)
        assert after > at, "it stands still"
        at = after


def _requests(pieces: Sequence[bytes]) -> tuple[list[tuple[Any, ...]], bool]:
    inbound = Inbound(GuardLimits(), None)  # type: ignore[arg-type]  # nothing is answered, so no wire is needed
    refused = False
    for piece in pieces:
        try:
            _give(inbound, piece)
        except WeirError as error:
            refused = 400 <= error.status < 600
            break
    complete = list(inbound.queue)[: inbound.completed]
    told = [(each.method, each.path, tuple(each.headers), bytes(each.body), each.keep_alive) for each in complete]
    inbound.stop()
    return told, refused


# ---- a worker's answers ----------------------------------------------------------------------------------------------


def answers(data: bytes) -> None:
    """An answer is the same however it is cut; what is wrong with it is an UpstreamError, and ends the connection."""
    whole, pieces = cut(data)
    _same(_answer([whole]), _answer(pieces))


class _Abortable(Tape):
    def abort(self) -> None:
        self.close()


def _answer(pieces: Sequence[bytes]) -> Outcome:
    loop = asyncio.new_event_loop()
    try:
        connection = UpstreamConnection(loop, Pool("http://127.0.0.1:1", max_connections=1))
        connection.connection_made(_Abortable())
        connection.busy = True
        left = list(pieces)
        while left and connection.error is None and not connection.complete:
            connection.data_received(left.pop(0))
        if connection.error is not None:
            assert isinstance(connection.error, UpstreamError)
            return Outcome(FAILED, "", False)
        if not connection.complete:
            return Outcome("unfinished", "", False)
        body = b"".join(connection.pieces)
        return Outcome("ended", repr((connection.status, connection.headers, body)), bool(left))
    finally:
        loop.close()


def events(data: bytes) -> None:
    """Server-sent events of an OpenAI-compatible server: the same text however they are cut."""
    _compare(data, lambda reply: OpenAIStream(reply, _REQUEST))  # type: ignore[arg-type]  # a fake


def lines(data: bytes) -> None:
    """Lines of JSON of a Weir worker: the same text however they are cut."""
    _compare(data, lambda reply: WeirStream(reply, 40))  # type: ignore[arg-type]  # a fake


def page(data: bytes) -> None:
    """A metrics page of an engine: whatever it is, it says something possible or nothing."""
    report = enginepage.read(data)
    if report is not None:
        assert report.kv_share is None or 0 <= report.kv_share <= 1
        assert report.kv_tokens is None or report.kv_tokens > 0


_PARSED = ParsedRequest(format=Format.CHAT, tenant=None, model=None, max_tokens=9, stream=True, body={})
_REQUEST = InferenceRequest("r", "t", deadline=1.0, model="m", max_tokens=9, granted_tokens=9, parsed=_PARSED)


FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an answer ended, what it said, and whether some of it was not read any more."""

    how: str
    said: str
    left: bool


def _same(whole: Outcome, cut: Outcome) -> None:
    """What stands behind the end of an answer is refused if it came with the end, and otherwise not read here."""
    behind_the_end = cut.left and whole.how == FAILED
    assert behind_the_end or (whole.how, whole.said) == (cut.how, cut.said), f"{whole} is not {cut}"


def _compare(data: bytes, stream: Callable[[FakeReply], Stream]) -> None:
    whole, pieces = cut(data)
    replies = FakeReply(*([whole] if whole else [])), FakeReply(*pieces)
    _same(*(_heard(stream(reply), reply) for reply in replies))


def _heard(stream: Stream, reply: FakeReply) -> Outcome:
    """What was said before a fault depends on the pieces, and may."""
    said: list[str] = []
    try:
        while (delta := _now(stream.next())) is not None:
            said.append(delta.text)
    except (UpstreamError, WeirError, Busy):
        return Outcome(FAILED, "", False)
    return Outcome("ended", "".join(said), bool(reply.pieces))


def _now(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


# ---- JSON ------------------------------------------------------------------------------------------------------------


def strict_json(data: bytes) -> None:
    """Accepted if and only if a plain reading of the rules accepts it, and then with the same value."""
    try:
        expected = _plainly(data)
    except (ValueError, RecursionError):
        expected = _REFUSED
    try:
        found = strictjson.loads(data)
    except WeirError as error:
        found = _REFUSED if error.status == 400 else error
    assert repr(found) == repr(expected), f"{found!r:.200} is not {expected!r:.200}"


_REFUSED = object()


def _plainly(data: bytes) -> Any:
    """The rules of strictjson, written down a second time without any regard for speed. Raises ValueError."""
    limits = strictjson.JsonLimits()
    value = json.loads(
        data.decode("utf-8"), object_pairs_hook=_members, parse_constant=_refuse, parse_int=_integer, parse_float=_real
    )
    counts = [0]
    _walk(value, limits.max_depth, counts)
    return value


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("twice")
    return found


def _refuse(text: str) -> float:
    raise ValueError(text)


def _integer(text: str) -> int:
    if len(text.lstrip("-")) > strictjson.JsonLimits().max_digits:
        raise ValueError(text)
    return int(text)


def _real(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(text)
    return float(text)


def _walk(value: Any, depth: int, counts: list[int]) -> None:
    if isinstance(value, str) and ("\x00" in value or any("\ud800" <= char <= "\udfff" for char in value)):
        raise ValueError("text")
    if isinstance(value, dict | list):
        if depth == 0:
            raise ValueError("deep")
        for each in [*value, *value.values()] if isinstance(value, dict) else value:
            _walk(each, depth - 1, counts)


# ---- headers, queries, files, frames, documents, the cache -----------------------------------------------------------


def headers(data: bytes) -> None:
    """Deadlines, patience, classes: a number within its limits, or a WeirError that names the header."""
    names = sorted(FIELD_OF)
    said = [(names[line[0] % len(names)], line[1:]) for line in data.split(b"\n") if line]
    try:
        wishes = read(said, default_ms=1000.0, max_ms=MAX_MS, default_ttft_ms=500.0, stream=bool(data[:1] < b"\x80"))
    except BadInput:
        return
    assert 0 < wishes.ttft_ms <= wishes.deadline_ms <= MAX_MS
    assert wishes.max_wait_s is None or 0 <= wishes.max_wait_s < 1e15
    assert wishes.attempt >= 0


def query(data: bytes) -> None:
    """Parameters of a URL, and the page of a listing."""
    for reader in (lambda told: parameters(told, ("after", "limit")), page_of):
        with contextlib.suppress(BadInput):
            reader(data)


def tenants(data: bytes) -> None:
    """A tenants file is read, or every fault of it is told."""
    _file(data, tenantsfile.read)


def workers(data: bytes) -> None:
    """A workers file is read, or every fault of it is told."""
    _file(data, workersfile.read)


def _file(data: bytes, reader: Callable[[Path], Any]) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with contextlib.suppress(ValueError):  # Faulty is one
            reader(Path(file.name))


def governor(data: bytes) -> None:
    """Replies of the governor are the same however the frames are cut, and a lost peer leaves nothing held.

    Its short way to read a line and its careful one come to the same.
    """
    whole, pieces = cut(data)
    assert _talk([whole]) == _talk(pieces)
    for line in whole.split(b"\n"):
        read_in_one_way(line.rstrip(b"\r"))


def read_in_one_way(line: bytes) -> None:
    """Raises AssertionError where the governor's two ways to read a line differ."""
    assert _as_read(frame.read, line) == _as_read(frame.read_with_care, line), f"read in two ways: {line!r}"


def _as_read(how: Callable[[bytes], frame.ProtocolFrame | None], line: bytes) -> object:
    """The frame as plain data, or what it is called that is none."""
    try:
        found = how(line)
    except frame.NotAFrame as error:
        return str(error)
    return None if found is None else msgspec.to_builtins(found)


def _talk(pieces: Sequence[bytes]) -> tuple[bytes, bool]:
    gate = Gate(cap=1, bounds=GovernorLimits(), random=lambda: 0.5)
    session = GovernorSession(gate, 0.0)
    out, closed = bytearray(), False
    for piece in pieces:
        turns = [session.receive(piece, 0.0)]
        while turns:
            actions = turns.pop()
            out += actions.out
            closed = closed or actions.close
            turns += _next_turns(session, actions)
        if closed:
            break
    session.lost()
    assert gate.held_bytes == 0
    return bytes(out), closed


def _next_turns(session: GovernorSession, actions: Actions) -> list[Actions]:
    if actions.work is not None:
        actions.work.slot.release_slot(0.1)
        return [session.ended(Result(Ended.DONE, 0.1), 0.0)]
    if getattr(actions, "more", False):
        actions.more = False  # type: ignore[attr-defined]  # lines that wait for the next pass of the loop
        return [session.go_on(0.0)]
    return []


def documents(data: bytes) -> None:
    """A document gives text that a database can store, or is unreadable."""
    kinds = sorted(PARSERS)
    name = f"a{kinds[data[0] % len(kinds)]}" if data else "a.txt"
    try:
        document = parse(name, data[1:])
    except UnreadableDocument:
        return
    for section in document.sections:
        section.text.encode("utf-8")
        assert "\x00" not in section.text


def cache(data: bytes) -> None:
    """What stands in the cache may be anything: it is an entry of this key and tenant, or nothing."""
    reader = object.__new__(Cache)  # no connection: only its check of what was read
    reader._decode = msgspec.msgpack.Decoder(CacheEntry).decode
    reader._chance = random.Random(0)
    kept = reader._check("abcd", "tenant", data, 1000, SearchParams(1.0, 4), 1, 60.0)
    assert kept is None or (math.isfinite(kept.age_s) and kept.age_s >= 0)


# ---- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """`seeds` are sound inputs: mutation begins with them."""

    one: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


def _entry() -> bytes:
    return msgspec.msgpack.encode(CacheEntry("abcd", "tenant", 1, 60.0, 600.0, 0.01, 1.0, 4, []))


TARGETS: dict[str, Target] = {
    "guard": Target(
        guard,
        (
            b"\x01POST /v1/completions?a=b HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}"
            b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
            b"\x02POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: y\r\n\r\n",
            b"\x03GET http://a:1/b HTTP/1.0\r\nconnection: keep-alive\r\nexpect: 100-continue\r\n\r\n",
        ),
    ),
    "page": Target(
        page,
        (
            b'vllm:num_requests_running{a="b"} 1\nvllm:num_requests_waiting 0\n'
            b'vllm:cache_config_info{block_size="16",num_gpu_blocks="9"} 1.0\n',
            b"sglang:num_running_reqs 1 1700000000\nsglang:num_queue_reqs 1e3\nsglang:token_usage NaN\n",
        ),
    ),
    "answers": Target(
        answers,
        (
            b"\x01HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
            b"\x02HTTP/1.1 100 Continue\r\n\r\n"
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            b"\x03HTTP/1.0 503 Busy\r\nretry-after: 1\r\n\r\nbody",
        ),
    ),
    "events": Target(
        events,
        (
            b'\x01data: {"id":"u","choices":[{"index":0,"delta":{"content":"A"},"finish_reason":null}]}\n\n'
            b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
            b'\x02: ping\r\nevent: message\r\ndata: {"error":{"message":"m","code":429}}\r\n\r\n',
        ),
    ),
    "lines": Target(
        lines,
        (
            b'\x01{"event":"token","text":"A "}\n{"event":"done","finish_reason":"stop",'
            b'"usage":{"prompt_tokens":4,"completion_tokens":2},'
            b'"timings":{"queue_ms":1.0,"first_token_ms":2.0,"total_ms":3.0},"batch_size":1}\n',
        ),
    ),
    "json": Target(
        strict_json,
        (
            b'{"a": [1, 2.5e3, -0, "\\u00e9\\n", null, true], "b": {"c": 18446744073709551616}, "d": ":"}',
            b'{"a":"\\ud83d\\ude00","a":NaN}',
            b"[[[[]]],1e999]",
        ),
    ),
    "headers": Target(
        headers, (b"\x001500\n\x011m30s\n\x02250m\n\x03wait=5, respond-async", b'\x04wait="3";x=1\n\x05fast')
    ),
    "query": Target(query, (b"after=a%20b&limit=10", b"limit=0&limit=1&x", b"after=%ff")),
    "tenants": Target(
        tenants,
        (
            b"classes:\n  - {name: standard, slo_ms: 2000}\ntenants:\n  - id: a\n    api_keys_sha256: ['"
            + b"0" * 64
            + b"']\n",
            b"tenants: &a [*a]\n",
            b"tenants:\n- id: x\n  id: y\n",
        ),
    ),
    "workers": Target(
        workers,
        (
            b"workers:\n  - {name: a, kind: weir, url: 'http://127.0.0.1:1'}\n"
            b"  - {name: b, kind: openai, url: x, slots: 4}\n",
        ),
    ),
    "governor": Target(
        governor,
        (
            b'\x01{"v":1,"verb":"ping","job":"a","seq":1}\n',
            b'\x02{"v":1,"verb":"share","job":"a","seq":1,"ttl_ms":1000,"payload_manifest":{"chunks":1,"total_bytes":2,'
            b'"chunk_bytes":2}}\n{"v":1,"verb":"share","job":"a","seq":2,"payload_chunk":{"index":0,"data_b64":"e30="}}\n',
            *(b"\x01" + path.read_bytes() for path in sorted(CONVERSATIONS.glob("*.bin"))),
        ),
    ),
    "documents": Target(
        documents,
        (
            b"\x00<html><h1>A</h1><p>b<table><tr><td>c</table></html>",
            b"\x01---\na: b\n---\n# A\n\n- b\n\n| c | d |\n|---|---|\n| e | f |\n",
            b"\x02%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF",
            b"\x03A\n=\n\n.. |x| replace:: y\n\n|x| `a <b>`_\n\n* c\n",
            b"\x04plain text",
        ),
    ),
    "cache": Target(cache, (_entry(), _entry().replace(b"tenant", b"\xff" * 6))),
}
