"""OpenAI-compatible servers as they really are: each quirk has been seen in one of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.outcome import Outcome
from services.core.request import UNLIMITED
from services.router.parsing.parsed import Format, ParsedRequest, Special
from services.router.parsing.parsers import parse_chat
from services.router.request import InferenceRequest
from services.router.upstreams.call import Attempt, Busy, WorkerFailed
from services.router.upstreams.openai import OpenAIUpstream, is_as_sent, request_body
from services.router.upstreams.openaianswer import answer_of, end_of, refusal_of, text_of
from services.router.upstreams.openaistream import MAX_EVENT_BYTES, OpenAIStream
from services.runtime.errors import BadInput, Refused
from services.runtime.http import Exchange
from services.runtime.keepalive import Pool
from services.runtime.upstream import AnswerTooLarge, Truncated, UpstreamError
from tests.router.fleetrig import FakeReply
from tests.runtime.rig import build as build_service
from tests.virtual import run, running_here


def call(format: Format = Format.CHAT, **fields: Any) -> InferenceRequest:
    """`answer`: the longest answer that was granted; any other field is the body's."""
    granted = fields.pop("answer", 9)
    said = {"tenant": None, "model": None, "max_tokens": 9, "stream": True, "body": {}, **fields}
    return InferenceRequest(
        "r", "t", deadline=1.0, model="m", max_tokens=granted, granted_tokens=granted,
        parsed=ParsedRequest(format=format, **said),
    )  # fmt: skip


def chunk(delta: Any = None, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"id": "up", "choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **fields}


def sse(*events: Any, end: str = "\n\n") -> bytes:
    said = [event if isinstance(event, str) else f"data: {json.dumps(event)}" for event in events]
    return "".join(event + end for event in said).encode()


ROLE = chunk({"role": "assistant", "content": ""})
STOP = chunk(finish="stop")
USAGE = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}}
DONE = "data: [DONE]"
WORDS = [chunk({"content": "A "}), chunk({"content": "weir."})]
GOOD = sse(ROLE, *WORDS, STOP, USAGE, DONE)


class Heard:
    """A stream read to its end."""

    def __init__(self, stream: OpenAIStream, deltas: list[Any]) -> None:
        self.end = stream.end
        self.deltas = deltas
        self.tail = [json.loads(data) for data in stream.tail]
        raw = b"".join(delta.raw or b"" for delta in deltas).decode()
        self.events = [json.loads(line[6:]) for line in raw.split("\n") if line.startswith("data: ")]
        self.raw = raw

    @property
    def text(self) -> str:
        if self.raw:
            return "".join(e["choices"][0]["delta"].get("content") or "" for e in self.events if e["choices"])
        return "".join(delta.text for delta in self.deltas)


def hear(*pieces: bytes, cut: bool = False, asked: InferenceRequest | None = None) -> Heard:
    async def main() -> Heard:
        stream = OpenAIStream(FakeReply(*pieces, cut=cut), asked or call())  # type: ignore[arg-type]  # a fake
        deltas = []
        while (delta := await stream.next()) is not None:
            deltas.append(delta)
        return Heard(stream, deltas)

    return run(main())


def first_delta(*pieces: bytes) -> Any:
    async def main() -> Any:
        stream = OpenAIStream(FakeReply(*pieces), call())  # type: ignore[arg-type]  # a fake
        return await stream.next()

    return run(main())


# ---- streams


def test_a_stream_is_relayed_and_its_end_is_understood() -> None:
    heard = hear(GOOD)
    assert heard.text == "A weir."
    assert heard.end is not None
    assert (heard.end.finish_reason, heard.end.prompt_tokens, heard.end.completion_tokens) == ("stop", 4, 2)
    assert heard.tail == [STOP]  # usage was asked for by us, not by the client


def test_a_client_that_asked_for_usage_gets_the_chunk() -> None:
    assert hear(GOOD, asked=call(include_usage=True)).tail == [STOP, USAGE]


