"""A Weir worker: `POST /generate` with newline-delimited events, and `/status`."""

from __future__ import annotations

import msgspec

from services.contracts.generate import LONGEST_TOKENS, Done, Event, Failed, GenerateRequest, Token, WorkerStatus
from services.contracts.lease import LeaseAsk, LeaseGrant
from services.contracts.problem import Problem
from services.router.parsing.fields import Servers, judge
from services.router.upstreams.call import Attempt, Busy, Call, Delta, End, Probe, Whole, WorkerFailed
from services.router.upstreams.refusals import ENDS, UNREADABLE, meaning
from services.runtime.cut import Cut
from services.runtime.keepalive import Pool, Reply
from services.runtime.upstream import AnswerTooLarge, Truncated, UpstreamError

ONLY_WEIR = Servers(weir=True, allow=None)
MAX_ANSWER_BYTES = 16 * 1_048_576
MAX_LINE_BYTES = 1_048_576
MAX_PROBLEM_BYTES = 65_536

_JSON = (b"content-type", b"application/json")
_encode = msgspec.json.Encoder().encode
_event = msgspec.json.Decoder(Event)
_status = msgspec.json.Decoder(WorkerStatus)
_problem = msgspec.json.Decoder(Problem)
_grant = msgspec.json.Decoder(LeaseGrant)


class WeirUpstream:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def whole(self, call: Call, attempt: Attempt) -> Whole:
        reply = await self._post(call, attempt)
        with reply:
            body = await reply.read(MAX_ANSWER_BYTES)
        event = _decoded(body)
        if isinstance(event, Failed):
            raise meaning(event.code, event.message)
        if not isinstance(event, Done) or event.text is None:
            raise UpstreamError("the worker's response contains no text")
        return Whole(event.text, _end(event, call.limit_tokens, has_text=bool(event.text)))

    async def open(self, call: Call, attempt: Attempt) -> WeirStream:
        return WeirStream(await self._post(call, attempt), call.limit_tokens)

    async def _post(self, call: Call, attempt: Attempt) -> Reply:
        if call.parsed.special is not None:  # judged at admission, but the worker list may have changed
            judge(call.parsed, ONLY_WEIR)
        body = _encode(_request(call, attempt))
        id = call.id.encode("ascii")
        headers = (_JSON, (b"x-request-id", id), *attempt.trace)
        reply = await self._pool.request(b"POST", b"/generate", body=body, headers=headers)
        named = reply.header(b"x-request-id")
        if named != id and (named is not None or reply.status == 200):  # a proxy that refuses for the worker names none
            reply.discard()
            raise UpstreamError("the worker's response belongs to another request")
        if reply.status == 200:
            return reply
        with reply:
            raise refusal_of(reply.status, await reply.read(MAX_PROBLEM_BYTES))

    async def cancel(self, attempt_id: str) -> None:
        reply = await self._pool.request(b"POST", b"/cancel/" + attempt_id.encode("ascii"))
        with reply:
            await reply.read(MAX_PROBLEM_BYTES)

    async def probe(self) -> Probe:
        reply = await self._pool.request(b"GET", b"/status")
        with reply:
            body = await reply.read(MAX_PROBLEM_BYTES)
        if reply.status != 200:
            raise UpstreamError(f"/status answered {reply.status}")
        try:
            status = _status.decode(body)
        except UNREADABLE as error:
            raise UpstreamError(f"/status has an unexpected format: {error}") from None
        return Probe(
            status.slots, tuple(status.models), status.draining,
            kv_tokens=status.kv_tokens, step_ms=status.step_ms, prefill_ms_per_token=status.prefill_ms_per_token,
            batch=status.running,
        )  # fmt: skip

    async def lease(self, ask: LeaseAsk) -> LeaseGrant:
        reply = await self._pool.request(b"POST", b"/lease", body=_encode(ask), headers=(_JSON,))
        with reply:
            body = await reply.read(MAX_PROBLEM_BYTES)
        if reply.status != 200:
            raise UpstreamError(f"/lease answered {reply.status}")
        return _granted(body)

    async def lease_status(self) -> int:
        """As of `Lender`."""
        reply = await self._pool.request(b"GET", b"/lease")
        with reply:
            await reply.read(MAX_PROBLEM_BYTES)
        return reply.status

    async def grants(self, router: str, epoch: int) -> WeirGrants:
        target = b"/lease/%b?epoch=%d" % (router.encode("ascii"), epoch)
        reply = await self._pool.request(b"GET", target)
        if reply.status == 200:
            return WeirGrants(reply)
        with reply:
            await reply.read(MAX_PROBLEM_BYTES)
        raise UpstreamError(f"the stream of grants answered {reply.status}")

    def give_up(self, why: str) -> None:
        self._pool.fail_unanswered(why)

    def close(self) -> None:
        self._pool.retire()


