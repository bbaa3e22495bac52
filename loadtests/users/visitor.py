"""The users: they ask, wait for the answer, think, and ask again. What they do when they are refused is their group's.

Closed-loop users, like people: each waits for its answer before it asks again, so the arrival rate falls as the
service slows. That is what Locust models well; it hides how long others would have waited (coordinated omission), so
latency under an arrival rate that nothing slows is not to be read from here.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from time import perf_counter
from typing import Any, ClassVar, cast

from locust import FastHttpUser, task
from locust.contrib.fasthttp import FAILURE_EXCEPTIONS, ResponseContextManager
from locust.exception import StopTest

from loadtests.scenarios.people import Group
from loadtests.users.access import Access
from loadtests.users.returning import again_in
from loadtests.users.run import Run
from loadtests.users.verdict import (
    Kind,
    StreamVerdict,
    Verdict,
    failed,
    judge_ask,
    judge_chat,
    judge_refusal,
    no_answer,
)

CONNECT_S = 5.0
GRACE_S = 5.0  # beyond the deadline: then the socket is given up, and the request counts as hung
SEED = 9

ASK, CHAT, STREAM = "/ask", "chat", "chat stream"
SURFACES = {"ask": ASK, "chat": CHAT, "stream": STREAM}


class Visitor(FastHttpUser):
    """One person with one question at a time, of the kind that its group says."""

    abstract = True
    connection_timeout = CONNECT_S
    group: ClassVar[Group]

    def __init__(self, environment: Any) -> None:
        self.access: Access = environment.access
        forbidden = self.access.refusal(environment.host or self.host)
        if forbidden:
            raise StopTest(forbidden)
        self.run_data: Run = environment.run_data
        self.limit_s = (self.group.patience_ms or self.group.deadline_ms + GRACE_S * 1000) / 1000
        self.network_timeout = self.limit_s
        self.chance = random.Random(SEED + next(self.run_data.seeds))
        self.question = ""
        self.surface = ""
        self.tries = 0
        self.pause_s = 0.0
        super().__init__(environment)

    def wait_time(self) -> float:
        """Until the question is asked once more, or the next one."""
        return self.pause_s

    @task
    def ask(self) -> None:
        """Put the question; whether it is put again is for `returning` to say."""
        if not self.question:
            self.question = self.run_data.question(self.chance)
            self.surface = self.chance.choices(list(self.group.surfaces), list(self.group.surfaces.values()))[0]
        self.tries += 1
        verdict = self.put()
        again_in_s = again_in(self.group.retries, verdict, self.tries, self.chance)
        if again_in_s is None:
            self.question, self.tries = "", 0
            self.pause_s = self.chance.uniform(*self.group.think_s)
        else:
            self.pause_s = again_in_s

    def put(self) -> Verdict:
        """One request, to its end."""
        if self.surface == "ask":
            body = {"query": self.question, "tenant": self.group.name, "max_tokens": self.group.max_tokens}
            return self._whole("/ask", body)
        body = {"messages": [{"role": "user", "content": self.question}], "max_tokens": self.group.max_tokens}
        if self.surface == "chat":
            return self._whole("/v1/chat/completions", body)
        return self._streamed(body | {"stream": True})

    def _whole(self, path: str, body: dict[str, Any]) -> Verdict:
        began = perf_counter()
        with self.client.post(
            path, name=self.entry, json=body, headers=self._headers(), catch_response=True
        ) as answer:  # fmt: skip
            took_ms = _milliseconds_since(began)
            judge = judge_ask if self.surface == "ask" else judge_chat
            if answer.status_code == 0:
                verdict = self._nothing(took_ms)
            else:
                verdict = judge(answer.status_code, answer.headers or {}, answer.content or b"")
            return self._settle(answer, verdict, began, took_ms)

    def _streamed(self, body: dict[str, Any]) -> Verdict:
        began = perf_counter()
        with self.client.post(
            "/v1/chat/completions", name=self.entry, json=body, headers=self._headers(), stream=True,
            catch_response=True,
        ) as answer:  # fmt: skip
            verdict = self._listen(answer, began)
            return self._settle(answer, verdict, began, _milliseconds_since(began))

    def _listen(self, answer: ResponseContextManager, began: float) -> Verdict:
        if answer.status_code == 0:
            return self._nothing(_milliseconds_since(began))
        try:
            if answer.status_code != 200:
                return judge_refusal(answer.status_code, _headers_of(answer), answer.content or b"")
            stream, source = StreamVerdict(_headers_of(answer)), answer._response
            assert source is not None, "a status came from somewhere"
            while line := source.readline(b"\n"):  # the one call that returns with a line, not a full block
                if stream.feed(bytes(line)):
                    self._heard(began)
                if perf_counter() - began > self.limit_s:
                    source.release()  # closes what was not read to its end
                    return self._nothing(self.limit_s * 1000)
            return stream.verdict()
        except FAILURE_EXCEPTIONS as error:
            took_ms = _milliseconds_since(began)
            return self._nothing(took_ms) if self._waited_out(took_ms) else failed(f"cut: {type(error).__name__}")

    def _heard(self, began: float) -> None:
        took_ms = _milliseconds_since(began)
        self.run_data.ledger.heard(self.run_data.stage_name(began), self.group.name, took_ms)
        self.environment.events.request.fire(
            request_type="SSE", name=f"{self.entry}: first token", response_time=took_ms, response_length=0,
            exception=None, context={},
        )  # fmt: skip

    def _settle(self, answer: ResponseContextManager, verdict: Verdict, began: float, took_ms: float) -> Verdict:
        """Tell the books, and Locust once: only an answer has the surface's own name, and only a failure fails."""
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
        return no_answer(self._waited_out(took_ms), patient=not self.group.patience_ms)

    def _waited_out(self, took_ms: float) -> bool:
        return took_ms >= self.limit_s * 1000

    @property
    def entry(self) -> str:
        """The name under which Locust counts it."""
        return f"{self.group.name}: {SURFACES[self.surface]}"

    def _headers(self) -> dict[str, str]:
        return {
            **self.access.headers(self.group.name),
            "X-Weir-Deadline-Ms": str(self.group.deadline_ms),
            "x-stainless-retry-count": str(self.tries - 1),
        }


def of_group(group: Group) -> type[Visitor]:
    """Locust counts and places users by their class: one for each group, under its name."""
    return type(group.name, (Visitor,), {"group": group, "abstract": False})


def _headers_of(answer: ResponseContextManager) -> Mapping[str, str]:
    return cast(Mapping[str, str], answer.headers or {})


def _milliseconds_since(began: float) -> float:
    return (perf_counter() - began) * 1000