@pytest.mark.parametrize(
    "early",
    [
        sse(ROLE),
        sse(": keep-alive"),
        sse(": OPENROUTER PROCESSING", end="\r\n\r\n"),
        sse("event: ping\ndata: {}"),
        sse({"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}),
        b"\n\n",
        b"\n",
        sse(chunk({"role": "assistant", "content": None})),
        sse(chunk({"content": "", "reasoning_content": None, "tool_calls": []})),
    ],
)
def test_what_comes_before_the_first_output_is_not_taken_for_it(early: bytes) -> None:
    with pytest.raises(Truncated):
        first_delta(early)  # nothing but that, and then the end: no output came, so another worker may be tried
    whole = hear(early, GOOD)
    assert (whole.text, whole.tail) == ("A weir.", [STOP])
    assert whole.events[-1] == WORDS[-1]


def test_held_events_go_out_with_the_first_output_in_their_order() -> None:
    filters = {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}
    first = first_delta(sse(filters, ROLE), sse(WORDS[0]))
    assert first.raw == sse(filters, ROLE, WORDS[0])


@pytest.mark.parametrize(
    "delta",
    [
        {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]},
        {"reasoning_content": "Hm."},
        {"reasoning": "Hm."},
        {"refusal": "No."},
        {"content": [{"type": "text", "text": "Parts."}]},
    ],
)
def test_output_need_not_be_text(delta: dict[str, Any]) -> None:
    assert first_delta(sse(ROLE), sse(chunk(delta))).raw == sse(ROLE, chunk(delta))


def test_an_answer_of_tool_calls_alone_is_whole() -> None:
    tool = chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]})
    heard = hear(sse(ROLE, tool, chunk(finish="tool_calls"), DONE))
    assert heard.events == [ROLE, tool]
    assert heard.end is not None
    assert heard.end.finish_reason == "tool_calls"


def test_an_empty_answer_has_no_delta_and_loses_nothing() -> None:
    heard = hear(sse(ROLE, STOP, USAGE, DONE))
    assert (heard.deltas, heard.tail) == ([], [ROLE, STOP])


def test_usage_that_is_missing_null_or_broken_is_not_known_and_not_an_error() -> None:
    for usage in ({}, {"usage": None}, {"usage": {}}, {"usage": {"prompt_tokens": -3, "completion_tokens": 1e99}}):
        heard = hear(sse(*WORDS, {**STOP, **usage}, DONE))
        assert heard.end is not None
        assert (heard.text, heard.end.prompt_tokens, heard.end.completion_tokens) == ("A weir.", 0, 0)


def test_usage_in_the_finishing_event_counts() -> None:
    heard = hear(sse(*WORDS, {**STOP, "usage": USAGE["usage"]}, DONE))
    assert heard.end is not None
    assert heard.end.completion_tokens == 2


def test_a_stream_without_done_is_whole_if_it_finished_and_its_body_ended() -> None:
    assert hear(sse(*WORDS, STOP, USAGE)).text == "A weir."
    assert hear(sse(*WORDS, STOP) + sse(DONE)[:-2]).text == "A weir."  # no blank line at the end
    for body, cut in ((sse(*WORDS), False), (sse(*WORDS, STOP), True), (sse(*WORDS) + sse(DONE), False)):
        with pytest.raises(Truncated):
            hear(body, cut=cut)


def test_a_finishing_event_is_held_back_until_the_stream_is_whole() -> None:
    with pytest.raises(Truncated):
        hear(sse(*WORDS, STOP), cut=True)
    said = first_delta(sse(*WORDS, STOP))
    assert b'"stop"' not in said.raw


@pytest.mark.parametrize("spacing", ['"finish_reason" : "stop"', '"finish_reason":"stop"'])
def test_an_end_is_seen_however_it_is_spaced(spacing: str) -> None:
    end = 'data: {"choices":[{"index":0,"delta":{},' + spacing + "}]}"
    heard = hear(sse(*WORDS, end), sse(DONE))
    assert heard.end is not None
    assert len(heard.tail) == 1


def test_a_second_done_does_no_harm_and_a_token_after_the_end_does() -> None:
    assert hear(sse(*WORDS, STOP, DONE, DONE)).text == "A weir."
    with pytest.raises(UpstreamError, match=r"after \[DONE\]"):
        hear(sse(*WORDS, STOP, DONE, WORDS[0]))