def _request(call: Call, attempt: Attempt) -> GenerateRequest:
    parsed = call.parsed
    return GenerateRequest(
        id=attempt.id,
        tenant=call.tenant,
        deadline_ms=attempt.remaining_ms,
        max_tokens=call.limit_tokens,
        prompt=parsed.prompt,
        messages=call.messages,
        model=call.model,
        stream=parsed.stream,
        temperature=1.0 if parsed.temperature is None else parsed.temperature,
        top_p=1.0 if parsed.top_p is None else parsed.top_p,
        stop=list(parsed.stop),
        seed=parsed.seed,
        ignore_eos=parsed.ignore_eos,
        lease=attempt.lease,
    )


def _decoded(line: bytes) -> Event:
    try:
        event: Event = _event.decode(line)
    except UNREADABLE as error:
        raise UpstreamError(f"the worker's response has an unexpected format: {error}") from None
    return event


def _end(done: Done, max_tokens: int | None, *, has_text: bool) -> End:
    """The end of an answer. Raises UpstreamError for impossible counts, since shares and rates are charged by them."""
    usage = done.usage
    max_tokens = LONGEST_TOKENS if max_tokens is None else max_tokens
    if not int(has_text) <= usage.completion_tokens <= max_tokens:
        raise UpstreamError(f"the worker reports {usage.completion_tokens} tokens, above the granted {max_tokens}")
    return End(
        done.finish_reason,
        usage.prompt_tokens,
        usage.completion_tokens,
        done.timings.queue_ms,
        done.timings.first_token_ms,
        done.lease,
    )


def _granted(line: bytes) -> LeaseGrant:
    try:
        grant: LeaseGrant = _grant.decode(line)
    except UNREADABLE as error:
        raise UpstreamError(f"the worker's grant has an unexpected format: {error}") from None
    return grant


def refusal_of(status: int, body: bytes) -> Exception:
    """The exception for an error status: Busy, BadInput, or the worker's failure."""
    try:
        error = _problem.decode(body).error
    except UNREADABLE:
        return WorkerFailed(f"the worker answered {status} without a reason")
    if status in (429, 503) and error.code not in ENDS:
        delay_ms = error.details.predicted_wait_ms or error.details.retry_hint_ms or 0
        return Busy(delay_ms, draining=error.code == "draining")
    return meaning(error.code, error.message, error.param, status)


class WeirStream:
    """Events of one answer; those that arrive together become one delta."""

    def __init__(self, reply: Reply, max_tokens: int | None) -> None:
        self.end: End | None = None
        self.tail: list[bytes] = []
        self._reply = reply
        self._cut = Cut(b"\n")
        self._over = self._has_text = False
        self._max_tokens = max_tokens

    async def next(self) -> Delta | None:
        if self._over:
            return None
        texts: list[str] = []
        while not texts and not self._over:
            piece = await self._reply.next_piece()
            if piece is None:
                raise Truncated("the worker's stream ended without its last event")
            lines = self._cut.take(piece)
            if self._cut.waiting > MAX_LINE_BYTES:
                raise AnswerTooLarge(f"an event exceeds {MAX_LINE_BYTES} bytes")
            if lines:
                for line in lines[:-1].split(b"\n"):
                    self._take(_decoded(line), texts)
        return Delta("".join(texts)) if texts else None

    def _take(self, event: Event, texts: list[str]) -> None:
        if self._over:
            raise UpstreamError("the worker sent an event after its last one")
        if isinstance(event, Token):
            texts.append(event.text)
            self._has_text = self._has_text or bool(event.text)
        elif isinstance(event, Done):
            if event.text is not None:
                raise UpstreamError("the worker sent one response where a stream was requested")
            self.end = _end(event, self._max_tokens, has_text=self._has_text)
            self._over = True
            self._reply.linger()
        else:
            raise meaning(event.code, event.message)

    def close(self) -> None:
        self._reply.close()


class WeirGrants:
    """The grants of one worker to this router. Values are absolute: of those that arrive together the last counts."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._cut = Cut(b"\n")

    async def next(self) -> LeaseGrant | None:
        while True:
            piece = await self._reply.next_piece()
            if piece is None:
                return None
            lines = self._cut.take(piece)
            if self._cut.waiting > MAX_LINE_BYTES:
                raise AnswerTooLarge(f"a grant exceeds {MAX_LINE_BYTES} bytes")
            if lines:
                return _granted(lines[:-1].rpartition(b"\n")[2])

    def close(self) -> None:
        self._reply.close()
