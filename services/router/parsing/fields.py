"""Fields of OpenAI requests that change the cost, the order or the bill of an answer, and the rule for each.

FIELDS lists all of them; other fields reach an OpenAI-compatible server unchanged (docs/api/openai.md, and decision
045). A value must be within its `bound`; a field that `changes` something unpriced is refused unless the value has no
effect or every server of the model allows the field (`allow` in the worker list); `best_of` is priced.

Names and meanings are those documented in 2026 for OpenAI, vLLM, SGLang, llama.cpp's server, and routers and providers
with the same API. Options for templates and multi-modal processors are refused, since they have stopped servers
(CVE-2025-61620, CVE-2025-62426), and so are embeddings in place of a prompt (CVE-2025-62164). Grammars and patterns for
structured output pass: the server has to bound their cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from services.router.parsing.parsed import ParsedRequest
from services.runtime.errors import BadInput

MAX_LOGPROBS = 20
"""OpenAI's bound for chat, and vLLM's default."""
MAX_BEST_OF = 20
MAX_TOKEN_IDS = 128
MAX_SALT_CHARS = 1024

Harmless = Callable[[Any, dict[str, Any]], bool]
"""(value, body) -> whether the field has no effect with this value."""
Bound = Callable[[Any, int], str]
"""(value, max_tokens) -> what was expected instead, or ""."""


class Rule(NamedTuple):
    """The rule for one field. A null value counts as an absent field."""

    changes: str = ""
    """The unpriced effect, as the rest of a sentence that begins with 'it'; empty if only the bound applies."""
    harmless: Harmless = lambda *_: False
    bound: Bound | None = None


# ---- rules for values


def _one_of(*values: Any) -> Harmless:
    return lambda value, _: value in values


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _up_to(limit: int) -> Bound:
    return lambda value, _: "" if _whole(value) and 0 <= value <= limit else f"a number from 0 to {limit} was expected"


def _flag_or_up_to(limit: int) -> Bound:
    within = _up_to(limit)
    return lambda value, max_tokens: "" if isinstance(value, bool) else within(value, max_tokens)


def _within_length(value: Any, max_tokens: int) -> str:
    fits = _whole(value) and 0 <= value <= max_tokens
    return "" if fits else f"a number from 0 to max_tokens({max_tokens}) was expected"


def _official_length(value: Any, max_tokens: int) -> str:
    return "set the length of an answer with `max_tokens` or `max_completion_tokens`"


def _from_one(limit: int) -> Bound:
    return lambda value, _: "" if _whole(value) and 1 <= value <= limit else f"a number from 1 to {limit} was expected"


def _short_list(limit: int) -> Bound:
    expected = f"a list of at most {limit} was expected"
    return lambda value, _: "" if isinstance(value, list) and len(value) <= limit else expected


def _text(limit: int) -> Bound:
    expected = f"a text of 1 to {limit} characters was expected"
    return lambda value, _: "" if isinstance(value, str) and 1 <= len(value) <= limit else expected


def _only_clients_tools(value: Any, body: dict[str, Any]) -> bool:
    """Tools that the client runs itself. Servers take a tool without a type for a function."""
    return isinstance(value, list) and all(
        isinstance(tool, dict) and tool.get("type", "function") in ("function", "custom") for tool in value
    )


def _no_template_inside(value: Any, body: dict[str, Any]) -> bool:
    return isinstance(value, dict) and not value.keys() & {"chat_template", "tokenize"}


def _no_logprobs_beside(value: Any, body: dict[str, Any]) -> bool:
    """With a number of logprobs, `echo` of a text completion also returns the logprobs of the prompt."""
    return value is False or not _whole(body.get("logprobs"))


# ---- the table

_ORDER = "changes the order in which the server takes requests"
_PLACE = "chooses the part of the server that does the work"
_BILL = "may add charges beyond the answer"
_KEPT = "makes the provider store the request"
_WORK = "makes the server do work that the cost estimate does not include"
_PROMPT = "adds tokens to the prompt that the cost estimate does not include"
_CODE = "makes the server run code from the request"
_REACH = "makes the server read data from another machine or another request"
_MODEL = "may select another model than the requested one"
_NAMES = "refers to a server object that may belong to another tenant"
_LOOSE = "lets the work continue after the request has ended"
_LARGE = "makes the answer much larger than its text"

FIELDS: dict[str, Rule] = {
    # within what is priced
    "logprobs": Rule(bound=_flag_or_up_to(MAX_LOGPROBS)),
    "top_logprobs": Rule(bound=_up_to(MAX_LOGPROBS)),
    "n_probs": Rule(bound=_up_to(MAX_LOGPROBS)),  # llama.cpp
    "logprob_token_ids": Rule(bound=_short_list(MAX_TOKEN_IDS)),  # vLLM
    "min_tokens": Rule(bound=_within_length),  # vLLM, SGLang
    "min_new_tokens": Rule(bound=_within_length),
    "cache_salt": Rule(bound=_text(MAX_SALT_CHARS)),  # vLLM, SGLang
    # the length under other names, some of which take precedence over `max_tokens`
    "n_predict": Rule(bound=_official_length),  # llama.cpp
    "max_new_tokens": Rule(bound=_official_length),  # SGLang, Hugging Face
    "max_output_tokens": Rule(bound=_official_length),  # OpenAI's responses
    "max_gen_len": Rule(bound=_official_length),
    "max_length": Rule(bound=_official_length),
    "num_predict": Rule(bound=_official_length),  # Ollama
    # more work
    "best_of": Rule(_WORK, _one_of(1), _from_one(MAX_BEST_OF)),
    "n_cmpl": Rule(_WORK, _one_of(1)),  # llama.cpp's name of n
    "use_beam_search": Rule(_WORK, _one_of(False)),  # vLLM
    "prompt_logprobs": Rule(_WORK, bound=_up_to(MAX_LOGPROBS)),  # vLLM
    "echo": Rule(_WORK, _no_logprobs_beside),
    "mm_processor_kwargs": Rule(_WORK),  # vLLM
    "media_io_kwargs": Rule(_WORK),  # vLLM
    "return_hidden_states": Rule(_LARGE, _one_of(False)),  # SGLang
    "return_routed_experts": Rule(_LARGE, _one_of(False)),  # SGLang
    # the prompt
    "chat_template": Rule(_CODE),  # vLLM
    "chat_template_kwargs": Rule(_CODE, _no_template_inside),  # vLLM, SGLang
    "documents": Rule(_PROMPT),  # vLLM
    "input_ids": Rule(_PROMPT),  # SGLang
    "prompt_token_ids": Rule(_PROMPT),
    "input_embeds": Rule(_PROMPT),  # SGLang
    "prompt_embeds": Rule(_PROMPT),  # vLLM
    # order and place
    "priority": Rule(_ORDER, _one_of(0)),  # vLLM, SGLang
    "data_parallel_rank": Rule(_PLACE),  # vLLM, SGLang
    "routed_dp_rank": Rule(_PLACE),  # SGLang
    "disagg_prefill_dp_rank": Rule(_PLACE),  # SGLang
    "id_slot": Rule(_PLACE, _one_of(-1)),  # llama.cpp
    # code, other machines, other requests
    "custom_logit_processor": Rule(_CODE),  # SGLang
    "logits_processors": Rule(_CODE, _one_of([])),  # vLLM
    "vllm_xargs": Rule(_CODE),
    "kv_transfer_params": Rule(_REACH),  # vLLM
    "ec_transfer_params": Rule(_REACH),  # vLLM
    "bootstrap_host": Rule(_REACH),  # SGLang
    "bootstrap_port": Rule(_REACH),  # SGLang
    "bootstrap_room": Rule(_REACH),  # SGLang
    "api_base": Rule(_REACH),  # LiteLLM
    "base_url": Rule(_REACH),  # LiteLLM
    "request_id": Rule(_NAMES),  # vLLM
    "rid": Rule(_NAMES),  # SGLang
    "session_id": Rule(_NAMES),  # vLLM, SGLang
    "session_params": Rule(_NAMES),  # SGLang
    "custom_labels": Rule(_NAMES),  # SGLang: labels of its metrics
    # the model
    "lora_path": Rule(_MODEL),  # SGLang
    "lora": Rule(_MODEL, _one_of([])),  # llama.cpp
    "models": Rule(_MODEL),  # OpenRouter
    "route": Rule(_MODEL),  # OpenRouter
    "provider": Rule(_MODEL),  # OpenRouter
    "fallbacks": Rule(_MODEL),  # LiteLLM
    # the operator's bill, and data that stays
    "service_tier": Rule(_BILL, _one_of("auto", "default")),
    "tools": Rule(_BILL, _only_clients_tools),  # hosted tools: search, code, files
    "web_search_options": Rule(_BILL),
    "search_parameters": Rule(_BILL),  # xAI
    "enable_search": Rule(_BILL, _one_of(False)),  # DashScope
    "plugins": Rule(_BILL, _one_of([])),  # OpenRouter
    "data_sources": Rule(_BILL, _one_of([])),  # Azure
    "mcp_servers": Rule(_BILL, _one_of([])),  # Anthropic
    "prediction": Rule(_BILL),
    "modalities": Rule(_BILL, _one_of(["text"])),
    "audio": Rule(_BILL),
    "store": Rule(_KEPT, _one_of(False)),
    "prompt_cache_retention": Rule(_KEPT, _one_of("in_memory", "in-memory", "default")),
    "background": Rule(_LOOSE, _one_of(False)),
    "deferred": Rule(_LOOSE, _one_of(False)),  # xAI
    # other fields in disguise
    "extra_body": Rule(_WORK, _one_of({})),  # LiteLLM, Gemini
    "extra_headers": Rule(_WORK, _one_of({})),  # LiteLLM
}

NAMES = frozenset(FIELDS)
ALLOWABLE = frozenset(name for name, rule in FIELDS.items() if rule.changes)
"""The fields that a worker list may allow."""


def in_table(body: dict[str, Any]) -> tuple[str, ...]:
    """The listed fields of a body, sorted; nearly always none."""
    return () if NAMES.isdisjoint(body) else tuple(sorted(NAMES.intersection(body)))


def judge(asked: ParsedRequest, allowed: frozenset[str] | None) -> int:
    """How many answers of `max_tokens` are charged. `allowed`: see `Fleet.allowed`. Raises BadInput naming the
    field.
    """
    body = asked.body
    if allowed is None or body is None:
        return 1
    for name in asked.costly:
        value = body[name]
        if value is not None:
            _judge_one(name, value, body, asked.max_tokens, allowed)
    best_of = body.get("best_of")
    return 1 if best_of is None else int(best_of)


def _judge_one(name: str, value: Any, body: dict[str, Any], max_tokens: int, allowed: frozenset[str]) -> None:
    rule = FIELDS[name]
    if rule.bound is not None and (expected := rule.bound(value, max_tokens)):
        raise BadInput(f"{name}: {expected}", name)
    if rule.changes and name not in allowed and not rule.harmless(value, body):
        raise BadInput(
            f"{name}: it {rule.changes}, so it is not passed on with this value; leave it out, or ask the operator to "
            f"allow it for this model: `allow: [{name}]` at each of its servers in the worker list",
            name,
        )
