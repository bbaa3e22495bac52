"""The users: they ask, wait, think and ask again. Their group sets what they do after a refusal.

Users are closed-loop: each waits for its answer, so the arrival rate falls as the service slows. This hides how long
others would have waited (coordinated omission); the open loop measures latency at a fixed rate.
"""

from __future__ import annotations

import random
from time import perf_counter
from typing import Any, ClassVar

from locust import FastHttpUser, task
from locust.contrib.fasthttp import FAILURE_EXCEPTIONS, ResponseContextManager
from locust.exception import StopTest

from loadtests.load.answer import Answer
from loadtests.load.retry import pause_s
from loadtests.scenarios.people import Group
from loadtests.users.access import Access
from loadtests.users.run import Run
from loadtests.users.verdict import Kind, Verdict, failed, judge, no_answer

CONNECT_S = 5.0
GRACE_S = 5.0  # after the deadline; then the socket is closed and the request counts as hung
SEED = 9

ASK, CHAT, STREAM = "/ask", "chat", "chat stream"
SURFACES = {"ask": ASK, "chat": CHAT, "stream": STREAM}


class Visitor(FastHttpUser):
    """One user with one question at a time."""

    abstract = True
    connection_timeout = CONNECT_S
    group: ClassVar[Group]

    def __init__(self, environment: Any) -> None:
        self.access: Access = environment.access
        forbidden = self.access.refusal(environment.host or self.host)
        if forbidden:
            raise StopTest(forbidden)
        self.run_data: Run = environment.run_data
        self.limit_s = (self.group.client_timeout_ms or self.group.deadline_ms + GRACE_S * 1000) / 1000
        self.network_timeout = self.limit_s
        self.chance = random.Random(SEED + next(self.run_data.seeds))
        self.question = ""
        self.surface = ""
        self.impatient = False
        self.tries = 0
        self.pause_s = 0.0
        super().__init__(environment)

    def wait_time(self) -> float:
        """Seconds until the next try or question."""
        return self.pause_s

    @task
    def ask(self) -> None:
        """Send the question; `pause_s` decides on a retry."""
        if not self.question:
            self.question = self.run_data.question(self.chance)
            self.surface = self.chance.choices(list(self.group.surfaces), list(self.group.surfaces.values()))[0]
            self.impatient = self.group.retries.impatient > 0 and self.chance.random() < self.group.retries.impatient
        self.tries += 1
        verdict, answer = self.put()
        pause = None if verdict.kind is Kind.SERVED else pause_s(
            self.group.retries, self.tries, refused=verdict.kind is Kind.REFUSED, should_retry=answer.should_retry,
            hint_ms=answer.hint_ms, chance=self.chance, impatient=self.impatient,
        )  # fmt: skip
        if pause is None:
            self.question, self.tries = "", 0
            pause = self.chance.uniform(*self.group.think_s)
        self.pause_s = pause

    def put(self) -> tuple[Verdict, Answer]:
        """One request to its end."""
        path, body = self._request()
        answer, began = Answer(), perf_counter()
        with self.client.post(
            path, name=self.entry, json=body, headers=self._headers(), stream="stream" in body, catch_response=True,
        ) as response:  # fmt: skip
            verdict = self._listen(response, answer, began)
            return self._settle(response, verdict, began, _milliseconds_since(began)), answer

    def _request(self) -> tuple[str, dict[str, Any]]:
        asked = {"max_tokens": self.group.max_tokens}
        if self.surface == "ask":
            return "/ask", {"query": self.question, "tenant": self.group.name, **asked}
        streamed = {"stream": True} if self.surface == "stream" else {}
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": self.question}], **asked, **streamed}

    def _listen(self, response: ResponseContextManager, answer: Answer, began: float) -> Verdict:
        if response.status_code == 0:
            return self._nothing(_milliseconds_since(began))
        answer.status = response.status_code
        for name, value in (response.headers or {}).items():
            answer.header(name.lower().encode("latin-1"), str(value).encode("latin-1"))
        try:
            if self.surface == "stream" and answer.status == 200:
                return self._streamed(response, answer, began)
            answer.body(response.content or b"")
            return judge(answer, self.surface)
        except FAILURE_EXCEPTIONS as error:
            took_ms = _milliseconds_since(began)
            return self._nothing(took_ms) if self._waited_out(took_ms) else failed(f"cut: {type(error).__name__}")

    def _streamed(self, response: ResponseContextManager, answer: Answer, began: float) -> Verdict:
        answer.streamed, source = True, response._response
        assert source is not None, "a status came from somewhere"
        while line := source.readline(b"\n"):  # the only call that returns at a line rather than a full block
            if answer.body(bytes(line)):
                self._first_token(began)
            if perf_counter() - began > self.limit_s:
                source.release()  # closes an unfinished answer
                return self._nothing(self.limit_s * 1000)
        return judge(answer, self.surface)

    def _first_token(self, began: float) -> None:
        took_ms = _milliseconds_since(began)
        self.run_data.ledger.first_token(self.run_data.stage_name(began), self.group.name, took_ms)
        self.environment.events.request.fire(
            request_type="SSE", name=f"{self.entry}: first token", response_time=took_ms, response_length=0,
            exception=None, context={},
        )  # fmt: skip

    def _settle(self, answer: ResponseContextManager, verdict: Verdict, began: float, took_ms: float) -> Verdict:
        """Record the verdict, and report it to Locust once: only answers get the surface's own name, only failures
        fail.
        """
        verdict = self.run_data.settle(self.group, SURFACES[self.surface], verdict, began, took_ms)
        answer.request_meta["response_time"] = took_ms
        if verdict.kind not in (Kind.SERVED, Kind.FAILED):
            answer.request_meta["name"] = f"{self.entry} {verdict.kind.value}"
        if verdict.kind is Kind.FAILED:
            answer.failure(verdict.detail)
        else:
            answer.success()
        return verdict

    def _nothing(self, took_ms: float) -> Verdict:
        return no_answer(self._waited_out(took_ms), patient=not self.group.client_timeout_ms)

    def _waited_out(self, took_ms: float) -> bool:
        return took_ms >= self.limit_s * 1000

    @property
    def entry(self) -> str:
        """Locust's name of the request."""
        return f"{self.group.name}: {SURFACES[self.surface]}"

    def _headers(self) -> dict[str, str]:
        return {
            **self.access.headers(self.group.name),
            "X-Weir-Deadline-Ms": str(self.group.deadline_ms),
            "x-stainless-retry-count": str(self.tries - 1),
        }


def of_group(group: Group) -> type[Visitor]:
    """A user class named after its group, because Locust counts and places users by class."""
    return type(group.name, (Visitor,), {"group": group, "abstract": False})


def _milliseconds_since(began: float) -> float:
    return (perf_counter() - began) * 1000
