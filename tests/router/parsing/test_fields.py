"""Which fields of a request go on, which are bounded, and which are kept back until an operator allows them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.parsing.fields import ALLOWABLE, FIELDS, MAX_BEST_OF, in_table, judge
from services.router.parsing.parsed import Format, ParsedRequest
from services.router.parsing.parsers import chat_parser, completion_parser
from services.runtime.errors import BadInput

NONE: frozenset[str] = frozenset()
MESSAGES = [{"role": "user", "content": "x"}]


def asked(**fields: Any) -> ParsedRequest:
    return chat_parser(256)(json.dumps({"messages": MESSAGES, **fields}).encode())


def text(**fields: Any) -> ParsedRequest:
    return completion_parser(256)(json.dumps({"prompt": "x", **fields}).encode())


def refused(request: ParsedRequest, allowed: frozenset[str] = NONE) -> BadInput:
    with pytest.raises(BadInput) as fault:
        judge(request, allowed)
    assert fault.value.status == 400
    return fault.value


KEPT_BACK = {
    "best_of": 2, "use_beam_search": True, "priority": -999, "service_tier": "priority", "store": True,
    "web_search_options": {}, "chat_template": "{{ x }}", "prompt_logprobs": 1, "tools": [{"type": "web_search"}],
    "modalities": ["text", "audio"], "audio": {"voice": "x"}, "prediction": {"type": "content", "content": "x"},
    "background": True, "mm_processor_kwargs": {}, "media_io_kwargs": {}, "kv_transfer_params": {"remote_host": "x"},
    "ec_transfer_params": {}, "vllm_xargs": {"x": 1}, "request_id": "x", "rid": "x", "data_parallel_rank": 1,
    "routed_dp_rank": 1, "disagg_prefill_dp_rank": 1, "custom_logit_processor": "x", "logits_processors": ["os.system"],
    "lora_path": "x", "lora": [{"id": 0, "scale": 1}], "session_params": {}, "session_id": "x",
    "return_hidden_states": True, "return_routed_experts": True, "bootstrap_host": "x", "bootstrap_port": 1,
    "bootstrap_room": 1, "id_slot": 0, "n_cmpl": 2, "documents": [], "input_ids": [1], "prompt_token_ids": [1],
    "input_embeds": [[0.5]], "prompt_embeds": "x", "custom_labels": {}, "models": ["x"], "route": "fallback",
    "provider": {}, "fallbacks": ["x"], "api_base": "http://x", "base_url": "http://x", "search_parameters": {},
    "enable_search": True, "plugins": [{"id": "web"}], "data_sources": [{}], "mcp_servers": [{}],
    "prompt_cache_retention": "24h", "deferred": True, "extra_body": {"priority": 1}, "extra_headers": {"x": "y"},
    "chat_template_kwargs": {"chat_template": "{{ x }}"},
}  # fmt: skip
NEEDS_COMPANY = {"echo"}
"""Kept back beside another field only: it has a test of its own."""
ASKS_FOR_NOTHING = {
    "best_of": 1, "use_beam_search": False, "priority": 0, "service_tier": "auto", "store": False, "echo": True,
    "tools": [{"type": "function", "function": {"name": "f"}}, {"function": {"name": "g"}}, {"type": "custom"}],
    "modalities": ["text"], "background": False, "chat_template_kwargs": {"enable_thinking": False}, "id_slot": -1,
    "return_hidden_states": False, "prompt_cache_retention": "in_memory", "logits_processors": [], "plugins": [],
}  # fmt: skip
GOES_ON = {
    "temperature": 0.5, "top_k": 3, "min_p": 0.1, "seed": 7, "stop": ["x"], "logit_bias": {"5": 1}, "user": "u",
    "response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a+"}, "guided_json": {}, "regex": "a",
    "metadata": {"a": "b"}, "reasoning_effort": "low", "verbosity": "low", "parallel_tool_calls": False,
    "prompt_cache_key": "k", "safety_identifier": "s", "repetition_penalty": 1.1, "ignore_eos": True, "grammar": "x",
    "truncate_prompt_tokens": 100, "return_token_ids": True, "thinking_token_budget": 9, "cache_prompt": False,
    "samplers": ["top_k"], "repetition_detection": {}, "of_next_year": {"x": [1]},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ALLOWABLE - NEEDS_COMPANY))
def test_what_is_not_priced_is_refused_by_name_and_passes_where_it_is_allowed(name: str) -> None:
    request = asked(**{name: KEPT_BACK[name]})
    fault = refused(request)
    assert fault.param == name
    assert f"allow: [{name}]" in fault.message
    assert judge(request, frozenset({name})) == (2 if name == "best_of" else 1)
    refused(request, ALLOWABLE - {name})


@pytest.mark.parametrize(("name", "value"), ASKS_FOR_NOTHING.items(), ids=ASKS_FOR_NOTHING)
def test_a_value_that_asks_for_nothing_goes_on(name: str, value: object) -> None:
    assert judge(asked(**{name: value}), NONE) == 1


@pytest.mark.parametrize(("name", "value"), GOES_ON.items(), ids=GOES_ON)
def test_a_field_that_changes_neither_cost_nor_order_is_not_looked_at(name: str, value: object) -> None:
    request = asked(**{name: value})
    assert request.costly == ()
    assert judge(request, NONE) == 1


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_null_is_the_same_as_nothing(name: str) -> None:
    assert judge(asked(**{name: None}), NONE) == 1


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
    assert refused(asked(max_tokens=10, **{name: value}), ALLOWABLE).param == name
    assert judge(asked(max_tokens=10, **{name: 10}), NONE) == 1


@pytest.mark.parametrize("name", ["logprobs", "top_logprobs", "prompt_logprobs", "n_probs"])
@pytest.mark.parametrize("value", [-1, 21, 10**9, 1.5, "1", []])
def test_logprobs_are_bounded_though_they_are_allowed(name: str, value: object) -> None:
    assert refused(asked(**{name: value}), ALLOWABLE).param == name
    assert judge(asked(**{name: 20}), ALLOWABLE) == 1


def test_chats_logprobs_are_a_flag() -> None:
    assert judge(asked(logprobs=True, top_logprobs=5), NONE) == 1


def test_an_echo_with_logprobs_is_the_prompts_logprobs() -> None:
    assert refused(text(echo=True, logprobs=3)).param == "echo"
    assert judge(text(echo=True, logprobs=3), frozenset({"echo"})) == 1
    assert judge(text(echo=True), NONE) == judge(text(logprobs=3), NONE) == judge(text(echo=False, logprobs=3), NONE)


@pytest.mark.parametrize("value", [0, -1, MAX_BEST_OF + 1, True, "2", 1.5])
def test_best_of_is_bounded_though_it_is_allowed(value: object) -> None:
    assert refused(text(best_of=value), ALLOWABLE).param == "best_of"
    assert judge(text(best_of=MAX_BEST_OF), ALLOWABLE) == MAX_BEST_OF


@pytest.mark.parametrize("value", ["", "x" * 1025, 7, ["x"]])
def test_a_salt_is_a_short_text(value: object) -> None:
    assert refused(asked(cache_salt=value), ALLOWABLE).param == "cache_salt"
    assert judge(asked(cache_salt="x"), NONE) == 1


@pytest.mark.parametrize("tools", ["web_search", {"type": "function"}, [1], [{"type": "function"}, {"type": "mcp"}]])
def test_tools_that_the_client_does_not_run_itself_are_kept_back(tools: object) -> None:
    assert refused(asked(tools=tools)).param == "tools"


def test_where_only_weir_workers_serve_a_model_no_field_is_judged_since_none_goes_on() -> None:
    assert judge(asked(priority=5, best_of=7, n_predict=9, store=True), None) == 1


def test_every_row_of_the_table_is_tested() -> None:
    assert set(KEPT_BACK) | NEEDS_COMPANY == ALLOWABLE


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(FIELDS)), JSON, max_size=4), st.sets(st.sampled_from(sorted(ALLOWABLE))))
def test_whatever_value_a_field_has_it_is_judged_and_never_an_error_of_ours(
    fields: dict[str, Any], allowed: set[str]
) -> None:
    try:
        given = ParsedRequest(Format.CHAT, None, None, 256, False, body=fields, costly=in_table(fields))
        copies = judge(given, frozenset(allowed))
    except BadInput as fault:
        copies, named = 1, fault.param
    else:
        named = None
    assert named is None or named in fields
    assert 1 <= copies <= MAX_BEST_OF
    assert copies == 1 or "best_of" in allowed
