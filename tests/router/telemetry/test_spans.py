"""A request's steps stand in its trace: one span for each, below the right one, across the services that it reaches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from services.contracts.generate import GenerateRequest
from services.runtime.http import Exchange
from services.runtime.tracing import FinishedTrace, Sampling, Span, Tracer
from tests.router.rig import FakeRetrieval, FakeWorker, Stand, answer, cut_after, failing, hang, passage, standing, then
from tests.runtime.rig import until
from tests.runtime.test_tracing import GOOD, SPAN, TRACE, Kept
from tests.virtual import run

CLIENTS_OWN = {"traceparent": GOOD.decode(), "tracestate": "vendor=1"}


class Heard(FakeWorker):
    """A worker that remembers with which context it was asked."""

    contexts: list[tuple[str, str]]

    def __init__(self, script: Any = answer, **fields: Any) -> None:
        self.contexts = []

        async def heard(exchange: Exchange, request: GenerateRequest, worker: FakeWorker) -> None:
            parent, state = exchange.header(b"traceparent"), exchange.header(b"tracestate")
            self.contexts.append(((parent or b"").decode(), (state or b"").decode()))
            await script(exchange, request, worker)

        super().__init__(heard, **fields)


class HeardRetrieval(FakeRetrieval):
    """Retrieval that does, too."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.contexts: list[str] = []

    async def retrieve(self, exchange: Exchange) -> None:
        self.contexts.append((exchange.header(b"traceparent") or b"").decode())
        await super().retrieve(exchange)


@asynccontextmanager
async def traced(
    *workers: FakeWorker, sampling: Sampling | None = "parentbased_always_on", **chosen: Any
) -> AsyncIterator[tuple[Stand, Kept]]:
    """A router that traces into a list."""
    kept = Kept()
    async with standing(*workers, **chosen) as stand:
        stand.router.listener.app.tracer = None if sampling is None else Tracer(kept, sampling)  # type: ignore[attr-defined]
        yield stand, kept


async def told(kept: Kept, requests: int = 1) -> list[FinishedTrace]:
    """What was told of so many requests; an answer is here before its request has quite ended."""
    await until(lambda: len(kept.told) == requests, "the trace is told")
    return kept.told


def by_name(one: FinishedTrace) -> dict[str, Span]:
    return {span.name: span for span in one.spans}


def check_tree(one: FinishedTrace) -> None:
    """Each step is below the request, and within it."""
    own, *steps = one.spans
    for span in steps:
        assert span.parent_id == own.span_id
        assert own.began_at <= span.began_at <= span.ended_at <= own.ended_at, span


def test_an_answer_with_passages_has_a_span_for_every_step() -> None:
    async def main() -> None:
        worker, retrieval = Heard(), HeardRetrieval(passages=[passage(1)])
        async with traced(worker, retrieval=retrieval) as (stand, kept):
            answered = await stand.post("/ask", {"query": "Why?", "tenant": "acme", "stream": True}, **CLIENTS_OWN)
            assert answered.text.endswith("data: [DONE]\n\n")
            (one,) = await told(kept)
        steps = by_name(one)
        assert list(steps) == ["POST /ask", "admission", "retrieval", "chat fake", "queue", "stream"]
        check_tree(one)
        own, chat, looked_up = steps["POST /ask"], steps["chat fake"], steps["retrieval"]
        assert (one.trace_id, own.parent_id, own.kind) == (TRACE, SPAN, "server")
        assert worker.contexts == [(f"00-{TRACE}-{chat.span_id}-01", "vendor=1")]
        assert retrieval.contexts == [f"00-{TRACE}-{looked_up.span_id}-01"]
        assert looked_up.attributes == {"weir.source": "db", "weir.passages": 1}
        assert steps["admission"].attributes["weir.decision"] == "admit"
        assert steps["queue"].attributes == {"weir.class": "default", "weir.ready_at_once": False}
        assert steps["stream"].began_at >= chat.began_at

    run(main)


def test_a_call_of_a_model_has_the_names_that_opentelemetry_gives_it() -> None:
    async def main() -> None:
        async with traced(Heard()) as (stand, kept):
            await stand.chat(temperature=0.5, seed=7, max_tokens=40, headers={"x-tenant": "acme"})
            (one,) = await told(kept)
            port = stand.workers[0].port
        own, chat = one.spans[0], by_name(one)["chat fake"]
        assert chat.kind == "client"
        remaining = chat.attributes.pop("weir.remaining_ms")
        assert 0 < float(str(remaining)) <= 30_000
        assert chat.attributes == {
            "gen_ai.operation.name": "chat", "gen_ai.provider.name": "weir", "gen_ai.request.model": "fake",
            "gen_ai.request.max_tokens": 40, "gen_ai.request.temperature": 0.5, "gen_ai.request.seed": 7,
            "gen_ai.response.finish_reasons": ("stop",), "gen_ai.usage.input_tokens": 7,
            "gen_ai.usage.output_tokens": 3, "server.address": "127.0.0.1", "server.port": port,
            "weir.worker": "worker-0", "weir.attempt": 1,
        }  # fmt: skip
        assert own.attributes["weir.tenant"] == "acme"
        assert own.attributes["weir.outcome"] == "served"
        assert own.attributes["weir.level"] == 0
        assert own.attributes["weir.deadline_ms"] == 30_000
        assert not any(name.startswith("gen_ai.usage") for name in own.attributes), "tokens are told once"

    run(main)


