"""Any OpenAI-compatible server as a worker: vLLM, SGLang, llama.cpp, another Weir.

Requests and answers in the client's own format pass through; only usage, the end and errors are read. The router sets
the fields of `request_body`. Fields that change the cost or the order are held back (`parsing/fields.py`): at admission
by the rules of all servers of the model, and here by this server's, since the list may have changed. Of the client's
headers only the trace context is forwarded.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any

import msgspec

from services.contracts.generate import Message
from services.contracts.lease import LeaseAsk, LeaseGrant
from services.router.parsing.fields import MINIMUMS, Servers, judge
from services.router.parsing.parsed import Format, ParsedRequest, Special
from services.router.upstreams.call import MAX_MODELS, Attempt, Call, GrantStream, Lender, Probe, Whole, WorkerFailed
from services.router.upstreams.enginereports import EngineReports
from services.router.upstreams.openaianswer import answer_of, end_of, refusal_of, text_of, vectors_of
from services.router.upstreams.openaistream import OpenAIStream
from services.router.upstreams.refusals import UNREADABLE
from services.runtime.framing import block
from services.runtime.keepalive import Pool, Reply
from services.runtime.upstream import UpstreamError

MAX_ANSWER_BYTES = 16 * 1_048_576
MAX_ERROR_BYTES = 65_536
MAX_MODEL_CHARS = 256
MAX_VECTORS_BYTES = 64 * 1_048_576
"""Of an answer of embeddings: 2,048 vectors of 4,096 numbers, as text."""
BAD_REQUEST = 400
PROBE_ID = b"weir-probe"
"""Shows whether the server takes ids that are no UUIDs: clients choose theirs."""
LIMITS = ("max_tokens", "max_completion_tokens")
OURS = frozenset({"tenant", "stream_options"})
"""Fields that a server does not get with a plain answer."""
UNFINISHED = "the worker's answer has no finish reason: it may have been cut"

_encode = msgspec.json.Encoder().encode


class OpenAIUpstream:
    """One OpenAI-compatible server. The pool's URL is the API's root, usually ending in `/v1`.

    `desk` lends its slots, where several routers share them.
    """

    def __init__(
        self, pool: Pool, models: tuple[str, ...], api_key: str | None, *,
        allow: frozenset[str] = frozenset(), salted: bool = False, reports: EngineReports | None = None,
        desk: Lender | None = None,
    ) -> None:  # fmt: skip
        self._desk = desk
        self._servers = Servers(allow=allow)
        self._salted = salted
        self._reports = reports
        self._takes_ids = True
        self._pool = pool
        self._models = models
        headers = [(b"content-type", b"application/json")]
        self._secret = (api_key or "").encode()
        if api_key:
            headers.append((b"authorization", b"Bearer " + api_key.encode()))
        self._lines = block(headers)

    async def whole(self, call: Call, attempt: Attempt) -> Whole:
        reply = await self._post(call, attempt)
        if call.parsed.special is not None:
            return await _special_whole(reply, call.parsed.format, call.parsed.special)
        with reply:
            body = await reply.read(MAX_ANSWER_BYTES)
        answer = answer_of(body)
        if not answer.choices:
            raise WorkerFailed("the worker's answer has no choices")
        choice = answer.choices[0]
        if choice.finish_reason is None:
            raise WorkerFailed(UNFINISHED)
        return Whole(text_of(choice), end_of(choice.finish_reason, answer.usage), raw=body)

    async def open(self, call: Call, attempt: Attempt) -> OpenAIStream:
        reply = await self._post(call, attempt)
        if (reply.header(b"content-type") or b"").lower().startswith(b"application/json"):
            with reply:
                answer_of(await reply.read(MAX_ANSWER_BYTES))  # most likely an error under status 200
            raise WorkerFailed("the worker sent one response where a stream was requested")
        return OpenAIStream(reply, call)

    async def _post(self, call: Call, attempt: Attempt) -> Reply:
        parsed = call.parsed
        target = b"/completions" if parsed.format is Format.COMPLETIONS else b"/chat/completions"
        if parsed.special is not None:
            judge(parsed, self._servers)
            target = b"/embeddings" if parsed.format is Format.EMBEDDINGS else target
        id = b"x-request-id: %b\r\n" % call.id.encode("ascii") if self._takes_ids else b""
        lines = b"%b%bx-weir-deadline-ms: %d\r\n" % (self._lines, id, max(1, attempt.remaining_ms))
        body = parsed.sent
        if self._salted or not is_as_sent(call):
            body = _encode(request_body(call, salted=self._salted))
        reply = await self._pool.request(b"POST", target, body=body, headers=attempt.trace, lines=lines)
        if reply.status == 200:
            return reply
        with reply:
            answer = await reply.read(MAX_ERROR_BYTES)
            raise refusal_of(reply, answer.replace(self._secret, b"[key]") if self._secret else answer)

    async def cancel(self, attempt_id: str) -> None:
        """OpenAI has no such call; the closed connection cancels."""

    async def probe(self) -> Probe:
        """Any status below 500 counts as alive: not every server has a /models that works without a key.

        The engine's own report is read meanwhile, and cannot make the probe fail.
        """
        if self._reports is None or not self._reports.due:
            return Probe(0, await self._listed())
        asking = asyncio.create_task(self._reports.ask())
        try:
            models = await self._listed()
            report = await asking
        finally:
            asking.cancel()
        if report is None:
            return Probe(0, models)
        return Probe(report.slots or 0, models, batch=report.running, report=report)

    async def _listed(self) -> tuple[str, ...]:
        status, body = await self._get_models()
        if status == BAD_REQUEST:  # llama-cpp-python rejects every id that is no UUID, without a word
            self._takes_ids = not self._takes_ids
            status, body = await self._get_models()
            if status == BAD_REQUEST:
                self._takes_ids = True  # then it was not the id
        if status >= 500:
            raise UpstreamError(f"/models answered {status}")
        return self._models or _model_ids(body)

    async def _get_models(self) -> tuple[int, bytes]:
        named = [(b"x-request-id", PROBE_ID)] if self._takes_ids else []
        reply = await self._pool.request(b"GET", b"/models", headers=named, lines=self._lines)
        with reply:
            return reply.status, await reply.read(MAX_ANSWER_BYTES)

    async def lease(self, ask: LeaseAsk) -> LeaseGrant:
        assert self._desk is not None, "a server without a desk was asked for slots"
        return await self._desk.lease(ask)

    async def grants(self, router: str, epoch: int) -> GrantStream:
        assert self._desk is not None, "a server without a desk was asked for slots"
        return await self._desk.grants(router, epoch)

    async def lease_status(self) -> int:
        assert self._desk is not None, "a server without a desk was asked whether it lends"
        return await self._desk.lease_status()

    def give_up(self, why: str) -> None:
        self._pool.fail_unanswered(why)

    def close(self) -> None:
        self._pool.retire()
        if self._reports is not None:
            self._reports.close()
        if self._desk is not None:
            self._desk.close()


async def _special_whole(reply: Reply, format: Format, special: Special) -> Whole:
    """An answer of vectors, or of several choices."""
    vectors = format is Format.EMBEDDINGS
    with reply:
        body = await reply.read(MAX_VECTORS_BYTES if vectors else MAX_ANSWER_BYTES)
    if vectors:
        return Whole("", end_of("stop", vectors_of(body).usage), raw=body)
    answer = answer_of(body, special.choices)
    reasons = [choice.finish_reason for choice in answer.choices]
    if not reasons:
        raise WorkerFailed("the worker's answer has no choices")
    if None in reasons:
        raise WorkerFailed(UNFINISHED)
    reason = "length" if "length" in reasons else str(reasons[0])
    return Whole(text_of(answer.choices[0]), end_of(reason, answer.usage), raw=body)


def is_as_sent(call: Call) -> bool:
    """Whether the client's own body says what `request_body` would: then its bytes are sent, and nothing is encoded."""
    parsed, limit = call.parsed, call.limit_tokens
    body: dict[str, Any] | None = parsed.body
    if body is None or not parsed.sent or parsed.stream or parsed.special is not None:
        return False
    limits = [body[name] for name in LIMITS if name in body]
    return (
        body.get("model") == call.model
        and limits == ([] if limit is None else [limit])
        and body.get("stream", False) is False
        and OURS.isdisjoint(body)
    )