ERRORS = {
    "as OpenAI": ({"error": {"message": "CUDA out of memory", "type": "server_error", "code": None}}, WorkerFailed),
    "as vLLM once did": ({"object": "error", "message": "bad", "type": "BadRequestError", "code": 400}, BadInput),
    "as a sentence": ({"error": "model overloaded", "error_type": "overloaded"}, WorkerFailed),
    "with a status": ({"error": {"message": "slow down", "code": 429}}, Busy),
    "of the request": ({"error": {"message": "too long", "param": "messages", "code": 400}}, BadInput),
    "beside choices": ({**chunk({"content": ""}, "error"), "error": {"code": 502, "message": "gone"}}, WorkerFailed),
    "of another Weir": ({"error": {"message": "late", "code": "deadline_exceeded"}}, Refused),
}


@pytest.mark.parametrize(("event", "meaning"), ERRORS.values(), ids=ERRORS.keys())
@pytest.mark.parametrize("before", [b"", sse(ROLE), sse(ROLE, *WORDS)], ids=["first", "after the role", "mid-stream"])
def test_an_error_in_a_stream_is_raised_for_what_it_means(event: Any, meaning: type, before: bytes) -> None:
    for named in ("", "event: error\n"):
        with pytest.raises(meaning):
            hear(before, sse(f"{named}data: {json.dumps(event)}"), sse(DONE))


def test_a_word_error_in_an_answer_is_no_error() -> None:
    words = [chunk({"content": 'say "error": [DONE] "finish_reason":"stop"'}), chunk({"content": "\n\nevent: x"})]
    heard = hear(sse(ROLE), *(sse(word) for word in words), sse(STOP, DONE))
    assert heard.text == "".join(word["choices"][0]["delta"]["content"] for word in words)


def test_what_is_held_is_bounded() -> None:
    big = chunk({"role": "assistant", "padding": "x" * 70_000})
    for start in (b"", sse(*WORDS, STOP)):
        with pytest.raises(UpstreamError, match="before the first output or after the last"):
            hear(start, *(sse(big) for _ in range(16)))
    with pytest.raises(UpstreamError, match="an event exceeds"):
        hear(b"data: " + b"x" * (MAX_EVENT_BYTES + 1))


@given(st.data())
def test_a_stream_means_the_same_however_it_is_cut_into_pieces(data: st.DataObject) -> None:
    end = data.draw(st.sampled_from(["\n\n", "\r\n\r\n"]))
    tool = chunk({"tool_calls": [{"index": 0, "function": {"arguments": "ü"}}]})
    body = sse(": hi", ROLE, *WORDS, ": still here", tool, STOP, USAGE, DONE, end=end)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=12)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    for format in (Format.CHAT, Format.ASK):
        heard, plain = hear(*pieces, asked=call(format)), hear(body, asked=call(format))
        assert (heard.text, heard.events, heard.tail, heard.end) == (plain.text, plain.events, plain.tail, plain.end)
        assert heard.text == "A weir."


@given(st.binary(max_size=200), st.booleans())
def test_garbage_raises_and_is_never_an_answer(garbage: bytes, cut: bool) -> None:
    with pytest.raises((UpstreamError, Busy, BadInput, Refused)):
        hear(garbage, cut=cut)


def test_an_event_that_comes_a_byte_at_a_time_is_copied_once_and_bounded() -> None:
    stream = OpenAIStream(FakeReply(), call())  # type: ignore[arg-type]  # a fake
    kept = stream._cut._buffer
    for _ in range(1000):
        assert stream._take(b"x") is None
        assert stream._cut._buffer is kept, "what is kept was copied for a piece: a long event costs its square"
    assert stream._take(b"x" * (MAX_EVENT_BYTES - 1000)) is None
    with pytest.raises(AnswerTooLarge):
        stream._take(b"x")


# ---- answers in one piece


def test_contents_of_any_shape_are_read() -> None:
    for content, text in (("Hi.", "Hi."), (None, ""), ([{"type": "text", "text": "H"}, "i."], "Hi.")):
        body = json.dumps({"choices": [{"message": {"content": content}}], "usage": {"prompt_tokens": 3}}).encode()
        answer = answer_of(body)
        assert text_of(answer.choices[0]) == text
        assert end_of("stop", answer.usage).prompt_tokens == 3


STATUSES = {
    429: Busy, 503: Busy, 529: Busy, 400: BadInput, 413: BadInput, 422: BadInput, 404: WorkerFailed,
    401: WorkerFailed, 403: WorkerFailed, 408: WorkerFailed, 500: WorkerFailed, 502: WorkerFailed, 504: WorkerFailed,
}  # fmt: skip


