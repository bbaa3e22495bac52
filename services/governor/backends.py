"""Backends: each runs a payload in a slot and returns a `Result`.

A backend raises no error of its own: each way to end is a `Result`. It is cancelled when the client disconnects or the
deadline passes, and then releases what it holds.
"""

from __future__ import annotations

import asyncio
import base64
import math
import re
from typing import Protocol

from services.governor.job import Ended, Result, Work
from services.runtime.keepalive import Pool, Reply
from services.runtime.tracing import Attribute, Headers, Tracer
from services.runtime.upstream import UpstreamError

RESULT_BYTES = 1_048_576  # of an answer that is returned to the client
FULL = (429, 503)
NOT_DONE = (Ended.FAILED, Ended.LATE)  # neither deferred nor cancelled
_TYPE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[\x20-\x7e]{1,127}", re.ASCII)
_TOKEN = re.compile(r"[\x21-\x7e]+", re.ASCII)  # the characters that a header may contain


class Backend(Protocol):
    """Runs payloads, one for each slot."""

    async def run(self, work: Work) -> Result:
        """Run the payload and return how it ended."""
        ...

    async def close(self) -> None:
        """Release everything."""
        ...


class StubBackend:
    """Sleeps and returns no result: shows a cap without a GPU."""

    def __init__(self, sleep_s: float) -> None:
        self._sleep_s = sleep_s

    async def run(self, work: Work) -> Result:
        if self._sleep_s:
            await asyncio.sleep(self._sleep_s)
        return Result(Ended.DONE, self._sleep_s)

    async def close(self) -> None:
        """Nothing to release."""


class HttpBackend:
    """Posts the payload unparsed to one URL: the router by default, or a worker.

    The frame's `auth`, or else `api_key`, is sent as a bearer token. The remaining time is sent as
    `x-envoy-expected-rq-timeout-ms`: a router lowers a value above its longest deadline in this header, and rejects one
    in its own. 429 and 503 without `x-should-retry: false` defer the job, by the server's retry hint; any other status
    outside 2xx is a failure whose body is returned. `query` is appended to the pool's path.
    """

    def __init__(
        self, pool: Pool, *, api_key: str, within_s: float, query: str = "", tracer: Tracer | None = None
    ) -> None:
        self._pool = pool
        self._target = b"?" + query.encode("ascii") if query else b""
        self._api_key = api_key
        self._tracer = tracer
        self._within_s = within_s

    async def run(self, work: Work) -> Result:
        """Post the payload and read the whole answer. A job starts a trace, if tracing is on."""
        loop = asyncio.get_running_loop()
        began, tracer = loop.time(), self._tracer
        if tracer is None:
            return await self._run(work, began, ())
        trace, ended = tracer.begin(None, began), Ended.CANCELLED
        try:
            result = await self._run(work, began, trace.onward())
            ended = result.ended
            return result
        finally:
            value: dict[str, Attribute] = {"weir.ended": ended.value, "weir.payload_bytes": len(work.payload)}
            trace.end("job", "client", loop.time(), value, ended.value if ended in NOT_DONE else "")

    async def _run(self, work: Work, began: float, trace: Headers) -> Result:
        left_s = math.inf if work.deadline is None else work.deadline - began
        within_s = min(self._within_s, left_s)
        try:
            async with asyncio.timeout(within_s):
                return await self._posted(work, within_s, trace)
        except TimeoutError:
            return Result(
                Ended.LATE if left_s <= self._within_s else Ended.FAILED,
                shown={"error": f"no answer within {within_s:g} s"},
            )
        except UpstreamError as error:
            return Result(Ended.FAILED, shown={"error": error.public})

    async def close(self) -> None:
        """Close idle connections."""
        self._pool.close()

    async def _posted(self, work: Work, within_s: float, trace: Headers) -> Result:
        payload, headers = work.payload, [*self._headers(work, within_s), *trace]
        with await self._pool.request(b"POST", self._target, body=payload, headers=headers) as answer:
            body = await answer.read(RESULT_BYTES)
        if answer.status in FULL and answer.header(b"x-should-retry") != b"false":
            return Result(Ended.REFUSED, retry_s=_retry_s(answer))
        shown = {
            "status": answer.status,
            "content_type": (answer.header(b"content-type") or b"").decode("latin-1"),
            "body_b64": base64.b64encode(body).decode("ascii"),
        }
        return Result(Ended.DONE if 200 <= answer.status < 300 else Ended.FAILED, shown=shown)

    def _headers(self, work: Work, within_s: float) -> list[tuple[bytes, bytes]]:
        content_type = work.content_type if _TYPE.fullmatch(work.content_type) else "application/json"
        headers = [
            (b"content-type", content_type.encode("ascii")),
            (b"x-envoy-expected-rq-timeout-ms", b"%d" % max(1, math.floor(within_s * 1000))),
        ]
        token = work.auth or self._api_key
        if _TOKEN.fullmatch(token):
            headers.append((b"authorization", b"Bearer " + token.encode("ascii")))
        return headers


def _retry_s(answer: Reply) -> float:
    """The server's retry hint in seconds; 0 without one."""
    for name, unit_s in ((b"retry-after-ms", 0.001), (b"retry-after", 1.0)):
        value = answer.header(name)
        if value is not None and value.isdigit() and len(value) < 10:
            return int(value) * unit_s
    return 0.0
