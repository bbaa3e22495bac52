"""The users: they ask, wait for the answer, think, and ask again. When they are refused they obey.

Closed-loop users, like people: each waits for its answer before it asks again, so the arrival rate falls as the
service slows. That is what Locust models well; it hides how long others would have waited (coordinated omission), so
latency under an arrival rate that nothing slows is not to be read from here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter
from typing import Any

from ledger import Ledger
from locust import FastHttpUser, task
from locust.contrib.fasthttp import FAILURE_EXCEPTIONS, ResponseContextManager
from locust.exception import StopTest
from scenario import Scenario
from target import refusal
from verdict import Headers, Kind, StreamVerdict, Verdict, failed, in_time, judge_ask, judge_chat, judge_refusal

TRIES = 3  # what the openai client makes of one question, its first included
PATIENCE_S = 10.0  # a user who is told to come back later than this goes away instead
CONNECT_S = 5.0
GRACE_S = 5.0  # beyond the deadline: then the socket is given up

Judge = Callable[[int, Headers, bytes], Verdict]


@dataclass
class Run:
    """What the users of one run share. Each gets its own seeded chance, so that two runs ask the same."""

    scenario: Scenario
    questions: list[str]
    ledger: Ledger = field(default_factory=Ledger)
    seeds: Iterator[int] = field(default_factory=count)


class Visitor(FastHttpUser):
    """One person with one question at a time. A surface says how the question is put."""

    abstract = True
    connection_timeout = CONNECT_S
    surface = ""

    def __init__(self, environment: Any) -> None:
        forbidden = refusal(environment.host or self.host)
        if forbidden:
            raise StopTest(forbidden)
        self.run_data: Run = environment.run_data
        self.scenario = self.run_data.scenario
        self.network_timeout = self.scenario.deadline_ms / 1000 + GRACE_S
        self.chance = random.Random(next(self.run_data.seeds))
        self.question = ""
        self.tries = 0
        self.hint_s = 0.0
        super().__init__(environment)

    def wait_time(self) -> float:
        """As long as the refusal said, else a moment's thought."""
        return self.hint_s if self.question else self.chance.uniform(*self.scenario.think_s)

    @task
    def ask(self) -> None:
        """Put the question; after a refusal, the same one again."""
        self.question = self.question or self._another_question()
        self.tries += 1
        verdict = self.put(self.question)
        comes_back = verdict.retry and self.tries < TRIES and verdict.hint_s <= PATIENCE_S
        if comes_back:
            self.hint_s = verdict.hint_s
        else:
            self.question, self.tries = "", 0

    def put(self, question: str) -> Verdict:
        raise NotImplementedError

    def post(self, path: str, body: dict[str, Any], judge: Judge) -> Verdict:
        """One request whose answer comes whole."""
        with self.client.post(
            path, name=self.surface, json=body, headers=self._headers(), catch_response=True
        ) as answer:
            verdict = judge(answer.status_code, answer.headers or {}, answer.content or b"")
            return self.settle(answer, verdict, answer.request_meta["response_time"])

    def settle(self, answer: ResponseContextManager, verdict: Verdict, took_ms: float) -> Verdict:
        """Tell Locust and the ledger, once: a refusal is a success under its own name."""
        verdict = in_time(verdict, took_ms, self.scenario.deadline_ms)
        answer.request_meta["response_time"] = took_ms
        if verdict.kind is Kind.REFUSED:
            answer.request_meta["name"] = f"{self.surface} refused"
        if verdict.kind is Kind.FAILED:
            answer.failure(verdict.detail)
        else:
            answer.success()
        self.run_data.ledger.record(self.surface, str(verdict), took_ms)
        return verdict

    def _headers(self) -> dict[str, str]:
        return {"X-Weir-Deadline-Ms": str(self.scenario.deadline_ms)}

    def _another_question(self) -> str:
        """Few questions are asked often and many seldom (Zipf), as people do; so a cache is worth having."""
        questions = self.run_data.questions
        return self.chance.choices(questions, [1 / rank for rank in range(1, len(questions) + 1)])[0]


class Reader(Visitor):
    """Asks the documents: POST /ask."""

    weight = 2
    surface = "/ask"

    def put(self, question: str) -> Verdict:
        return self.post("/ask", {"query": question, "max_tokens": self.scenario.max_tokens}, judge_ask)


class Chatter(Visitor):
    """Talks to the model and waits for the whole answer: POST /v1/chat/completions."""

    weight = 1
    surface = "chat"

    def put(self, question: str) -> Verdict:
        return self.post("/v1/chat/completions", _chat(question, self.scenario.max_tokens), judge_chat)


class Listener(Visitor):
    """Talks to the model and reads along: the same, streamed. The first words are an entry of their own."""

    weight = 1
    surface = "chat stream"

    def put(self, question: str) -> Verdict:
        body = _chat(question, self.scenario.max_tokens) | {"stream": True}
        began = perf_counter()
        with self.client.post(
            "/v1/chat/completions", name=self.surface, json=body, headers=self._headers(), stream=True,
            catch_response=True,
        ) as answer:  # fmt: skip
            verdict = self._listen(answer, began)
            return self.settle(answer, verdict, _milliseconds_since(began))

    def _listen(self, answer: ResponseContextManager, began: float) -> Verdict:
        try:
            if answer.status_code != 200:
                return judge_refusal(answer.status_code, answer.headers or {}, answer.content or b"")
            stream = StreamVerdict(answer.headers)
            while line := answer._response.readline(b"\n"):  # the one call that returns with a line, not a full block
                if stream.feed(bytes(line)):
                    self._heard(_milliseconds_since(began))
            return stream.verdict()
        except FAILURE_EXCEPTIONS as error:
            return failed(f"stream broken: {type(error).__name__}")

    def _heard(self, took_ms: float) -> None:
        self.environment.events.request.fire(
            request_type="SSE", name=f"{self.surface}: first token", response_time=took_ms, response_length=0,
            exception=None, context={},
        )  # fmt: skip


def _chat(question: str, max_tokens: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}], "max_tokens": max_tokens}


def _milliseconds_since(began: float) -> float:
    return (perf_counter() - began) * 1000