@pytest.mark.parametrize(("status", "meaning"), STATUSES.items())
@pytest.mark.parametrize("body", [b"", b"<html>", b'{"detail":"Not Found"}', b"[]", b'{"error":7}'])
def test_every_status_means_something_whatever_the_body(status: int, meaning: type, body: bytes) -> None:
    assert type(refusal_of(FakeReply(status=status), body)) is meaning  # type: ignore[arg-type]  # a fake


def test_a_404_with_a_reason_is_the_clients_to_know() -> None:
    body = b'{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","param":"model","code":404}}'
    refusal = refusal_of(FakeReply(status=404), body)  # type: ignore[arg-type]  # a fake
    assert isinstance(refusal, BadInput)
    assert (refusal.status, refusal.param) == (404, "model")


@pytest.mark.parametrize(
    ("headers", "delay_ms"),
    [
        ({"retry_after_ms": "250"}, 250), ({"retry_after": "2"}, 2000), ({"retry_after": "1.5"}, 1500),
        ({"retry_after": "Wed, 21 Oct 2026 07:28:00 GMT"}, 100), ({"retry_after": "nan"}, 100),
        ({"retry_after": "-1"}, 100), ({"retry_after": "86400"}, 30_000), ({}, 100),
        ({"retry_after_ms": "x", "retry_after": "1"}, 1000),
    ],
)  # fmt: skip
def test_a_stated_delay_is_obeyed_within_reason(headers: dict[str, str], delay_ms: float) -> None:
    busy = refusal_of(FakeReply(status=429, **headers), b"")  # type: ignore[arg-type]  # a fake
    assert isinstance(busy, Busy)
    assert busy.delay_ms == delay_ms


def test_another_weir_that_cannot_make_the_deadline_is_not_taken_for_a_busy_one() -> None:
    for code in ("deadline_infeasible", "deadline_expired"):
        body = json.dumps({"error": {"message": "late", "type": "rate_limit_error", "code": code}}).encode()
        refusal = refusal_of(FakeReply(status=429), body)  # type: ignore[arg-type]  # a fake
        assert isinstance(refusal, Refused)
        assert refusal.outcome is Outcome(code)


# ---- what is sent


def test_the_bound_that_was_granted_is_sent_by_the_name_that_the_client_used() -> None:
    for said, name in (
        ({}, "max_tokens"),
        ({"max_tokens": 500}, "max_tokens"),
        ({"max_completion_tokens": 500}, "max_completion_tokens"),
        ({"max_completion_tokens": 500, "max_tokens": 600}, "max_completion_tokens"),
    ):
        body = request_body(call(body=said))
        assert [(key, value) for key, value in body.items() if key.startswith("max_")] == [(name, 9)]


def test_a_clients_own_fields_go_on_and_its_tenant_does_not() -> None:
    said = {"tenant": "x", "top_k": 3, "stream_options": {"continuous_usage_stats": True}, "model": "alias"}
    assert request_body(call(body=said)) == {
        "top_k": 3, "model": "m", "max_tokens": 9, "stream": True,
        "stream_options": {"continuous_usage_stats": True, "include_usage": True},
    }  # fmt: skip
    assert "stream_options" not in request_body(call(body=said, stream=False))


def test_a_least_length_follows_the_longest_down() -> None:
    said = {"min_tokens": 50, "min_new_tokens": 3, "max_tokens": 100}
    body = request_body(call(body=said, special=Special(("min_new_tokens", "min_tokens"))))
    assert (body["max_tokens"], body["min_tokens"], body["min_new_tokens"]) == (9, 9, 3)


def salt_of(tenant: str, **said: Any) -> Any:
    asked = call(body=said)
    asked.tenant = tenant
    return request_body(asked, salted=True)["cache_salt"]


def test_each_tenant_has_a_salt_of_its_own_and_no_value_leads_to_anothers() -> None:
    assert salt_of("a") == salt_of("a") != salt_of("b")
    assert salt_of("a", cache_salt="x") not in (salt_of("a"), salt_of("b", cache_salt="x"), "x")
    assert salt_of("a", cache_salt=salt_of("b")) != salt_of("b")
    for guess in ("\0", "\0b", "b", "\0b\0", "a\0b"):
        assert salt_of("a", cache_salt=guess) != salt_of("b")


