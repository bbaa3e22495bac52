"""Which fields of a request go on, which are bounded, and which are kept back until an operator allows them."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contracts.generate import LONGEST_TOKENS
from services.router.parsing.fields import (
    ALLOWABLE,
    FIELDS,
    IN_THE_PROMPT,
    MAX_BEST_OF,
    WITHHELD,
    Price,
    Servers,
    asked_min_tokens,
    in_table,
    judge,
)
from services.router.parsing.parsed import Format, ParsedRequest
from services.router.parsing.parsers import parse_chat, parse_completion
from services.runtime.errors import BadInput

NONE: frozenset[str] = frozenset()
ONLY_WEIR = Servers(weir=True, allow=None)
MESSAGES = [{"role": "user", "content": "x"}]


def asked(**fields: Any) -> ParsedRequest:
    return parse_chat(json.dumps({"messages": MESSAGES, **fields}).encode())


def text(**fields: Any) -> ParsedRequest:
    return parse_completion(json.dumps({"prompt": "x", **fields}).encode())


def refused(request: ParsedRequest, allowed: frozenset[str] = NONE, longest_tokens: int = LONGEST_TOKENS) -> BadInput:
    with pytest.raises(BadInput) as fault:
        judge(request, Servers(allow=allowed), longest_tokens)
    assert fault.value.status == 400
    return fault.value


def price(request: ParsedRequest, allowed: frozenset[str] = NONE) -> Price:
    return judge(request, Servers(allow=allowed))


def copies(request: ParsedRequest, allowed: frozenset[str] = NONE) -> int:
    return price(request, allowed).copies


def refused_by_weir(request: ParsedRequest) -> BadInput:
    with pytest.raises(BadInput) as fault:
        judge(request, ONLY_WEIR)
    assert fault.value.status == 400
    with pytest.raises(BadInput, match=re.escape(fault.value.message)):
        judge(request, Servers(weir=True, allow=ALLOWABLE))
    return fault.value


KEPT_BACK = {
    "use_beam_search": True, "priority": -999, "service_tier": "priority", "store": True,
    "web_search_options": {}, "chat_template": "{{ x }}", "tools": [{"type": "web_search"}],
    "modalities": ["text", "audio"], "audio": {"voice": "x"}, "prediction": {"type": "content", "content": "x"},
    "background": True, "mm_processor_kwargs": {}, "media_io_kwargs": {}, "kv_transfer_params": {"remote_host": "x"},
    "ec_transfer_params": {}, "vllm_xargs": {"x": 1}, "request_id": "x", "rid": "x", "data_parallel_rank": 1,
    "routed_dp_rank": 1, "disagg_prefill_dp_rank": 1, "custom_logit_processor": "x", "logits_processors": ["os.system"],
    "lora_path": "x", "lora": [{"id": 0, "scale": 1}], "session_params": {}, "session_id": "x",
    "return_hidden_states": True, "return_routed_experts": True, "bootstrap_host": "x", "bootstrap_port": 1,
    "bootstrap_room": 1, "id_slot": 0,
    "input_embeds": [[0.5]], "prompt_embeds": "x", "custom_labels": {}, "models": ["x"], "route": "fallback",
    "provider": {}, "fallbacks": ["x"], "api_base": "http://x", "base_url": "http://x", "search_parameters": {},
    "enable_search": True, "plugins": [{"id": "web"}], "data_sources": [{}], "mcp_servers": [{}],
    "prompt_cache_retention": "24h", "deferred": True, "moderation": {"model": "x"}, "extra_body": {"priority": 1},
    "extra_headers": {"x": "y"},
    "chat_template_kwargs": {"chat_template": "{{ x }}"},
}  # fmt: skip
ASKS_FOR_NOTHING = {
    "best_of": 1, "use_beam_search": False, "priority": 0, "service_tier": "auto", "store": False, "echo": True,
    "tools": [{"type": "function", "function": {"name": "f"}}, {"function": {"name": "g"}}, {"type": "custom"}],
    "modalities": ["text"], "background": False, "chat_template_kwargs": {"enable_thinking": False}, "id_slot": -1,
    "return_hidden_states": False, "prompt_cache_retention": "in_memory", "logits_processors": [], "plugins": [],
}  # fmt: skip
GOES_ON = {
    "temperature": 0.5, "top_k": 3, "min_p": 0.1, "seed": 7, "stop": ["x"], "user": "u",
    "metadata": {"a": "b"}, "reasoning_effort": "low", "verbosity": "low", "parallel_tool_calls": False,
    "prompt_cache_key": "k", "safety_identifier": "s", "repetition_penalty": 1.1, "ignore_eos": True,
    "truncate_prompt_tokens": 100, "return_token_ids": True, "thinking_token_budget": 9, "cache_prompt": False,
    "samplers": ["top_k"], "repetition_detection": {}, "of_next_year": {"x": [1]},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(WITHHELD))
def test_what_is_not_priced_is_refused_by_name_and_passes_where_it_is_allowed(name: str) -> None:
    request = asked(**{name: KEPT_BACK[name]})
    fault = refused(request)
    assert fault.param == name
    assert f"allow: [{name}]" in fault.message
    assert copies(request, frozenset({name})) == 1
    refused(request, ALLOWABLE - {name})


@pytest.mark.parametrize(("name", "value"), ASKS_FOR_NOTHING.items(), ids=ASKS_FOR_NOTHING)
def test_a_value_that_asks_for_nothing_goes_on(name: str, value: object) -> None:
    assert copies(asked(**{name: value}), NONE) == 1


@pytest.mark.parametrize(("name", "value"), GOES_ON.items(), ids=GOES_ON)
def test_a_field_that_changes_neither_cost_nor_order_is_not_looked_at(name: str, value: object) -> None:
    request = asked(**{name: value})
    assert request.special is None
    assert copies(request, NONE) == 1


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_null_is_the_same_as_nothing(name: str) -> None:
    assert copies(asked(**{name: None}), NONE) == 1


@pytest.mark.parametrize(
    "name", ["n_predict", "max_new_tokens", "max_output_tokens", "max_gen_len", "max_length", "num_predict"]
)
def test_a_length_under_another_name_cannot_go_beside_the_one_that_is_priced(name: str) -> None:
    for request in (asked(**{name: 9}), asked(max_tokens=5, **{name: 100_000})):
        fault = refused(request, ALLOWABLE)
        assert (fault.param, "max_tokens" in fault.message) == (name, True)


@pytest.mark.parametrize("name", ["min_tokens", "min_new_tokens"])
@pytest.mark.parametrize("value", [-1, 11, 9000, 1.5, "1", True])
def test_the_least_length_is_within_the_longest(name: str, value: object) -> None:
    assert refused(asked(**{name: value}), ALLOWABLE, longest_tokens=10).param == name
    assert judge(asked(**{name: 10}), Servers(allow=NONE), longest_tokens=10).copies == 1


def test_without_a_limit_the_least_length_is_within_the_longest_that_anybody_may_ask_for() -> None:
    assert refused(asked(min_tokens=LONGEST_TOKENS + 1)).param == "min_tokens"
    assert copies(asked(min_tokens=LONGEST_TOKENS)) == 1
    assert asked_min_tokens({"min_tokens": 7, "min_new_tokens": None}) == 7
    assert asked_min_tokens({}) == asked_min_tokens(None) == 0


@pytest.mark.parametrize("name", ["logprobs", "top_logprobs", "prompt_logprobs", "n_probs"])
@pytest.mark.parametrize("value", [-1, 21, 10**9, 1.5, "1", []])
def test_logprobs_are_bounded_though_they_are_allowed(name: str, value: object) -> None:
    assert refused(asked(**{name: value}), ALLOWABLE).param == name
    assert copies(asked(**{name: 20}), ALLOWABLE) == 1


def test_chats_logprobs_are_a_flag() -> None:
    assert copies(asked(logprobs=True, top_logprobs=5), NONE) == 1


def test_the_logprobs_of_a_prompt_make_it_count_twice() -> None:
    assert price(text(echo=True, logprobs=3)) == price(asked(prompt_logprobs=0)) == Price(times=2, exact=False)
    for once in (text(echo=True), text(logprobs=3), text(echo=False, logprobs=3), text(prompt_logprobs=None, n=1)):
        assert price(once) == Price()


@pytest.mark.parametrize("value", [0, -1, MAX_BEST_OF + 1, True, "2", 1.5])
def test_best_of_is_bounded_though_it_is_allowed(value: object) -> None:
    assert refused(text(best_of=value), ALLOWABLE).param == "best_of"
    assert copies(text(best_of=MAX_BEST_OF), ALLOWABLE) == MAX_BEST_OF


@pytest.mark.parametrize("value", ["", "x" * 1025, 7, ["x"]])
def test_a_salt_is_a_short_text(value: object) -> None:
    assert refused(asked(cache_salt=value), ALLOWABLE).param == "cache_salt"
    assert copies(asked(cache_salt="x"), NONE) == 1


@pytest.mark.parametrize("tools", ["web_search", {"type": "function"}, [1], [{"type": "function"}, {"type": "mcp"}]])
def test_tools_that_the_client_does_not_run_itself_are_kept_back(tools: object) -> None:
    assert refused(asked(tools=tools)).param == "tools"


def test_every_row_of_the_table_is_tested() -> None:
    assert set(KEPT_BACK) == WITHHELD
    assert NOT_FOR_WEIR.keys() | HINTS_FOR_WEIR.keys() == FIELDS.keys()


# ---- what is priced


PICTURE = (
    "data:image/png;base64,"
    + base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (1120).to_bytes(4, "big") + (560).to_bytes(4, "big")).decode()
)


def with_part(**part: Any) -> ParsedRequest:
    return asked(messages=[{"role": "user", "content": [{"type": "text", "text": "What?"}, part]}])


PRICED = {
    "several answers": (asked(n=3), Price(3)),
    "the best of several": (text(best_of=4), Price(4)),
    "some of the best": (text(n=2, best_of=4), Price(4)),
    "several prompts": (text(prompt=["one", "three", "six"]), Price(3, bytes=8)),
    "several answers to several prompts": (text(prompt=["a", "b"], n=5), Price(10, bytes=1)),
    "token ids": (text(prompt=[1, 2, 3]), Price(tokens=3, exact=False)),
    "prompts of token ids": (text(prompt=[[1, 2, 3], [4]]), Price(2, tokens=4, exact=False)),
    "tools": (asked(tools=[{"type": "function", "function": {"name": "f"}}]),
              Price(bytes=len('[{"type":"function","function":{"name":"f"}}]'))),
    "functions": (asked(functions=[{"name": "f"}]), Price(bytes=len('[{"name":"f"}]'))),
    "a schema": (asked(response_format={"type": "json_object"}), Price(bytes=22, exact=False)),
    "documents": (asked(documents=[{"text": "x"}]), Price(bytes=len('[{"text":"x"}]'), exact=False)),
    "calls of tools": (asked(messages=[*MESSAGES, {"role": "assistant", "tool_calls": [{"id": "c"}]}]),
                       Price(bytes=len('[{"id":"c"}]'))),
    "ids beside messages": (asked(input_ids=[7, 8]), Price(tokens=2, exact=False)),
    "a picture": (with_part(type="image_url", image_url={"url": PICTURE}), Price(tokens=800, exact=False)),
    "a picture of low detail": (
        with_part(type="image_url", image_url={"url": PICTURE, "detail": "low"}), Price(tokens=85, exact=False)),
    "a picture elsewhere": (
        with_part(type="image_url", image_url={"url": "https://a.test/x.png"}), Price(tokens=1024, exact=False)),
    "a sound": (with_part(type="input_audio", input_audio={"data": "A" * 8000, "format": "mp3"}),
                Price(tokens=10, exact=False)),
    "a file": (with_part(type="file", file={"file_data": "data:application/pdf;base64," + "A" * 3200}),
               Price(tokens=151, exact=False)),
    "a part of another server": (
        with_part(type="video_url", video_url={"url": "https://a.test/x"}), Price(tokens=1024, exact=False)),
}  # fmt: skip


@pytest.mark.parametrize(("request_", "expected"), PRICED.values(), ids=PRICED)
def test_what_makes_more_work_is_priced_and_passes_without_being_allowed(
    request_: ParsedRequest, expected: Price
) -> None:
    assert price(request_) == expected


def test_a_plain_request_has_no_price_of_its_own() -> None:
    assert asked(temperature=0.5, user="u").special is None
    assert price(asked()) == price(text()) == Price()
    assert set(IN_THE_PROMPT) <= set(FIELDS)


@pytest.mark.parametrize(
    "fields", [{"n": 129}, {"n": 0}, {"prompt": ["x"] * 2049}, {"prompt": ["x"] * 100, "n": 21}, {"prompt": [1, "x"]},
               {"prompt": ["x", [1]]}, {"prompt": []}, {"prompt": [[]]}, {"prompt": None}, {"max_tokens": 0}],
)  # fmt: skip
def test_what_is_priced_is_bounded(fields: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as fault:
        price(text(**fields))
    assert (fault.value.param or "").partition("[")[0] in fields


# ---- what a Weir worker answers


TOOLS = [{"type": "function", "function": {"name": "f"}}]
NOT_FOR_WEIR: dict[str, Any] = {
    "n": 2, "best_of": 2, "tools": TOOLS, "functions": [{"name": "f"}], "tool_choice": "required",
    "function_call": {"name": "f"}, "response_format": {"type": "json_schema", "json_schema": {}},
    "structured_outputs": {"regex": "a+"}, "guided_json": {"type": "object"}, "guided_regex": "a",
    "guided_choice": ["a"], "guided_grammar": "x", "json_schema": {"type": "object"}, "grammar": "x", "regex": "a",
    "ebnf": "x", "structural_tag": "x", "documents": [{}], "input_ids": [1], "prompt_token_ids": [1],
    "prompt_logprobs": 0, "echo": True, "logprobs": True, "top_logprobs": 3, "n_probs": 1, "logprob_token_ids": [1],
    "min_tokens": 1, "min_new_tokens": 1, "suffix": "x", "logit_bias": {"5": 1}, "frequency_penalty": 0.5,
    "presence_penalty": -1, "stop_token_ids": [1], "n_predict": 9, "max_new_tokens": 9, "max_output_tokens": 9,
    "max_gen_len": 9, "max_length": 9, "num_predict": 9, "n_cmpl": 2, "use_beam_search": True,
    "return_hidden_states": True, "return_routed_experts": True, "chat_template": "x",
    "chat_template_kwargs": {"chat_template": "x"}, "input_embeds": [[0.5]], "prompt_embeds": "x",
    "custom_logit_processor": "x", "logits_processors": ["x"], "lora_path": "x", "lora": [{}],
    "web_search_options": {}, "search_parameters": {}, "enable_search": True, "plugins": [{}], "data_sources": [{}],
    "mcp_servers": [{}], "moderation": {"model": "x"}, "modalities": ["text", "audio"], "audio": {},
    "background": True, "deferred": True, "extra_body": {"n": 2},
}  # fmt: skip
HINTS_FOR_WEIR: dict[str, Any] = {
    "cache_salt": "x", "mm_processor_kwargs": {}, "media_io_kwargs": {}, "priority": 5, "data_parallel_rank": 1,
    "routed_dp_rank": 1, "disagg_prefill_dp_rank": 1, "id_slot": 1, "vllm_xargs": {}, "kv_transfer_params": {},
    "ec_transfer_params": {}, "bootstrap_host": "x", "bootstrap_port": 1, "bootstrap_room": 1, "api_base": "x",
    "base_url": "x", "request_id": "x", "rid": "x", "session_id": "x", "session_params": {}, "custom_labels": {},
    "models": ["x"], "route": "x", "provider": {}, "fallbacks": ["x"], "service_tier": "priority", "prediction": {},
    "store": True, "prompt_cache_retention": "24h", "extra_headers": {"x": "y"},
}  # fmt: skip
WITHOUT_EFFECT_FOR_WEIR: dict[str, Any] = {
    "n": 1, "best_of": 1, "tools": [], "tool_choice": "auto", "function_call": "none", "logprobs": False,
    "response_format": {"type": "text"}, "echo": False, "suffix": "", "logit_bias": {}, "frequency_penalty": 0,
    "presence_penalty": 0.0, "min_tokens": 0, "modalities": ["text"], "store": False, "parallel_tool_calls": True,
    "chat_template_kwargs": {"enable_thinking": False}, "user": "u", "metadata": {"a": "b"}, "top_logprobs": 0,
    "reasoning_effort": "low", "safety_identifier": "s", "prompt_cache_key": "k", "of_next_year": 1,
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), NOT_FOR_WEIR.items(), ids=NOT_FOR_WEIR)
def test_a_weir_worker_refuses_by_name_what_it_cannot_do(name: str, value: object) -> None:
    fault = refused_by_weir(asked(**{name: value}))
    assert fault.param == name
    assert name in fault.message


@pytest.mark.parametrize(("name", "value"), [*HINTS_FOR_WEIR.items(), *WITHOUT_EFFECT_FOR_WEIR.items()])
def test_a_weir_worker_ignores_a_hint_and_a_value_without_effect(name: str, value: object) -> None:
    assert judge(asked(**{name: value}), ONLY_WEIR) == Price()
    assert judge(asked(tools=TOOLS, tool_choice="none"), ONLY_WEIR) == Price()


OTHER_SHAPES = {
    "a picture": (with_part(type="image_url", image_url={"url": PICTURE}), "messages[0].content[1].type"),
    "an unknown role": (asked(messages=[{"role": "ipython", "content": "x"}]), "messages[0].role"),
    "calls of tools": (
        asked(messages=[*MESSAGES, {"role": "assistant", "tool_calls": [{}]}]),
        "messages[1].tool_calls",
    ),
    "several prompts": (text(prompt=["a", "b"]), "prompt"),
    "token ids": (text(prompt=[1, 2]), "prompt"),
    "a hot answer": (asked(temperature=2.5), "temperature"),
    "all of the mass": (asked(top_p=0), "top_p"),
    "many stops": (asked(stop=["a", "b", "c", "d", "e"]), "stop"),
}


@pytest.mark.parametrize(("request_", "param"), OTHER_SHAPES.values(), ids=OTHER_SHAPES)
def test_a_weir_worker_refuses_what_is_not_one_text_and_another_server_gets_it(
    request_: ParsedRequest, param: str
) -> None:
    assert refused_by_weir(request_).param == param
    price(request_)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.dictionaries(st.sampled_from(sorted(FIELDS)), JSON, max_size=4), st.sets(st.sampled_from(sorted(ALLOWABLE))),
    st.booleans(),
)  # fmt: skip
def test_whatever_value_a_field_has_it_is_judged_and_never_an_error_of_ours(
    fields: dict[str, Any], allowed: set[str], weir: bool
) -> None:
    given = ParsedRequest(Format.CHAT, None, None, 256, False, body=fields, special=in_table(fields))
    try:
        told, named = judge(given, Servers(weir, frozenset(allowed))), None
    except BadInput as fault:
        told, named = Price(), fault.param
    assert named is None or named in fields
    assert 1 <= told.copies <= 128
    assert told.bytes >= 0 <= told.tokens