def test_a_retry_is_a_second_call_and_the_first_says_why_it_failed() -> None:
    async def main() -> None:
        once = then(failing(), answer)
        workers = [Heard(once), Heard(once)]
        async with traced(*workers) as (stand, kept):
            assert (await stand.chat()).status_code == 200
            (one,) = await told(kept)
        heard = [context for worker in workers for context, _ in worker.contexts]
        calls = [span for span in one.spans if span.name == "chat fake"]
        assert [(span.error, span.attributes["weir.attempt"]) for span in calls] == [("failed", 1), ("", 2)]
        assert calls[0].ended_at <= calls[1].began_at
        assert {f"00-{one.trace_id}-{span.span_id}-01" for span in calls} == set(heard)
        check_tree(one)

    run(main)


def test_a_refusal_at_the_door_has_its_decision_and_nothing_else() -> None:
    async def main() -> None:
        async with traced(Heard(hang, slots=1), max_inflight=1) as (stand, kept):
            held = asyncio.create_task(stand.chat())
            await until(lambda: stand.workers[0].running == 1, "one runs")
            refused = await stand.chat(headers={"prefer": "wait=0"})
            assert refused.status_code == 429
            (one,) = await told(kept)
            held.cancel()
        own, decision = one.spans
        assert (own.attributes["weir.outcome"], own.attributes["http.response.status_code"]) == ("yield", 429)
        assert own.error == "", "a refusal is not an error of the server's"
        assert decision.attributes["weir.decision"] == "yield"
        assert decision.attributes["weir.reason"] == refused.json()["error"]["details"]["reason"]

    run(main)


def test_who_leaves_and_who_is_cut_have_an_end_in_the_trace_too() -> None:
    async def main() -> None:
        async with traced(Heard(then(hang, cut_after(1)))) as (stand, kept):
            with pytest.raises(httpx2.TimeoutException):
                await stand.client.post(
                    "/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]}, timeout=0.3
                )
            await told(kept)
            cut = await stand.chat(stream=True)
            assert "upstream_failed" in cut.text
            left, broken = await told(kept, 2)
        assert left.spans[0].attributes["weir.outcome"] == "client_gone"
        assert left.spans[0].error == ""
        assert by_name(broken)["chat fake"].error == by_name(broken)["POST /v1/chat/completions"].error != ""
        for one in (left, broken):
            check_tree(one)

    run(main)


def test_while_tracing_is_off_the_clients_context_goes_to_every_service_as_it_came() -> None:
    async def main() -> None:
        worker, retrieval = Heard(), HeardRetrieval(passages=[passage(1)])
        async with traced(worker, retrieval=retrieval, sampling=None) as (stand, _):
            await stand.post("/ask", {"query": "Why?"}, **CLIENTS_OWN)
            await stand.chat(headers={"traceparent": "nonsense", "tracestate": "vendor=1"})
            await stand.chat()
        assert worker.contexts == [(GOOD.decode(), "vendor=1"), ("", ""), ("", "")]
        assert retrieval.contexts == [GOOD.decode()]

    run(main)


def test_what_is_not_sampled_goes_on_as_such_and_is_not_told() -> None:
    async def main() -> None:
        worker = Heard()
        async with traced(worker) as (stand, kept):
            unsampled = GOOD.decode()[:-2] + "00"
            await stand.chat(headers={"traceparent": unsampled})
            assert worker.contexts == [(unsampled, "")]
            assert kept.told == []

    run(main)


def test_the_logs_line_has_the_trace_id(capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with traced(Heard(), sampling=None, log_level="INFO") as (stand, _):
            await stand.chat(headers={**CLIENTS_OWN, "x-request-id": "mine"})

    run(main)
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines() if '"id":"mine"' in line]
    assert [line["trace_id"] for line in lines if line["service"] == "router"] == [TRACE]


def test_no_prompt_and_no_answer_is_in_a_trace() -> None:
    async def main() -> None:
        async with traced(Heard(), retrieval=FakeRetrieval(passages=[passage(1)])) as (stand, kept):
            await stand.post("/ask", {"query": "a secret question", "tenant": "acme"})
            await stand.chat(messages=[{"role": "user", "content": "a secret"}], user="a secret user")
            everything = repr(await told(kept, 2))
        for secret in ("secret", "Fact number", "weir holds"):
            assert secret not in everything.replace("'weir.", "'")

    run(main)