def test_without_the_setting_a_salt_goes_on_as_it_came_and_none_is_made() -> None:
    assert request_body(call(body={"cache_salt": "x"}))["cache_salt"] == "x"
    assert "cache_salt" not in request_body(call(body={}))
    ask = request_body(call(Format.ASK, messages=[], body=None), salted=True)
    assert ask["cache_salt"] == salt_of("t")


def test_a_server_gets_nothing_that_its_own_entry_does_not_allow() -> None:
    upstream = OpenAIUpstream(Pool("http://unused.test", max_connections=1), ("m",), None)
    with pytest.raises(BadInput) as refused:
        run(upstream.whole(call(body={"priority": 1}, special=Special(("priority",)), stream=False), Attempt("a", 1.0)))
    assert refused.value.param == "priority"


# ---- over a network


def test_the_server_is_told_the_id_the_key_and_what_remains_and_nothing_else() -> None:
    seen: list[dict[bytes, bytes]] = []

    async def chat(exchange: Exchange) -> None:
        seen.append(dict(exchange.headers))
        await exchange.reply(200, json.dumps({"error": {"message": "no", "code": 500}}).encode())

    async def main() -> None:
        service = build_service({("POST", "/v1/chat/completions"): chat})
        async with running_here(service):
            pool = Pool(f"http://127.0.0.1:{service.bound_port}/v1", max_connections=2)
            upstream = OpenAIUpstream(pool, ("m",), "s3cret")
            for stream in (False, True):
                ask = upstream.open if stream else upstream.whole
                with pytest.raises(WorkerFailed, match="no"):
                    await ask(call(stream=stream), Attempt("a", 1234.5))
            assert (await upstream.probe()).models == ("m",)  # 404, but alive
            upstream.close()
        service.log.close()

    run(main)
    for headers in seen:
        del headers[b"host"], headers[b"content-length"]
        assert headers == {
            b"content-type": b"application/json",
            b"authorization": b"Bearer s3cret",
            b"x-request-id": b"r",
            b"x-weir-deadline-ms": b"1234",
        }


def test_a_server_that_rejects_ids_gets_none() -> None:
    """llama-cpp-python 0.3.36 answers 400 with an empty body to any `x-request-id` that is no UUID."""
    ids: list[bytes | None] = []

    async def strict(exchange: Exchange) -> None:
        ids.append(exchange.header(b"x-request-id"))
        listed = json.dumps({"data": [{"id": "m"}], "error": {"message": "no"}}).encode()
        await (exchange.reply(200, listed) if ids[-1] is None else exchange.reply(400, b""))

    async def main() -> None:
        service = build_service({("GET", "/v1/models"): strict, ("POST", "/v1/chat/completions"): strict})
        async with running_here(service):
            upstream = OpenAIUpstream(Pool(f"http://127.0.0.1:{service.bound_port}/v1", max_connections=2), (), None)
            for _ in range(2):
                assert (await upstream.probe()).models == ("m",)
            with pytest.raises(WorkerFailed, match="no"):
                await upstream.whole(call(stream=False), Attempt("a", 1000))
            upstream.close()
        service.log.close()

    run(main)
    assert ids == [b"weir-probe", None, None, None]


def test_a_server_that_rejects_its_probe_for_another_reason_gets_ids() -> None:
    ids: list[bytes | None] = []

    async def broken(exchange: Exchange) -> None:
        ids.append(exchange.header(b"x-request-id"))
        await exchange.reply(400, b"")

    async def main() -> None:
        service = build_service({("GET", "/v1/models"): broken})
        async with running_here(service):
            upstream = OpenAIUpstream(
                Pool(f"http://127.0.0.1:{service.bound_port}/v1", max_connections=2), ("m",), None
            )
            for _ in range(2):
                assert (await upstream.probe()).models == ("m",)
            upstream.close()
        service.log.close()

    run(main)
    assert ids == [b"weir-probe", None, b"weir-probe", None]


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_server_that_fails_its_probe_is_not_alive(status: int) -> None:
    async def models(exchange: Exchange) -> None:
        await exchange.reply(status, b"")

    async def main() -> None:
        service = build_service({("GET", "/v1/models"): models})
        async with running_here(service):
            pool = Pool(f"http://127.0.0.1:{service.bound_port}/v1", max_connections=2)
            with pytest.raises(UpstreamError, match=str(status)):
                await OpenAIUpstream(pool, ("m",), None).probe()
        service.log.close()

    run(main)


