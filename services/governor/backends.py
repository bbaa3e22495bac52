"""What a slot is for: something that runs a payload and says what came of it.

A backend raises nothing for what can happen to it: each way to end is a `Result`. It is cancelled when its client has
gone or its time has passed, and lets go of whatever it held then.
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

RESULT_BYTES = 1_048_576  # of an answer that is passed back
FULL = (429, 503)
NOT_DONE = (Ended.FAILED, Ended.LATE)  # and neither told to come back nor left by its client
_TYPE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[\x20-\x7e]{1,127}", re.ASCII)
_TOKEN = re.compile(r"[\x21-\x7e]+", re.ASCII)  # what a header can carry


class Backend(Protocol):
    """Runs one payload at a time for each slot."""

    async def run(self, work: Work) -> Result:
        """What came of it."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...


class StubBackend:
    """Sleeps, and has nothing to say: for a demonstration of what a cap does, without a GPU."""

    def __init__(self, sleep_s: float) -> None:
        self._sleep_s = sleep_s

    async def run(self, work: Work) -> Result:
        """Sleep for as long as always."""
        if self._sleep_s:
            await asyncio.sleep(self._sleep_s)
        return Result(Ended.DONE, self._sleep_s)

    async def close(self) -> None:
        """Nothing is held."""


class HttpBackend:
    """Posts the payload, whatever it is, to one address: Weir's router by default, or a worker itself.

    The bytes are never looked into. Who they are from is said by the frame's `auth`, or for all by `api_key`. How long
    there is, is said by the header that Envoy says it with: a router takes more than its longest deadline for that
    one, and would refuse as much in a header of its own. A server that is full says so with 429 or 503, and its client
    is told to come back when that server said; any other answer that is not a success is a failure, and is shown.
    `query` is put after the pool's path, as some servers want their version said.
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
        """Post it, and read the whole answer. A job is the beginning of a trace, where traces are kept."""
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
        """Close what is idle."""
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
    """When the server wants to be asked again; 0 where it does not say."""
    for name, unit_s in ((b"retry-after-ms", 0.001), (b"retry-after", 1.0)):
        value = answer.header(name)
        if value is not None and value.isdigit() and len(value) < 10:
            return int(value) * unit_s
    return 0.0
