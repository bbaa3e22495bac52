"""One attempt at the router's front door, over HTTP, as any client would make it.

The answer is read whole: a storm asks for short ones, and what a reader of a stream would feel is not what it measures.
An attempt that is cancelled closes its connection, which is how the router learns that its client has left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from loadtests.storm.plan import Question
from services.runtime.keepalive import Pool, Reply
from services.runtime.upstream import PoolFull, UpstreamError

MOST_ANSWER_BYTES = 262_144
WORDS = "water over the weir "
QUESTIONS = (
    "When does Weir refuse a request?",
    "What is a hint?",
    "How are tenants told apart?",
    "What happens to a request whose client leaves?",
    "How is capacity shared between tenants?",
    "What is the degradation ladder?",
    "What does a worker do when it is full?",
    "How does retrieval keep its budget?",
)
"""Few, so that a cache is worth having."""
PASSAGES = 2


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of one person. `number` tells it from all others of the run."""

    tenant: str
    number: int
    deadline_s: float
    tried_before: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `code` is empty for a whole answer."""

    status: int
    code: str = ""
    hint_s: float | None = None
    should_retry: bool = False
    source: str = ""

    @property
    def served(self) -> bool:
        """Whether it is a whole answer."""
        return self.status == 200 and not self.code


class DoorLost(Exception):
    """Nothing, or nothing whole, came back."""


class Door(Protocol):
    """Where attempts are made."""

    async def ask(self, attempt: Attempt) -> Answer:
        """Until the answer is whole. Raises DoorLost."""
        ...

    def close(self) -> None:
        """No more attempts come."""
        ...


class _Error(msgspec.Struct):
    code: str = ""


class _Said(msgspec.Struct):
    error: _Error | None = None
    retrieval_source: str = ""


_read = msgspec.json.Decoder(_Said).decode
_encode = msgspec.json.Encoder().encode


class HttpDoor:
    """The router's public port."""

    def __init__(self, url: str, question: Question, connections: int) -> None:
        # one more than are ever used at once: who is counted by us must not be refused by the pool
        self._pool = Pool(url, max_connections=connections + 1, max_idle=connections)
        self._target = b"/ask" if question.route == "ask" else b"/v1/chat/completions"
        self._question = question

    async def ask(self, attempt: Attempt) -> Answer:
        """See `Door`."""
        headers = (
            (b"content-type", b"application/json"),
            (b"x-tenant", attempt.tenant.encode()),
            (b"x-weir-deadline-ms", b"%d" % (attempt.deadline_s * 1000)),
            (b"x-stainless-retry-count", b"%d" % attempt.tried_before),
        )
        try:
            with await self._pool.request(b"POST", self._target, body=self._body(attempt), headers=headers) as reply:
                return _answer(reply, await reply.read(MOST_ANSWER_BYTES))
        except PoolFull as error:
            raise DoorLost("no_connection") from error
        except UpstreamError as error:
            raise DoorLost("connection_lost" if error.sent else "no_connection") from error

    def _body(self, attempt: Attempt) -> bytes:
        question = self._question
        if question.route == "ask":
            query = QUESTIONS[attempt.number % len(QUESTIONS)]
            return _encode({"query": query, "top_k": PASSAGES, "max_tokens": question.answer_tokens})
        words = (WORDS * (question.prompt_tokens // 4)).strip()
        said = {
            "messages": [{"role": "user", "content": f"{attempt.number}: {words}"}],
            "max_tokens": question.answer_tokens,
            "ignore_eos": True,
        }
        return _encode(said)

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.close()


def _answer(reply: Reply, body: bytes) -> Answer:
    """Read with suspicion: what answers may be any server, and half of it may be missing."""
    try:
        said = _read(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Answer(reply.status, "malformed")
    if reply.status == 200:
        return Answer(200, said.error.code or "unnamed" if said.error else "", source=said.retrieval_source)
    code = (said.error.code if said.error else "") or f"status_{reply.status}"
    return Answer(reply.status, code, _hint_s(reply), reply.header(b"x-should-retry") == b"true")


def _hint_s(reply: Reply) -> float | None:
    value = reply.header(b"retry-after-ms")
    try:
        return None if value is None else min(max(float(value) / 1000, 0.0), 60.0)
    except ValueError:
        return None
