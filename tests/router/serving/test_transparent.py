"""What a client sends to an OpenAI-compatible server arrives as it was sent, and comes back byte for byte.

A recording server stands for vLLM, SGLang, llama.cpp and OpenAI. The fields are those of the official client's types: a
field that a new version of the client adds fails a test until it is listed here.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params

from services.runtime.guard import GuardLimits
from services.runtime.http import Exchange
from tests.router.rig import FakeRetrieval, FakeWorker, Stand, answer, error_of, standing
from tests.runtime.rig import build as build_service
from tests.virtual import run, running_here

CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
FUNCTION = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}, "strict": True}}
PIXELS = base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\4\x60\0\0\2\x30").decode()

ODD_JSON = (
    b'{ "id" : "up-1" , "object":"chat.completion", "weight":0.10, "big":12345678901234567890, "esc":"\\u00e9",\n'
    b' "choices": [ {"index":0,"message":{"role":"assistant","content":"A","reasoning_content":"Hm.","annotations":[]},'
    b'"logprobs":{"content":[{"token":"A","logprob":-0.10}]},"finish_reason":"stop"} ],'
    b' "usage":{"prompt_tokens":4,"completion_tokens":2,"total_tokens":6,"prompt_tokens_details":{"cached_tokens":1}},'
    b' "of_next_year":{"a":[1,2.50]} }'
)
"""An answer that another serializer would write otherwise."""
VECTORS = b'{"object":"list","data":[{"embedding":[0.10,2e-05],"index":0}],"model":"m","usage":{"prompt_tokens":3}}'


@dataclass
class Recorder:
    """A server that keeps what it was sent, and answers with `whole` or `events`."""

    whole: bytes = ODD_JSON
    events: tuple[bytes, ...] = ()
    seen: list[tuple[str, Any]] = field(default_factory=list)

    async def answer(self, exchange: Exchange) -> None:
        body = json.loads(exchange.body)
        self.seen.append((exchange.path, body))
        if not body.get("stream"):
            await exchange.reply(200, self.whole)
            return
        await exchange.start(200, b"text/event-stream")
        for event in self.events:
            await exchange.write(event)
        await exchange.end()

    @property
    def sent(self) -> Any:
        """The body that was sent last."""
        return self.seen[-1][1]


@asynccontextmanager
async def recording(folder: Path, server: Recorder, entry: str = "", **settings: Any) -> AsyncIterator[Stand]:
    """A router before the recorder, which serves the model `m`. `entry`: more of its entry in the worker list."""
    service = build_service(
        {("POST", path): server.answer for path in (CHAT, TEXT, EMBED)}, limits=GuardLimits(body_bytes=2**25)
    )
    async with running_here(service):
        url = f"http://127.0.0.1:{service.bound_port}/v1"
        listing = folder / "workers.yaml"
        listing.write_text(f"workers: [{{name: up, kind: openai, url: '{url}', slots: 4, models: [m], {entry}}}]")
        async with standing(upstreams=str(listing), **settings) as stand:
            yield stand
    service.log.close()


def fields_of(types: Any, name: str) -> set[str]:
    """The fields of a request by the official client's types."""
    return set(getattr(types, name).__annotations__)


# ---- what is sent

