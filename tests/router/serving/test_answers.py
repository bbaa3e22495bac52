"""What a client gets: whole and streamed, in each format, from both kinds of worker."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from unittest import mock

import pytest

from services.contracts.answer import AskReply
from services.runtime.http import Exchange
from tests.router.rig import FakeRetrieval, FakeWorker, answer, error_of, events_of, passage, standing
from tests.runtime.rig import build as build_service
from tests.virtual import run, running_here


def test_a_chat_is_answered_with_exact_usage_and_its_timings() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            response = await stand.chat(model="fake", max_tokens=9)
            body = response.json()
            assert response.status_code == 200
            assert body["choices"][0]["message"] == {"role": "assistant", "content": "A weir holds."}
            assert body["usage"] == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
            assert response.headers["x-weir-level"] == "0"
            assert "total;dur=" in response.headers["server-timing"]
            assert stand.workers[0].asked[0].max_tokens == 9
            assert stand.workers[0].ids == [response.headers["x-request-id"]]

    run(main)


def test_a_streamed_chat_ends_with_done_and_tells_its_timings_in_the_last_chunk() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            response = await stand.chat(stream=True, stream_options={"include_usage": True})
            *chunks, done = events_of(response)
            parsed = [json.loads(chunk) for chunk in chunks]
            assert done == "[DONE]"
            assert "".join(c["choices"][0]["delta"].get("content", "") for c in parsed[:-1]) == "A weir holds."
            assert parsed[-2]["choices"][0]["finish_reason"] == "stop"
            assert parsed[-1]["usage"]["total_tokens"] == 10
            assert parsed[-1]["weir"]["total_ms"] >= 0
            assert all("usage" not in c and "weir" not in c for c in parsed[:-1])

    run(main)


def test_usage_is_left_out_of_a_stream_that_did_not_ask_for_it() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            *chunks, _ = events_of(await stand.chat(stream=True))
            last = json.loads(chunks[-1])
            assert "usage" not in last
            assert last["choices"][0]["finish_reason"] == "stop"
            assert "weir" in last

    run(main)


def test_completions_are_answered_whole_and_streamed() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            whole = (await stand.post("/v1/completions", {"prompt": "once"})).json()
            assert whole["choices"][0]["text"] == "A weir holds."
            *chunks, done = events_of(await stand.post("/v1/completions", {"prompt": ["once"], "stream": True}))
            assert "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks) == "A weir holds."
            assert done == "[DONE]"
            assert stand.workers[0].asked[0].prompt == "once"

    run(main)


def test_an_ask_puts_the_passages_into_the_prompt_and_cites_them() -> None:
    async def main() -> None:
        retrieval = FakeRetrieval([passage(1), passage(2)])
        async with standing(FakeWorker(answer), retrieval=retrieval) as stand:
            response = await stand.post("/ask", {"query": "What holds?", "top_k": 2})
            reply = AskReply(**response.json())
            assert (reply.text, reply.source, reply.retrieval_source) == ("A weir holds.", "tier1", "db")
            assert [citation["doc_id"] for citation in response.json()["citations"]] == ["docs/1.md", "docs/2.md"]
            assert (reply.top_k_used, reply.degraded) == (2, [])
            prompt = stand.workers[0].asked[0].messages or []
            assert '<passage id="1" doc="docs/1.md">\nFact number 1.\n</passage>' in prompt[-1].content
            assert prompt[-1].content.endswith("Question: What holds?")
            assert (retrieval.asked[0].tenant, retrieval.asked[0].top_k) == ("demo", 2)

    run(main)


def test_a_streamed_ask_ends_with_the_whole_reply() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer), retrieval=FakeRetrieval([passage(1)])) as stand:
            response = await stand.post("/ask", {"query": "What holds?", "stream": True})
            *tokens, reply, done = events_of(response)
            assert "".join(json.loads(token)["text"] for token in tokens) == "A weir holds."
            assert json.loads(reply)["text"] == "A weir holds."
            assert json.loads(reply)["citations"][0]["doc_id"] == "docs/1.md"
            assert done == "[DONE]"

    run(main)


@pytest.mark.parametrize("trouble", ["down", "slow"])
def test_without_retrieval_an_ask_is_answered_without_context_and_says_so(trouble: str) -> None:
    async def main() -> None:
        retrieval = FakeRetrieval(stall=True) if trouble == "slow" else None
        async with standing(FakeWorker(answer), retrieval=retrieval, retrieval_budget_ms=30) as stand:
            response = await stand.post("/ask", {"query": "What holds?"})
            body = response.json()
            assert response.status_code == 200
            assert (body["source"], body["retrieval_source"], body["degraded"]) == ("degraded", "none", ["retrieval"])
            assert response.headers["x-weir-degraded"] == "retrieval"
            assert dict(await stand.samples("weir_degradation_total"))['{reason="retrieval"}'] == 1

    run(main)


def test_a_stale_result_is_used_and_disclosed() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer), retrieval=FakeRetrieval([passage(1)], source="stale")) as stand:
            body = (await stand.post("/ask", {"query": "What holds?"})).json()
            assert (body["source"], body["retrieval_source"], len(body["citations"])) == ("degraded", "stale", 1)

    run(main)


def test_the_context_budget_bounds_what_stands_in_the_prompt() -> None:
    async def main() -> None:
        retrieval = FakeRetrieval([passage(n) for n in range(1, 60)])
        async with standing(FakeWorker(answer), retrieval=retrieval, context_tokens=64) as stand:
            body = (await stand.post("/ask", {"query": "What holds?", "top_k": 20})).json()
            assert 1 < body["top_k_used"] < 20

    run(main)


def test_models_are_listed_and_an_unknown_one_is_404() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer, models=("a", "b")), FakeWorker(answer, models=("b", "c"))) as stand:
            listed = (await stand.client.get("/v1/models")).json()
            assert [model["id"] for model in listed["data"]] == ["a", "b", "c"]
            assert (await stand.chat()).json()["model"] == "a"
            assert (await stand.chat(model="c")).json()["model"] == "c"
            missing = await stand.chat(model="gpt-9")
            assert missing.status_code == 404
            assert (error_of(missing)["code"], error_of(missing)["param"]) == ("model_not_found", "model")

    run(main)


def test_lists_of_text_parts_and_unknown_fields_are_accepted() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
            body = {"messages": [{"role": "user", "content": parts}], "ignore_eos": True, "user": "u", "n": 1}
            response = await stand.post("/v1/chat/completions", {**body, "max_completion_tokens": 5})
            assert response.status_code == 200
            asked = stand.workers[0].asked[0]
            assert (asked.messages or [])[0].content == "hello"
            assert (asked.max_tokens, asked.ignore_eos) == (5, True)

    run(main)


CHUNK = '{"id":"up","object":"chat.completion.chunk","choices":[{"index":0,"delta":%s,"finish_reason":%s}]}'
USAGE = '{"id":"up","choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2,"total_tokens":6}}'


def openai_server(seen: list[dict[str, object]]) -> dict[tuple[str, str], object]:
    """A plain OpenAI-compatible server, as strict about nothing as most are."""

    async def models(exchange: Exchange) -> None:
        await exchange.reply(200, b'{"object":"list","data":[{"id":"theirs"}]}')

    async def chat(exchange: Exchange) -> None:
        body = json.loads(exchange.body)
        seen.append({**body, "authorization": exchange.header(b"authorization")})
        if not body["stream"]:
            whole = {
                "id": "up",
                "choices": [{"message": {"role": "assistant", "content": "Theirs."}, "finish_reason": "stop"}],
            }
            await exchange.reply(200, json.dumps({**whole, "usage": json.loads(USAGE)["usage"], "extra": 1}).encode())
            return
        await exchange.start(200, b"text/event-stream")
        for data in (CHUNK % ('{"content":"The"}', "null"), CHUNK % ('{"content":"irs."}', "null"),
                     CHUNK % ("{}", '"stop"'), USAGE, "[DONE]"):  # fmt: skip
            await exchange.write(f"data: {data}\r\n\r\n".encode())
        await exchange.end()

    return {("GET", "/v1/models"): models, ("POST", "/v1/chat/completions"): chat}


def test_an_openai_worker_is_passed_through_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UP_KEY", "s3cret")
    seen: list[dict[str, object]] = []

    async def main() -> None:
        upstream = build_service(openai_server(seen))  # type: ignore[arg-type]  # handlers
        async with running_here(upstream):
            url = f"http://127.0.0.1:{upstream.bound_port}/v1"
            listing = tmp_path / "workers.yaml"
            listing.write_text(f"workers: [{{name: up, kind: openai, url: '{url}', slots: 2, api_key_env: UP_KEY}}]")
            async with standing(upstreams=str(listing)) as stand:
                whole = (await stand.chat(custom_field=7)).json()
                assert (whole["id"], whole["extra"]) == ("up", 1)
                assert seen[0]["custom_field"] == 7
                assert "max_tokens" not in seen[0]
                assert seen[0]["authorization"] == b"Bearer s3cret"
                *chunks, done = events_of(await stand.chat(stream=True))
                parsed = [json.loads(chunk) for chunk in chunks]
                assert "".join(c["choices"][0]["delta"].get("content", "") for c in parsed) == "Theirs."
                assert "weir" in parsed[-1]
                assert done == "[DONE]"
                asked = (await stand.post("/ask", {"query": "What?"})).json()
                assert (asked["text"], asked["usage"]["total_tokens"]) == ("Theirs.", 6)
                streamed = events_of(await stand.post("/ask", {"query": "What?", "stream": True}))
                assert json.loads(streamed[-2])["text"] == "Theirs."
        upstream.log.close()

    run(main)


EVERYTHING = {
    "best_of": 20, "use_beam_search": True, "priority": -999, "service_tier": "priority", "web_search_options": {},
    "store": True, "chat_template": "{{ x }}", "min_tokens": 9000,
}  # fmt: skip


def test_what_would_pass_the_shares_by_reaches_no_server_unless_its_entry_allows_it(tmp_path: Path) -> None:
    seen: list[dict[str, object]] = []

    async def main() -> None:
        upstream = build_service(openai_server(seen))  # type: ignore[arg-type]  # handlers
        async with running_here(upstream):
            url = f"http://127.0.0.1:{upstream.bound_port}/v1"
            listing = tmp_path / "workers.yaml"
            entry = f"name: up, kind: openai, url: '{url}', slots: 2, cache_salt: true, allow: [store, best_of]"
            listing.write_text(f"workers: [{{{entry}}}]")
            async with standing(upstreams=str(listing)) as stand:
                for name, value in EVERYTHING.items():
                    told = await stand.chat(max_tokens=256, **{name: value})
                    if name in ("store", "best_of"):
                        assert (told.status_code, seen.pop()[name]) == (200, value)
                    else:
                        assert (told.status_code, error_of(told)["param"]) == (400, name)
                assert seen == []
                with mock.patch.object(stand.dispatcher, "admit", wraps=stand.dispatcher.admit) as admit:
                    await stand.chat(max_tokens=30)
                    await stand.chat(max_tokens=30, best_of=3, cache_salt="own")
                assert [body["max_tokens"] for body in seen] == [30, 30]
                assert [given.args[1].max_tokens for given in admit.call_args_list] == [30, 90]
                salts = [body["cache_salt"] for body in seen]
                assert len({*salts, "own"}) == 3
        upstream.log.close()

    run(main)


def test_vectors_come_as_floats_and_as_base64_and_are_counted() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer), retrieval=FakeRetrieval()) as stand:
            floats = (await stand.post("/v1/embeddings", {"input": ["a", "b"], "encoding_format": "float"})).json()
            assert [item["embedding"] for item in floats["data"]] == [[1.0, 0.5], [1.0, 0.5]]
            assert floats["usage"] == {"prompt_tokens": 2, "total_tokens": 2}
            packed = (await stand.post("/v1/embeddings", {"input": "a", "encoding_format": "base64"})).json()
            raw = base64.b64decode(packed["data"][0]["embedding"])
            assert struct.unpack("<2f", raw) == (1.0, 0.5)
            missing = await stand.post("/v1/embeddings", {"input": "a", "model": "other"})
            assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
            assert await stand.counted() == {"served": 2, "model_not_found": 1}

    run(main)


def test_without_an_embedder_vectors_are_refused_and_the_reason_is_told() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            failed = await stand.post("/v1/embeddings", {"input": "a"})
            assert (failed.status_code, failed.json()["error"]["code"]) == (502, "upstream_failed")
            assert "127.0.0.1" not in failed.text
        async with standing(FakeWorker(answer), retrieval=FakeRetrieval(warming=True)) as stand:
            refused = await stand.post("/v1/embeddings", {"input": "a"})
            error = refused.json()["error"]
            assert (refused.status_code, error["code"], error["details"]["reason"]) == (503, "no_capacity", "warming")

    run(main)


def test_every_answer_names_its_request_and_the_level_it_was_served_at() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            for path in ("/health", "/v1/models", "/nowhere", "/openapi.json", "/docs"):
                response = await stand.client.get(path)
                assert response.headers["x-weir-level"] == "0"
                assert response.headers["x-request-id"]
            refused = await stand.post("/ask", {"query": ""})
            assert refused.headers["x-weir-level"] == "0"

    run(main)


def test_the_api_describes_itself_from_its_own_wire_types() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            document = (await stand.client.get("/openapi.json")).json()
            assert set(document["paths"]) >= {"/ask", "/v1/chat/completions", "/v1/completions", "/v1/embeddings"}
            ask = document["components"]["schemas"]["AskRequest"]["properties"]
            assert (ask["top_k"]["minimum"], ask["top_k"]["maximum"], ask["top_k"]["default"]) == (1, 20, 5)
            refusals = document["paths"]["/ask"]["post"]["responses"]
            assert "deadline_exceeded" in refusals["504"]["description"]
            page = (await stand.client.get("/docs")).text
            assert "/openapi.json" in page
            assert "http://" not in page
            assert "https://" not in page

    run(main)


def test_the_series_of_the_first_tenants_begin_at_zero() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            born = dict(await stand.samples("weir_requests_total"))
            assert born['{outcome="yield",tenant="demo"}'] == 0
            assert born['{outcome="served",tenant="other"}'] == 0
            assert dict(await stand.samples("weir_retries_total"))['{reason="failed"}'] == 0

    run(main)