@pytest.mark.parametrize("text", [b"\xff\xfe", b"\xc3", b'","x":' + b"[" * 50_000 + b"]" * 50_000 + b',"y":"'])
def test_an_answer_that_is_not_text_or_has_no_bottom_is_the_servers_failure_and_not_ours(text: bytes) -> None:
    with pytest.raises(UpstreamError):
        answer_of(b'{"choices":[{"message":{"content":"' + text + b'"},"z":"' + text + b'"}]}')
    for body in (b'{"error":{"message":"' + text + b'"}}', b'{"error":"' + text + b'"}'):
        assert isinstance(refusal_of(FakeReply(status=500), body), WorkerFailed)  # type: ignore[arg-type]  # a fake


@pytest.mark.parametrize(
    ("status", "body", "message", "param"),
    [
        (400, {"detail": "Server is pinned to 'tiny'."}, "Server is pinned to 'tiny'.", None),
        (422, {"detail": [{"loc": ["body", "a", 0, "role"], "msg": "Field required"}]}, "Field required", "a.0.role"),
        (422, {"detail": [{"loc": "body", "msg": 3}]}, "the worker found the request invalid", None),
        (400, {"detail": []}, "the worker found the request invalid", None),
        (404, {"detail": "no model 'x' here"}, "the worker does not know the requested resource", None),
    ],
)  # fmt: skip
def test_a_fault_in_fastapis_own_form_is_understood(
    status: int, body: dict[str, Any], message: str, param: str | None
) -> None:
    refusal = refusal_of(FakeReply(status=status), json.dumps(body).encode())  # type: ignore[arg-type]  # a fake
    assert isinstance(refusal, BadInput)
    assert (refusal.status, str(refusal), refusal.param) == (status, message, param)


LLAMACPP = (
    "1 validation error:\n  {'type': 'int_parsing', 'loc': ('body', 'max_tokens'), 'msg': 'Input should be a valid "
    "integer, unable to parse string as an integer', 'input': 'x'}\n\n  File \"/srv/llama_cpp/server/app.py\", line 2\n"
)
LLAMACPP_ROLE = (
    "7 validation errors:\n  {'type': 'literal_error', 'loc': ('body', 'messages', 0, "
    "'ChatCompletionRequestSystemMessage', 'role'), 'msg': \"Input should be 'system'\", 'input': 'wizard', "
    "'ctx': {'expected': \"'system'\"}}\n  {'type': ..."
)


@pytest.mark.parametrize(
    ("said", "message", "param"),
    [
        (LLAMACPP, "Input should be a valid integer, unable to parse string as an integer", "max_tokens"),
        (LLAMACPP_ROLE, "Input should be 'system'", "messages.0.ChatCompletionRequestSystemMessage.role"),
    ],
)
def test_a_body_that_llama_cpp_python_finds_invalid_is_the_clients_fault(said: str, message: str, param: str) -> None:
    """As recorded from version 0.3.36, whose status is 500. Nothing of its files reaches the client."""
    body = {"error": {"message": said, "type": "internal_server_error", "param": None, "code": None}}
    refusal = refusal_of(FakeReply(status=500), json.dumps(body).encode())  # type: ignore[arg-type]  # a fake
    assert isinstance(refusal, BadInput)
    assert (refusal.status, str(refusal), refusal.param) == (400, message, param)


def test_any_other_500_stays_the_workers_failure() -> None:
    for said in ("validation error", "1 validation error:\n  no place", LLAMACPP.replace("'body'", "'response'"), None):
        body = json.dumps({"error": {"message": said}}).encode()
        assert isinstance(refusal_of(FakeReply(status=500), body), WorkerFailed)  # type: ignore[arg-type]  # a fake


def test_a_missing_route_is_no_fault_of_the_request_in_fastapis_form_either() -> None:
    refusal = refusal_of(FakeReply(status=404), b'{"detail":"Not Found"}')  # type: ignore[arg-type]  # a fake
    assert isinstance(refusal, WorkerFailed)
    assert "root of an OpenAI API" in str(refusal)


# ---- damage that a client could not see