CHAT_FIELDS: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello", "name": "ann"}],
    "model": "m",
    "frequency_penalty": 0.5,
    "function_call": {"name": "look"},
    "functions": [{"name": "look", "parameters": {"type": "object"}}],
    "logit_bias": {"50256": -100},
    "logprobs": True,
    "max_completion_tokens": 9,
    "max_tokens": 9,
    "metadata": {"a": "b"},
    "modalities": ["text"],
    "n": 3,
    "parallel_tool_calls": False,
    "presence_penalty": -0.5,
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "in_memory",
    "reasoning_effort": "low",
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
    "safety_identifier": "s",
    "seed": 7,
    "service_tier": "auto",
    "stop": ["a", "b", "c", "d", "e"],
    "store": False,
    "stream_options": {"include_obfuscation": False},
    "temperature": 2.5,
    "tool_choice": "required",
    "tools": [FUNCTION, {"type": "custom", "custom": {"name": "c"}}],
    "top_logprobs": 5,
    "top_p": 0.0,
    "user": "u",
    "verbosity": "low",
}
WITHHELD_OF_CHAT = {"audio", "moderation", "prediction", "web_search_options"}
"""Fields that the operator pays for: they pass where `allow` names them (`test_fields.py`)."""
TEXT_FIELDS: dict[str, Any] = {
    "model": "m",
    "prompt": ["one", "two"],
    "best_of": 4,
    "echo": True,
    "frequency_penalty": 0.5,
    "logit_bias": {"50256": -100},
    "logprobs": 5,
    "max_tokens": 9,
    "n": 3,
    "presence_penalty": 0.5,
    "seed": 7,
    "stop": "a",
    "stream_options": {"include_obfuscation": False},
    "suffix": "end",
    "temperature": 0.0,
    "top_p": 0.5,
    "user": "u",
}
EMBED_FIELDS: dict[str, Any] = {
    "input": ["one", "two"],
    "model": "m",
    "dimensions": 256,
    "encoding_format": "base64",
    "user": "u",
}
ALSO_SENT: dict[str, Any] = {
    "top_k": 5, "min_p": 0.05, "repetition_penalty": 1.1, "guided_regex": "a+", "structured_outputs": {"regex": "a+"},
    "chat_template_kwargs": {"enable_thinking": False}, "thinking": {"type": "enabled", "budget_tokens": 9},
    "stop_token_ids": [7], "of_next_year": {"deep": [1, {"x": None}]}, "include_reasoning": True,
}  # fmt: skip
"""What `extra_body` of the client adds to the body: fields of other servers, and of none yet."""
SHAPES: dict[str, dict[str, Any]] = {
    "a picture": {"messages": [{"role": "user", "content": [
        {"type": "text", "text": "What?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + PIXELS, "detail": "high"}}]}]},
    "a picture elsewhere": {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "https://a.test/x.png"}}]}]},
    "a sound and a file": {"messages": [{"role": "user", "content": [
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f-1"}},
        {"type": "video_url", "video_url": {"url": "https://a.test/x.mp4"}}]}]},
    "the calls of tools": {"messages": [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": None, "refusal": None, "reasoning_content": "Hm.", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{\"a\": 1}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "seen"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}]},
    "a role of another server": {"messages": [{"role": "ipython", "content": "x"}, {"role": "user", "content": "y"}]},
    "a role of next year": {"messages": [{"role": "developer", "content": "x", "of_next_year": 1}]},
}  # fmt: skip
PROMPTS: dict[str, Any] = {
    "a text": "one", "several": ["one", "two"], "an empty one": [""], "token ids": [1, 2, 3],
    "lists of token ids": [[1, 2], [3]],
}  # fmt: skip


def arrived(sent: dict[str, Any], seen: dict[str, Any], path: str) -> None:
    """The server got what was sent, but for what the router sets."""
    ours = {"model": "m", "stream": bool(sent.get("stream"))} if path != EMBED else {"model": "m"}
    expected = {name: value for name, value in sent.items() if name not in ("stream_options", "max_tokens")} | ours
    if "max_tokens" in sent and "max_completion_tokens" not in sent:
        expected["max_tokens"] = sent["max_tokens"]
    assert (seen if path == EMBED else {"stream": False, **seen}) == expected, "false is what a server takes for it"


def test_every_field_of_the_official_client_is_listed_here() -> None:
    chat = fields_of(chat_create_params, "CompletionCreateParamsBase")
    assert CHAT_FIELDS.keys() | WITHHELD_OF_CHAT == chat
    assert TEXT_FIELDS.keys() == fields_of(completion_create_params, "CompletionCreateParamsBase")
    assert EMBED_FIELDS.keys() == fields_of(embedding_create_params, "EmbeddingCreateParams")


def cases() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, value in (CHAT_FIELDS | ALSO_SENT).items():
        yield f"chat {name}", CHAT, {**HELLO, name: value}
    for name, value in (TEXT_FIELDS | ALSO_SENT).items():
        yield f"text {name}", TEXT, {"prompt": "one", name: value}
    for name, value in (EMBED_FIELDS | {"truncate_prompt_tokens": 5}).items():
        yield f"embed {name}", EMBED, {"input": "one", "model": "m", name: value}
    for name, shape in SHAPES.items():
        yield name, CHAT, shape
    for name, prompt in PROMPTS.items():
        yield f"prompt: {name}", TEXT, {"prompt": prompt}
        yield f"input: {name}", EMBED, {"input": prompt, "model": "m"}
    yield "everything in a chat", CHAT, CHAT_FIELDS | ALSO_SENT | {"tenant": "t"}
    yield "everything in a text", TEXT, TEXT_FIELDS | ALSO_SENT


def test_what_a_client_sends_arrives_as_it_was_sent_and_the_answer_comes_back_byte_for_byte(tmp_path: Path) -> None:
    server = Recorder()

    async def main() -> None:
        async with recording(tmp_path, server) as stand:
            for name, path, body in cases():
                server.whole = VECTORS if path == EMBED else ODD_JSON
                response = await stand.post(path, body)
                assert (name, response.status_code, response.content) == (name, 200, server.whole)
                assert server.seen[-1][0] == path
                arrived({key: value for key, value in body.items() if key != "tenant"}, server.sent, path)

    run(main)


def test_with_max_tokens_of_zero_a_prompt_comes_back_alone(tmp_path: Path) -> None:
    server = Recorder()

    async def main() -> None:
        async with recording(tmp_path, server) as stand:
            response = await stand.post(TEXT, {"prompt": "one", "echo": True, "logprobs": 1, "max_tokens": 0})
            assert (response.status_code, server.sent["max_tokens"]) == (200, 0)
            refused = await stand.post(TEXT, {"prompt": "one", "max_tokens": 0})
            assert (refused.status_code, error_of(refused)["param"]) == (400, "max_tokens")

    run(main)


def test_a_weir_worker_is_sent_no_empty_prompt() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            for prompt in ("", [""]):
                refused = await stand.post(TEXT, {"prompt": prompt})
                assert (refused.status_code, error_of(refused)["param"]) == (400, "prompt")
                assert "at least one character" in error_of(refused)["message"]

    run(main)


# ---- streams


def chunk(index: int, delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": index, "delta": delta or {}, "finish_reason": finish, **more}
    return b"data: " + json.dumps({"id": "up", "w": 0.10, "choices": [choice]}).encode() + b"\n\n"


USAGE_EVENT = b'data: {"id":"up", "choices":[], "usage":{"prompt_tokens":4,"completion_tokens":6}, "w":0.10}\n\n'
DONE = b"data: [DONE]\n\n"
STREAMS: dict[str, tuple[dict[str, Any], tuple[bytes, ...]]] = {
    "one answer": ({}, (chunk(0, {"role": "assistant"}), chunk(0, {"content": "A"}), chunk(0, {}, "stop"))),
    "tools, reasoning and logprobs": ({"tools": [FUNCTION], "logprobs": True}, (
        chunk(0, {"role": "assistant", "reasoning_content": "Hm."}),
        chunk(0, {"tool_calls": [{"index": 1, "id": "c", "function": {"name": "look", "arguments": "{"}}]}),
        chunk(0, {"content": "A"}, logprobs={"content": [{"token": "A", "logprob": -0.10}]}),
        chunk(0, {}, "tool_calls"))),
    "two answers together": ({"n": 2}, (
        chunk(0, {"content": "A"}), chunk(1, {"content": "B"}), chunk(0, {}, "stop"), chunk(1, {"content": "C"}),
        chunk(1, {}, "length"))),
    "two answers in turn": ({"n": 2}, (
        chunk(0, {"content": "A"}), chunk(0, {}, "stop"), chunk(1, {"content": "B"}), chunk(1, {}, "stop"))),
    "fewer answers than asked for": ({"n": 3}, (chunk(0, {"content": "A"}), chunk(0, {}, "stop"))),
    "filters after the end": ({"n": 2}, (
        chunk(1, {"content": "A"}), chunk(1, {}, "stop"), chunk(0, {"content": "B"}), chunk(0, {}, "stop"),
        chunk(1, {}, None, content_filter_results={}))),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "events"), STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
def test_the_events_of_a_stream_come_back_as_the_server_wrote_them(
    tmp_path: Path, fields: dict[str, Any], events: tuple[bytes, ...], usage: bool, at_once: bool
) -> None:
    wire = (*events, USAGE_EVENT, DONE)
    server = Recorder(events=(b"".join(wire),) if at_once else wire)

    async def main() -> None:
        async with recording(tmp_path, server) as stand:
            body = {**HELLO, "stream": True, **fields, "stream_options": {"include_usage": usage, "other": 1}}
            response = await stand.post(CHAT, body)
            *before, last, done = response.content.split(b"\n\n")[:-1]
            expected = [*events, USAGE_EVENT] if usage else list(events)
            own = last.partition(b',"weir":')[0] + b"}"
            assert [*before, own] == [event.removesuffix(b"\n\n") for event in expected]
            assert done == b"data: [DONE]"
            assert json.loads(last.removeprefix(b"data: "))["weir"]["level"] == 0
            assert server.sent["stream_options"] == {"include_usage": True, "other": 1}

    run(main)


@pytest.mark.parametrize(
    "events",
    [
        (chunk(0, {"content": "A"}), chunk(0, {}, "stop"), chunk(1, {"content": "B"}), DONE),
        (chunk(0, {"content": "A"}), chunk(1, {"content": "B"}), chunk(1, {}, "stop"), DONE),
        (chunk(0, {"content": "A"}), chunk(2, {"content": "B"}), DONE),
    ],
    ids=["the second has no end", "the first has no end", "one too many"],
)
def test_a_stream_in_which_an_answer_has_no_end_is_not_taken_for_a_complete_one(
    tmp_path: Path, events: tuple[bytes, ...]
) -> None:
    async def main() -> None:
        async with recording(tmp_path, Recorder(events=events)) as stand:
            response = await stand.post(CHAT, {**HELLO, "stream": True, "n": 2})
            assert b"event: error" in response.content
            assert b"[DONE]" not in response.content

    run(main)


def test_an_answer_of_several_choices_is_whole_only_if_each_has_ended(tmp_path: Path) -> None:
    def whole(*finishes: str | None) -> bytes:
        choices = [
            {"index": index, "message": {"content": "A"}, "finish_reason": finish}
            for index, finish in enumerate(finishes)
        ]
        return json.dumps({"choices": choices, "usage": {"prompt_tokens": 1, "completion_tokens": 9}}).encode()

    server = Recorder()

    async def main() -> None:
        async with recording(tmp_path, server) as stand:
            server.whole = whole("stop", "length")
            assert (await stand.post(CHAT, {**HELLO, "n": 2})).content == server.whole
            for finishes, n in ((("stop", None), 2), (("stop", "stop"), 1), ((), 2)):
                server.whole = whole(*finishes)
                assert (await stand.post(CHAT, {**HELLO, "n": n})).status_code in (502, 503)
                await stand.until_up(1)

    run(main)


# ---- what it costs


def test_what_changes_the_cost_is_admitted_at_its_price_and_granted_for_each_answer(tmp_path: Path) -> None:
    server = Recorder()

    async def main() -> None:
        async with recording(tmp_path, server) as stand:
            with mock.patch.object(stand.dispatcher, "admit", wraps=stand.dispatcher.admit) as admit:
                picture = SHAPES["a picture"]["messages"]
                bodies: list[tuple[str, dict[str, Any]]] = [
                    (CHAT, {**HELLO, "max_tokens": 30}),
                    (CHAT, {**HELLO, "max_tokens": 30, "n": 3}),
                    (TEXT, {"prompt": ["a" * 40] * 5, "max_tokens": 30, "n": 2, "best_of": 4}),
                    (TEXT, {"prompt": list(range(1000)), "max_tokens": 30}),
                    (CHAT, {"messages": picture, "max_tokens": 30}),
                    (CHAT, {**HELLO, "max_tokens": 30, "tools": [FUNCTION] * 10}),
                    (EMBED, {"input": ["a" * 40] * 5, "model": "m"}),
                ]
                for path, body in bodies:
                    server.whole = VECTORS if path == EMBED else ODD_JSON
                    assert (await stand.post(path, body)).status_code == 200
            requests = [given.args[1] for given in admit.call_args_list]
            assert [request.max_tokens for request in requests] == [30, 90, 600, 30, 30, 30, 1]
            assert [body.get("max_tokens") for _, body in server.seen] == [30] * 6 + [None]
            sizes = [request.prompt_tokens for request in requests]
            assert sizes[0] == sizes[1]
            assert min(sizes[2], sizes[6]) > 4 * sizes[0]
            assert sizes[3] >= 1000
            assert sizes[4] - sizes[0] >= 800
            assert sizes[5] > 20 * sizes[0]

    run(main)


# ---- models, embeddings, bounds


def test_a_model_is_shown_by_its_id_and_an_unknown_one_is_404_as_openais(tmp_path: Path) -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer, models=("a", "meta-llama/Llama 3.1"))) as stand:
            listed = (await stand.client.get("/v1/models")).json()["data"]
            for path, id in (
                ("a", "a"), ("meta-llama/Llama%203.1", "meta-llama/Llama 3.1"),
                ("meta-llama%2FLlama%203.1", "meta-llama/Llama 3.1"),
            ):  # fmt: skip
                shown = await stand.client.get(f"/v1/models/{path}")
                assert (shown.status_code, shown.json()["id"], shown.json()["object"]) == (200, id, "model")
                assert shown.json().keys() == listed[0].keys()
            for id in ("gpt-9", "a/b", "meta-llama", "%00", "x" * 5000):
                missing = await stand.client.get(f"/v1/models/{id}")
                error = error_of(missing)
                assert (missing.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
                assert error["type"] == "invalid_request_error"

    run(main)


def test_embeddings_of_a_model_that_no_server_has_come_from_weirs_own_embedder(tmp_path: Path) -> None:
    server = Recorder(whole=VECTORS)

    async def main() -> None:
        async with recording(tmp_path, server) as stand:  # without retrieval: nothing else could answer
            assert (await stand.post(EMBED, {"input": [[1, 2]], "model": "m"})).content == VECTORS
            own = await stand.post(EMBED, {"input": "one"})
            assert own.status_code == 502
        async with standing(FakeWorker(answer), retrieval=FakeRetrieval()) as stand:
            for ids in ([1, 2], [[1, 2]]):
                refused = await stand.post(EMBED, {"input": ids})
                assert (refused.status_code, error_of(refused)["param"]) == (400, "input")
                assert "check_embedding_ctx_length" in error_of(refused)["message"]
            generator = await stand.post(EMBED, {"input": "one", "model": "fake"})
            assert (generator.status_code, error_of(generator)["code"]) == (404, "model_not_found")
        assert len(server.seen) == 1

    run(main)


def test_a_server_that_cannot_embed_is_quoted(tmp_path: Path) -> None:
    async def main() -> None:
        server = Recorder(whole=b'{"error":{"message":"no embeddings here","code":400}}')
        async with recording(tmp_path, server) as stand:
            refused = await stand.post(EMBED, {"input": "one", "model": "m"})
            assert (refused.status_code, error_of(refused)["message"]) == (400, "no embeddings here")

    run(main)


def test_a_long_context_and_a_picture_of_megabytes_arrive(tmp_path: Path) -> None:
    server = Recorder()

    async def main() -> None:
        async with recording(tmp_path, server) as stand:
            picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + PIXELS + "A" * 10_000_000}}
            for body in (
                {"messages": [{"role": "user", "content": [picture]}]},
                {"messages": [{"role": "user", "content": "a, b. " * 700_000}]},
                {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}] * 4000},
            ):
                response = await stand.post(CHAT, body, x_weir_deadline_ms="120000")
                assert response.status_code == 200, response.text[:300]
                assert server.sent["messages"] == body["messages"]
                server.seen.clear()
            for body, status in (
                ({"messages": HELLO["messages"] * 9000}, 400),
                ({"messages": [{"role": "user", "content": "x" * 17_000_000}]}, 413),
            ):
                assert (await stand.post(CHAT, body)).status_code == status
            assert server.seen == []

    run(main)


def test_a_weir_worker_answers_what_it_cannot_do_with_400_and_gets_nothing() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            for name in ("n", "tools", "tool_choice", "logprobs", "response_format", "functions", "logit_bias"):
                refused = await stand.post(CHAT, {**HELLO, name: CHAT_FIELDS[name]})
                assert (refused.status_code, error_of(refused)["param"]) == (400, name)
            for name in ("best_of", "echo", "suffix", "prompt"):
                refused = await stand.post(TEXT, {"prompt": "x", name: TEXT_FIELDS[name]})
                assert (refused.status_code, error_of(refused)["param"]) == (400, name)
            for shape in ("a picture", "a role of another server", "the calls of tools"):
                refused = await stand.post(CHAT, SHAPES[shape])
                assert (refused.status_code, error_of(refused)["param"].startswith("messages[")) == (400, True)
            assert stand.workers[0].asked == []
            assert await stand.counted() == {"invalid_request": 14}
            hints = {name: CHAT_FIELDS[name] for name in ("user", "metadata", "seed", "reasoning_effort", "verbosity")}
            assert (await stand.post(CHAT, {**HELLO, **hints})).status_code == 200

    run(main)
