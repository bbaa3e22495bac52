"""Bad input to every POST route of the real stack: 4xx that names the field, and nothing of it in any log.

The processes that answered the first are those that answered the last.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.real.stack.stand import WITHIN_S, Part, Stand, until

PROMPT = "canary-7f3a the prompt"  # stands in requests, and may stand nowhere else
KEY = "canary-7f3a-key"
BEARER = {"authorization": f"Bearer {KEY}"}

ASK = {"query": PROMPT}
CHAT = {"messages": [{"role": "user", "content": PROMPT}]}
COMPLETION = {"prompt": PROMPT}
EMBEDDING = {"input": PROMPT}
RETRIEVE = {"query": PROMPT, "tenant": "demo"}
GENERATE = {"id": "canary", "tenant": "demo", "deadline_ms": 5000, "max_tokens": 5, "prompt": PROMPT}
GOOD: dict[str, tuple[str, dict[str, Any]]] = {
    "/ask": ("router", ASK),
    "/v1/chat/completions": ("router", CHAT),
    "/v1/completions": ("router", COMPLETION),
    "/v1/embeddings": ("router", EMBEDDING),
    "/retrieve": ("retrieval", RETRIEVE),
    "/embed": ("retrieval", {"input": [PROMPT]}),
    "/generate": ("worker", GENERATE),
    "/infer": ("worker", {"prompt": PROMPT, "max_tokens": 5}),
}

# what is wrong with a body of any route -> the word that the refusal must hold
NOT_JSON: list[tuple[bytes, str]] = [
    (b"", "empty"),
    (b"\x00", "JSON"),
    (b"{", "JSON"),
    (b'{"query"', "JSON"),
    (b"null", "body"),
    (b"[]", "body"),
    (b'"text"', "body"),
    (b"1e999", "range"),
    (b'{"a": NaN}', "NaN"),
    (b'{"a": -Infinity}', "Infinity"),
    (b'{"a": 1, "a": 2}', "twice"),
    (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
    (b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested"),
    (b"[" + b"0," * 20_000 + b"0]", "elements"),
    (b"\xef\xbb\xbf{}", "byte-order"),
    ('{"a": "b"}'.encode("utf-16"), "byte-order"),
    (b'{"query": "\xff"}', "UTF-8"),
    (b'{"query": "a\\u0000b", "prompt": "", "messages": []}', "NUL"),
    (b'{"query": "a\\ud800b", "prompt": "", "messages": []}', "surrogate"),
    (b'{"tenant": "demo"}', "required"),
    (b"x" * 1_100_000, "bytes"),
]

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("/ask", {"query": 5}, "query"),
    ("/ask", {"query": ""}, "query"),
    ("/ask", {"query": " \n\t "}, "query"),
    ("/ask", {"query": "x" * 8193}, "query"),
    ("/ask", {"query": None}, "query"),
    ("/ask", {"top_k": 0}, "top_k"),
    ("/ask", {"top_k": 10**18}, "top_k"),
    ("/ask", {"top_k": 2.5}, "top_k"),
    ("/ask", {"top_k": "5"}, "top_k"),
    ("/ask", {"top_k": True}, "top_k"),
    ("/ask", {"max_tokens": -1}, "max_tokens"),
    ("/ask", {"max_tokens": 1e300}, "max_tokens"),
    ("/ask", {"cache_ttl_s": -0.1}, "cache_ttl_s"),
    ("/ask", {"cache_ttl_s": 1e308}, "cache_ttl_s"),
    ("/ask", {"stream": "yes"}, "stream"),
    ("/ask", {"tenant": ""}, "tenant"),
    ("/ask", {"tenant": "a/../b"}, "tenant"),
    ("/ask", {"tenant": ["demo"]}, "tenant"),
    ("/ask", {"model": "gpt-none"}, "model"),
    ("/v1/chat/completions", {"messages": []}, "messages"),
    ("/v1/chat/completions", {"messages": "hi"}, "messages"),
    ("/v1/chat/completions", {"messages": [{}]}, "messages[0]"),
    ("/v1/chat/completions", {"messages": [{"role": "user"}]}, "messages[0].content"),
    ("/v1/chat/completions", {"messages": [{"role": 1, "content": "hi"}]}, "messages[0].role"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": {"a": 1}}]}, "messages[0].content"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}] * 1025}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 100_000}]}, "messages"),
    ("/v1/chat/completions", {"max_tokens": 0}, "max_tokens"),
    ("/v1/chat/completions", {"max_tokens": 2**63}, "max_tokens"),
    ("/v1/chat/completions", {"max_completion_tokens": "many"}, "max_completion_tokens"),
    ("/v1/chat/completions", {"temperature": 2.01}, "temperature"),
    ("/v1/chat/completions", {"temperature": "hot"}, "temperature"),
    ("/v1/chat/completions", {"top_p": 0}, "top_p"),
    ("/v1/chat/completions", {"n": 2}, "n"),
    ("/v1/chat/completions", {"stop": ["a"] * 5}, "stop"),
    ("/v1/chat/completions", {"stop": [""]}, "stop"),
    ("/v1/chat/completions", {"stop": ["x" * 1000]}, "stop"),
    ("/v1/chat/completions", {"seed": 2**64}, "seed"),
    ("/v1/chat/completions", {"stream": 1}, "stream"),
    ("/v1/chat/completions", {"stream_options": True}, "stream_options"),
    ("/v1/chat/completions", {"model": ""}, "model"),
    ("/v1/chat/completions", {"model": "weir-sim\u202e"}, "model"),
    ("/v1/completions", {"prompt": ""}, "prompt"),
    ("/v1/completions", {"prompt": []}, "prompt"),
    ("/v1/completions", {"prompt": ["a", "b"]}, "prompt"),
    ("/v1/completions", {"prompt": [1, 2, 3]}, "prompt"),
    ("/v1/completions", {"prompt": {"a": "b"}}, "prompt"),
    ("/v1/completions", {"max_tokens": 10**19}, "max_tokens"),
    ("/v1/embeddings", {"input": ""}, "input"),
    ("/v1/embeddings", {"input": []}, "input"),
    ("/v1/embeddings", {"input": ["a", ""]}, "input[1]"),
    ("/v1/embeddings", {"input": [1, 2]}, "input[0]"),
    ("/v1/embeddings", {"input": ["a"] * 257}, "input"),
    ("/v1/embeddings", {"input": "x" * 32_769}, "input"),
    ("/v1/embeddings", {"encoding_format": "hex"}, "encoding_format"),
    ("/v1/embeddings", {"dimensions": 0}, "dimensions"),
    ("/v1/embeddings", {"dimensions": 383}, "dimensions"),
    ("/v1/embeddings", {"model": "gpt-none"}, "model"),
    ("/retrieve", {"query": "\n"}, "query"),
    ("/retrieve", {"tenant": ""}, "tenant"),
    ("/retrieve", {"top_k": 51}, "top_k"),
    ("/retrieve", {"top_k": -(10**19)}, "top_k"),
    ("/retrieve", {"budget_ms": 0}, "budget_ms"),
    ("/retrieve", {"budget_ms": 1e308}, "budget_ms"),
    ("/retrieve", {"cache_ttl_s": -1}, "cache_ttl_s"),
    ("/embed", {"input": "a"}, "input"),
    ("/embed", {"input": ["a", None]}, "input[1]"),
    ("/generate", {"id": ""}, "id"),
    ("/generate", {"id": "a b"}, "id"),
    ("/generate", {"id": "x" * 129}, "id"),
    ("/generate", {"tenant": ""}, "tenant"),
    ("/generate", {"deadline_ms": 0}, "deadline_ms"),
    ("/generate", {"deadline_ms": 1e12}, "deadline_ms"),
    ("/generate", {"max_tokens": 0}, "max_tokens"),
    ("/generate", {"messages": [{"role": "user", "content": "hi"}]}, "prompt"),
    ("/generate", {"prompt": None}, "prompt"),
    ("/generate", {"prompt": ""}, "prompt"),
    ("/generate", {"prompt": "word " * 100_000}, "prompt"),
    ("/generate", {"model": "gpt-none"}, "model"),
    ("/generate", {"seed": 2**80}, "digits"),
    ("/generate", {"stop": ["x" * 257]}, "stop[0]"),
    ("/infer", {"max_tokens": 10**15}, "max_tokens"),
    ("/infer", {"prompt": 5}, "prompt"),
]

DEADLINES = ("0", "-5", "nan", "inf", "1e99", "120001", "soon", "", "5 s", "0x10", "1_000", "٥", "9" * 400)
HEADERS: list[tuple[dict[str, str], str]] = [
    *(({"x-weir-deadline-ms": value}, "x-weir-deadline-ms") for value in DEADLINES),
    ({"x-llm-d-inference-ttl": "ten minutes"}, "x-llm-d-inference-ttl"),
    ({"x-envoy-expected-rq-timeout-ms": "-1"}, "x-envoy-expected-rq-timeout-ms"),
    ({"grpc-timeout": "999999999S"}, "grpc-timeout"),
    ({"x-tenant": ""}, "X-Tenant"),
    ({"x-tenant": "a b"}, "X-Tenant"),
    ({"x-tenant": "x" * 65}, "X-Tenant"),
    ({"content-encoding": "gzip"}, "compressed"),
    ({"x-large": "x" * 20_000}, "bytes"),
    ({f"x-many-{number}": "x" for number in range(150)}, "headers"),
]

# requests that are not HTTP, or not one request
RAW = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET\r\n\r\n",
    b"POST /ask HTTP/9.9\r\nhost: a\r\n\r\n",
    b"POST /ask HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
    b"POST /ask HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    b"POST /ask HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /ask HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"POST /ask HTTP/1.1\r\nhost: a\r\nbad header\r\n\r\n",
    b"POST /" + b"x" * 9000 + b" HTTP/1.1\r\nhost: a\r\n\r\n",
]


def part_of(stand: Stand, path: str) -> Part:
    parts = {"router": stand.router, "retrieval": stand.retrieval, "worker": stand.workers[0]}
    return parts[GOOD[path][0]]


def refusal(stand: Stand, path: str, body: bytes, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """The refusal that this is to be answered with: 4xx, one envelope, not worth a retry."""
    encoded = [(name.encode(), value.encode()) for name, value in {**BEARER, **(headers or {})}.items()]
    reply = stand.http.post(f"{part_of(stand, path).url}{path}", content=body, headers=encoded)
    assert 400 <= reply.status_code < 500, (path, body[:100], headers, reply.status_code, reply.text[:300])
    assert reply.status_code not in (408, 429), (path, body[:100], reply.text[:300])
    assert reply.headers["x-should-retry"] == "false"
    error: dict[str, Any] = reply.json()["error"]
    return error


@pytest.fixture
def same_processes(stand: Stand) -> Iterator[None]:
    """Whatever comes in, nobody dies of it, nothing stays held, and good requests are served."""
    before = [part.pid for part in stand.parts]
    yield
    assert [part.pid for part in stand.parts] == before
    assert all(part.running for part in stand.parts)
    until(lambda: stand.router.metric("weir_inflight") == 0, "every place is given back")
    for path, (_, body) in GOOD.items():
        reply = stand.http.post(f"{part_of(stand, path).url}{path}", json=body, headers=BEARER)
        assert reply.status_code == 200, (path, reply.text)


@pytest.mark.parametrize("path", GOOD)
def test_a_body_that_is_no_plain_json_object_is_refused_with_the_reason(
    stand: Stand, same_processes: None, path: str
) -> None:
    for body, word in NOT_JSON:
        error = refusal(stand, path, body)
        assert word in error["message"], (path, body[:60], error)


def test_a_field_that_is_wrong_or_absurd_is_refused_by_its_name(stand: Stand, same_processes: None) -> None:
    unnamed = []
    for path, fields, name in WRONG:
        body = json.dumps({**GOOD[path][1], **fields}).encode()
        error = refusal(stand, path, body)
        if name not in str(error["param"]) and name not in error["message"]:
            unnamed.append((path, str(fields)[:80], error))
    assert unnamed == []


def test_a_header_that_cannot_be_used_is_refused_by_its_name(stand: Stand, same_processes: None) -> None:
    for headers, name in HEADERS:
        for path in ("/ask", "/v1/chat/completions", "/v1/completions"):
            error = refusal(stand, path, json.dumps(GOOD[path][1]).encode(), headers)
            assert name in str(error["param"]) or name in error["message"], (path, str(headers)[:80], error)


def test_an_unknown_route_or_method_is_4xx_on_every_part(stand: Stand, same_processes: None) -> None:
    for part in stand.parts:
        for path in ("/nothing", "/v1", "/ask/x", "/%00", "/../etc/passwd", f"/{KEY}?key={KEY}"):
            assert stand.http.post(part.url + path, content=b"{}", headers=BEARER).status_code == 404
        for method in ("POST", "DELETE", "PATCH", "TRACE"):
            assert stand.http.request(method, f"{part.url}/health", headers=BEARER).status_code == 405


def test_what_is_not_http_is_answered_with_4xx_and_the_connection_is_closed(stand: Stand, same_processes: None) -> None:
    for part in stand.parts:
        for request in RAW:
            with socket.create_connection(("127.0.0.1", part.port), WITHIN_S) as connection:
                connection.sendall(request)
                with connection.makefile("rb") as answer:
                    first = answer.readline()
                    answer.read()  # to its end: the connection is closed
            assert first.startswith(b"HTTP/1.1 4"), (part.name, request[:80], first)


def test_no_prompt_and_no_key_stands_in_any_log(stand: Stand) -> None:
    """Whole answers, streams, refusals and failures, at log level DEBUG."""
    for path, (_, body) in GOOD.items():
        url = f"{part_of(stand, path).url}{path}"
        for fields in ({}, {"stream": True}, {"max_tokens": 10**9}, {PROMPT: PROMPT}, {"top_k": PROMPT}):
            stand.http.post(url, json={**body, **fields}, headers={**BEARER, "x-tenant": "demo"})
        stand.http.post(url, content=json.dumps(body).encode()[:-1], headers={**BEARER, "x-request-id": PROMPT})
    for worker in stand.workers:
        worker.kill()
    stand.postgres.kill()
    for path in ("/ask", "/v1/chat/completions", "/v1/completions"):
        stand.http.post(f"{stand.router.url}{path}", json=GOOD[path][1], headers=BEARER)
    stand.http.post(f"{stand.retrieval.url}/retrieve", json=RETRIEVE, headers=BEARER)
    stand.restore()
    logs = [*(part.log for part in stand.parts), stand.postgres.child.log, stand.redis.child.log]
    assert [log.name for log in logs if "canary-7f3a" in log.read_text()] == []