DAMAGE = {
    "a line that is no field": b"<p>Bad gateway</p>\n\n",
    "a field whose name is damaged": sse(chunk({"content": "x"})).replace(b"data", b"dat"),
    "NUL bytes": b"\0\0\n\n",
    "half an event": b'data: {"choices":[{"del\n\n',
    "no event of ours": b'data: {"hello":1}\n\n',
    "an error that is not called so": b'data: {"message":"broken","code":500}\n\n',
    "bytes that are no text": sse(chunk({"content": "MARK"})).replace(b"MARK", b"\xff\xfe"),
    "another choice": sse(chunk({"content": "x"})).replace(b'"index": 0', b'"index": 1'),
    "a finish that is none": sse(chunk(finish="abort")),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("alone", [True, False])
def test_damage_in_the_middle_of_a_stream_ends_it(damage: bytes, alone: bool) -> None:
    good = sse(chunk({"content": "A"}))
    rest = good + sse(chunk(finish="stop")) + b"data: [DONE]\n\n"
    pieces = (good, damage, rest) if alone else (good, good + damage + rest)
    for asked in (call(), call(format=Format.ASK)):
        with pytest.raises(UpstreamError):
            hear(*pieces, asked=asked)


def test_a_byte_order_mark_costs_no_word() -> None:
    whole = sse(chunk({"content": "A"})) + sse(chunk(finish="stop")) + b"data: [DONE]\n\n"
    assert hear(b"\xef\xbb\xbf" + whole).text == "A"


def test_what_is_read_of_an_event_takes_time_by_its_length_and_no_more() -> None:
    """An event of a megabyte that is nearly plain: looked at a second time from each of its words, it takes hours."""
    hostile = b"data: {" + b'"choices"' * 100_000 + b"\n\n"
    with pytest.raises(UpstreamError):
        hear(sse(chunk({"content": "A"})), hostile)


# ---- the client's own bytes

BODIES = st.fixed_dictionaries(
    {"messages": st.just([{"role": "user", "content": "Hello"}])},
    optional={
        "model": st.sampled_from(["m", "other", None]),
        "max_tokens": st.sampled_from([7, 9, None]),
        "max_completion_tokens": st.sampled_from([7, 9, None]),
        "stream": st.sampled_from([True, False, None]),
        "stream_options": st.just({"include_usage": True}),
        "tenant": st.just("t"),
        "temperature": st.just(0.5),
        "of_next_year": st.just([1]),
    },
)


@given(body=BODIES, granted=st.sampled_from([7, 9, UNLIMITED]))
def test_the_clients_own_bytes_are_sent_only_if_they_say_what_the_router_would_say(
    body: dict[str, Any], granted: int
) -> None:
    parsed = parse_chat(json.dumps(body).encode())
    request = InferenceRequest("r", "t", deadline=1.0, model="m", max_tokens=9, granted_tokens=granted, parsed=parsed)
    if is_as_sent(request):
        assert {"stream": False, **json.loads(parsed.sent)} == request_body(request)


@pytest.mark.parametrize(
    ("body", "granted", "as_sent"),
    [
        ({"model": "m", "max_tokens": 9}, 9, True),
        ({"model": "m", "max_tokens": 9, "stream": False, "temperature": 0.5}, 9, True),
        ({"model": "m", "max_completion_tokens": 9}, 9, True),
        ({"model": "m"}, UNLIMITED, True),
        ({"model": "m", "max_tokens": 9}, 7, False),
        ({"model": "m"}, 7, False),
        ({"max_tokens": 9}, 9, False),
        ({"model": "other", "max_tokens": 9}, 9, False),
        ({"model": "m", "max_tokens": 9, "tenant": "t"}, 9, False),
        ({"model": "m", "max_tokens": 9, "stream": True}, 9, False),
        ({"model": "m", "max_tokens": 9, "max_completion_tokens": 9}, 9, False),
        ({"model": "m", "max_tokens": 9, "top_k": 5}, 9, True),
    ],
)
def test_a_body_of_which_nothing_is_to_be_changed_is_sent_as_it_came(
    body: dict[str, Any], granted: int, as_sent: bool
) -> None:
    parsed = parse_chat(json.dumps({"messages": [{"role": "user", "content": "Hello"}], **body}, indent=3).encode())
    request = InferenceRequest("r", "t", deadline=1.0, model="m", max_tokens=9, granted_tokens=granted, parsed=parsed)
    assert is_as_sent(request) is as_sent