def request_body(call: Call, *, salted: bool = False) -> dict[str, Any]:
    """The client's fields, the model, exact usage, and the granted limit if there is one; `salted`: with the salt."""
    parsed = call.parsed
    if parsed.format is Format.ASK:
        body: dict[str, Any] = {"messages": _plain(call.messages or [])}
    else:
        body = dict(parsed.body or {})
        body.pop("tenant", None)
    body["model"] = call.model
    if salted:
        body["cache_salt"] = cache_salt(call.tenant, body.get("cache_salt"))
    longest = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    for name in LIMITS:
        body.pop(name, None)  # only one is sent, since some servers reject two that differ
    if (limit := call.limit_tokens) is not None:
        body[longest] = limit
    body["stream"] = stream = parsed.stream
    if stream:
        body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
    else:
        body.pop("stream_options", None)
    return body if parsed.special is None else _special_body(body, parsed, parsed.special, longest)


def _special_body(body: dict[str, Any], parsed: ParsedRequest, special: Special, longest: str) -> dict[str, Any]:
    """The body of a special request: the least length within the granted one; vectors have no length."""
    if parsed.format is Format.EMBEDDINGS:
        own = {name: value for name, value in (parsed.body or {}).items() if name != "tenant"}
        return {**own, **{name: body[name] for name in ("model", "cache_salt") if name in body}}
    limit = body.get(longest)
    for name in MINIMUMS:
        if limit is not None and (body.get(name) or 0) > limit:
            body[name] = limit
    if special.no_answer:
        body[longest] = 0
    return body


def cache_salt(tenant: str, own: str | None) -> str:
    """The tenant's salt, or that of a namespace `own` within it.

    A server with a shared prefix cache answers sooner if another request had the same prefix, which reveals other
    tenants' prompts by timing. No value of a client leads to another tenant's salt, since a tenant's id has no NUL.
    """
    return sha256(f"{tenant}\0{own or ''}".encode("utf-8", "replace")).hexdigest()


def _plain(messages: list[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def _model_ids(body: bytes) -> tuple[str, ...]:
    try:
        ids = [str(model["id"]) for model in msgspec.json.decode(body)["data"]]
    except (*UNREADABLE, KeyError, TypeError) as error:
        raise UpstreamError(f"/models has an unexpected format ({error}); list its models in the worker list") from None
    return tuple(dict.fromkeys(id for id in ids if 0 < len(id) <= MAX_MODEL_CHARS))[:MAX_MODELS]
