"""Client of the retrieval service: passages within a time budget, or none; never an error and never late."""

from __future__ import annotations

import asyncio

import msgspec

from services.contracts.answer import RetrievalSource
from services.contracts.problem import Problem
from services.contracts.search import EmbedReply, EmbedRequest, Passage, RetrieveReply, RetrieveRequest
from services.core.outcome import Outcome
from services.runtime.errors import BadInput, Refused, UpstreamFailed, WeirError
from services.runtime.keepalive import Pool
from services.runtime.upstream import PoolFull, UpstreamError, readable

MAX_REPLY_BYTES = 8 * 1_048_576
WIRE_RESERVE_MS = 10.0  # of the budget, for the network
MIN_BUDGET_MS = 1.0
MIN_EFFORT = 0.01  # a search needs some work, whatever the ladder's level
LOOK_S = 1.0
LOOK_WITHIN_S = 1.0
REFUSED_BY_STATUS = {429: Outcome.YIELD, 503: Outcome.NO_CAPACITY, 504: Outcome.DEADLINE_EXCEEDED}

Headers = tuple[tuple[bytes, bytes], ...]
_HEADERS: Headers = ((b"content-type", b"application/json"),)
_encode = msgspec.json.Encoder().encode
_reply = msgspec.json.Decoder(RetrieveReply)
_embed_reply = msgspec.json.Decoder(EmbedReply)
_problem = msgspec.json.Decoder(Problem)


class _Health(msgspec.Struct):
    degraded: list[str] = []


_health = msgspec.json.Decoder(_Health)


class Found(msgspec.Struct, frozen=True):
    """The result of a retrieval. `source` "none": the budget ran out, or the store is down."""

    source: RetrievalSource
    passages: list[Passage] = []
    reason: str | None = None
    seconds: float = 0.0


class RetrievalClient:
    """Calls the retrieval service. Its failure costs context, never the answer."""

    def __init__(self, url: str, max_connections: int, token: bytes = b"") -> None:
        self._pool = Pool(url, max_connections=max_connections, token=token)
        self.answers = True
        """Whether the service answered when it was last looked at; without it there are no passages."""

    async def retrieve(
        self, query: str, tenant: str, top_k: int, cache_ttl_s: float, budget_ms: float, effort: float = 1.0,
        trace: Headers = (),
    ) -> Found:  # fmt: skip
        """Passages within `budget_ms` from now, whatever the service does; none at once while it is known to be down.

        `effort` is the share of the usual search work. A cancellation closes the connection, which stops the search.
        """
        if not self.answers:
            return Found("none", reason="retrieval_unavailable")
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(max(budget_ms, MIN_BUDGET_MS) / 1000):
                inner_ms = max(budget_ms - WIRE_RESERVE_MS, budget_ms / 2, MIN_BUDGET_MS)
                work = max(effort, MIN_EFFORT)
                request = RetrieveRequest(query, tenant, top_k, cache_ttl_s, inner_ms, work)
                reply = _reply.decode(await self._post(b"/retrieve", _encode(request), trace))
        except TimeoutError:
            return Found("none", reason="retrieval_timeout", seconds=loop.time() - began)
        except (UpstreamError, WeirError, msgspec.MsgspecError):
            return Found("none", reason="retrieval_unavailable", seconds=loop.time() - began)
        return Found(reply.source, reply.results, reply.reason, loop.time() - began)

    async def embed(self, texts: list[str], trace: Headers = ()) -> EmbedReply:
        """Vectors for `/v1/embeddings`; the caller bounds the time. Raises BadInput, Refused or UpstreamFailed."""
        try:
            return _embed_reply.decode(await self._post(b"/embed", _encode(EmbedRequest(texts)), trace))
        except (UpstreamError, msgspec.MsgspecError) as error:
            raise UpstreamFailed("the embedder cannot be reached", why=str(error)) from None

    async def documents(
        self, method: bytes, target: bytes, tenant: str, body: bytes = b"", more: Headers = ()
    ) -> tuple[int, bytes]:
        """Status and body of a call of `/documents`; the caller bounds the time. Raises as `embed` does."""
        headers = (*_HEADERS, (b"x-tenant", tenant.encode()), *more)
        try:
            return await self._call(method, target, body, headers)
        except (UpstreamError, msgspec.MsgspecError) as error:
            raise UpstreamFailed("the document store cannot be reached", why=str(error)) from None

    async def _post(self, target: bytes, body: bytes, trace: Headers) -> bytes:
        return (await self._call(b"POST", target, body, (*_HEADERS, *trace) if trace else _HEADERS))[1]

    async def _call(self, method: bytes, target: bytes, body: bytes, headers: Headers) -> tuple[int, bytes]:
        with await self._pool.request(method, target, body=body, headers=headers) as reply:
            answer = await reply.read(MAX_REPLY_BYTES)
        if reply.status < 300:
            return reply.status, answer
        error = _problem.decode(answer).error
        outcome = REFUSED_BY_STATUS.get(reply.status)
        if outcome is not None:
            details = error.details
            reason = details.reason or "retrieval_busy"
            words = readable(error.message)
            raise Refused(outcome, words, reason=reason, scope=details.scope, retry_hint_ms=details.retry_hint_ms)
        if reply.status < 500:
            raise BadInput(readable(error.message), error.param, status=reply.status, code=error.code)
        raise UpstreamError(error.message)

    async def lacking(self) -> list[str]:
        """The parts that retrieval reports as degraded. Runs in the background, never before a request."""
        try:
            async with asyncio.timeout(LOOK_WITHIN_S):
                with await self._pool.request(b"GET", b"/health/ready") as reply:
                    health = _health.decode(await reply.read(MAX_REPLY_BYTES))
        except PoolFull:  # no connection left here: the service was not asked
            return [] if self.answers else ["retrieval"]
        except (UpstreamError, msgspec.MsgspecError, TimeoutError):
            self.answers = False
            return ["retrieval"]
        self.answers = True
        return health.degraded if reply.status == 200 else ["retrieval", *health.degraded]

    def close(self) -> None:
        self._pool.close()


class RetrievalWatch:
    """Polls the retrieval service's health, so that /health/ready never waits for it."""

    def __init__(self, client: RetrievalClient) -> None:
        self._client = client
        self._task: asyncio.Task[None] | None = None
        self.lacking = ["retrieval"]

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._client.close()

    async def _watch(self) -> None:
        while True:
            self.lacking = await self._client.lacking()
            await asyncio.sleep(LOOK_S / 8 if self.lacking else LOOK_S)
