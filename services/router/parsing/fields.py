"""Fields of OpenAI requests that change the cost, the order or the bill of an answer, and the rule for each.

FIELDS lists all of them; other fields reach an OpenAI-compatible server unchanged (docs/api/openai.md, and decisions
045 and 071). A value must be within its `bound`. What changes the work is priced (`judge`). A field that `changes`
something that cannot be priced is refused unless the value has no effect or every server of the model allows the field
(`allow` in the worker list). A Weir worker gets none of them: it refuses those whose effect would be missed.

Names and meanings are those documented in 2026 for OpenAI, vLLM, SGLang, llama.cpp's server, and routers and providers
with the same API. Options for templates and multi-modal processors are refused, since they have stopped servers
(CVE-2025-61620, CVE-2025-62426), and so are embeddings in place of a prompt (CVE-2025-62164). Grammars and patterns for
structured output pass: the server has to bound their cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from services.contracts.generate import LONGEST_TOKENS
from services.contracts.openai import MAX_CHOICES
from services.router.parsing.parsed import ParsedRequest, Special
from services.runtime.errors import BadInput

MAX_LOGPROBS = 20
"""OpenAI's bound for chat, and vLLM's default."""
MAX_BEST_OF = 20
MAX_ANSWERS = 2048
"""Answers of one request: prompts times `n` or `best_of`."""
MAX_TOKEN_IDS = 128
MINIMUMS = ("min_tokens", "min_new_tokens")
MAX_SALT_CHARS = 1024

Harmless = Callable[[Any, dict[str, Any]], bool]
"""(value, body) -> whether the field has no effect with this value."""
Bound = Callable[[Any, int], str]
"""(value, max_tokens) -> what was expected instead, or ""."""

_size = msgspec.json.Encoder().encode


class Servers(NamedTuple):
    """What may answer a request, which is priced before one of them is chosen."""

    weir: bool = False
    """Whether a Weir worker is among them."""
    allow: frozenset[str] | None = frozenset()
    """The fields that every OpenAI-compatible server allows; None: there is none."""


class Price(NamedTuple):
    """What a request costs beside one answer to the text of its messages or prompt."""

    copies: int = 1
    """Answers computed at once: prompts times `n` or `best_of`."""
    bytes: int = 0
    """Bytes of text that the server adds to the prompt: tools, schemas, calls of tools, further prompts."""
    tokens: int = 0
    """Token ids, and the estimate for pictures, sounds and files."""
    times: int = 1
    """How often the prompt counts: twice with the log-probabilities of its tokens."""
    exact: bool = True
    """Whether the prompt is text alone, so that the server's count of it teaches tokens per byte."""


ONE_TEXT = Price()


class Rule(NamedTuple):
    """The rule for one field. A null value counts as an absent field."""

    changes: str = ""
    """The unpriced effect, as the rest of a sentence that begins with 'it'; empty if it is priced or bounded."""
    harmless: Harmless = lambda *_: False
    bound: Bound | None = None
    weir: Harmless | None = None
    """The values that a Weir worker can do without; None: any, since the field is a hint there."""


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


def _official_number(value: Any, max_tokens: int) -> str:
    return "" if value == 1 else "set the number of answers with `n`"


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


def _never(value: Any, body: dict[str, Any]) -> bool:
    return False


def _off(value: Any, body: dict[str, Any]) -> bool:
    return value is False


def _nothing(value: Any, body: dict[str, Any]) -> bool:
    """Zero, an empty list or text, false."""
    return not value


def _no_logprobs(value: Any, body: dict[str, Any]) -> bool:
    """For text completions 0 asks for those of the chosen tokens."""
    return value is False


def _not_to_be_called(value: Any, body: dict[str, Any]) -> bool:
    return not value or body.get("tool_choice") == "none" or body.get("function_call") == "none"


def _text_alone(value: Any, body: dict[str, Any]) -> bool:
    return isinstance(value, dict) and value.get("type") == "text"


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
    # priced: the number of answers, and what is added to the prompt
    "n": Rule(bound=_from_one(MAX_CHOICES), weir=_one_of(1)),
    "best_of": Rule(bound=_from_one(MAX_BEST_OF), weir=_one_of(1)),
    "tools": Rule(_BILL, _only_clients_tools, weir=_not_to_be_called),  # hosted tools: search, code, files
    "functions": Rule(weir=_not_to_be_called),
    "response_format": Rule(weir=_text_alone),
    "structured_outputs": Rule(weir=_nothing),  # vLLM
    "guided_json": Rule(weir=_nothing),  # vLLM
    "documents": Rule(weir=_nothing),  # vLLM
    "input_ids": Rule(weir=_nothing),  # SGLang
    "prompt_token_ids": Rule(weir=_nothing),
    "prompt_logprobs": Rule(bound=_up_to(MAX_LOGPROBS), weir=_never),  # vLLM
    "echo": Rule(weir=_off),
    # within what is priced
    "logprobs": Rule(bound=_flag_or_up_to(MAX_LOGPROBS), weir=_no_logprobs),
    "top_logprobs": Rule(bound=_up_to(MAX_LOGPROBS), weir=_nothing),
    "n_probs": Rule(bound=_up_to(MAX_LOGPROBS), weir=_nothing),  # llama.cpp
    "logprob_token_ids": Rule(bound=_short_list(MAX_TOKEN_IDS), weir=_nothing),  # vLLM
    "min_tokens": Rule(bound=_within_length, weir=_nothing),  # vLLM, SGLang
    "min_new_tokens": Rule(bound=_within_length, weir=_nothing),
    "cache_salt": Rule(bound=_text(MAX_SALT_CHARS)),  # vLLM, SGLang
    # free, and not within the reach of a Weir worker
    "tool_choice": Rule(weir=_one_of("none", "auto")),
    "function_call": Rule(weir=_one_of("none", "auto")),
    "suffix": Rule(weir=_nothing),
    "logit_bias": Rule(weir=_nothing),
    "frequency_penalty": Rule(weir=_nothing),
    "presence_penalty": Rule(weir=_nothing),
    "stop_token_ids": Rule(weir=_nothing),  # vLLM, SGLang
    "guided_regex": Rule(weir=_nothing),  # vLLM
    "guided_choice": Rule(weir=_nothing),  # vLLM
    "guided_grammar": Rule(weir=_nothing),  # vLLM
    "json_schema": Rule(weir=_nothing),  # SGLang, llama.cpp
    "grammar": Rule(weir=_nothing),  # llama.cpp
    "regex": Rule(weir=_nothing),  # SGLang
    "ebnf": Rule(weir=_nothing),  # SGLang
    "structural_tag": Rule(weir=_nothing),  # SGLang
    # the length and the number of answers under other names, some of which take precedence
    "n_predict": Rule(bound=_official_length, weir=_never),  # llama.cpp
    "max_new_tokens": Rule(bound=_official_length, weir=_never),  # SGLang, Hugging Face
    "max_output_tokens": Rule(bound=_official_length, weir=_never),  # OpenAI's responses
    "max_gen_len": Rule(bound=_official_length, weir=_never),
    "max_length": Rule(bound=_official_length, weir=_never),
    "num_predict": Rule(bound=_official_length, weir=_never),  # Ollama
    "n_cmpl": Rule(bound=_official_number, weir=_one_of(1)),  # llama.cpp
    # more work
    "use_beam_search": Rule(_WORK, _one_of(False), weir=_off),  # vLLM
    "mm_processor_kwargs": Rule(_WORK),  # vLLM
    "media_io_kwargs": Rule(_WORK),  # vLLM
    "return_hidden_states": Rule(_LARGE, _one_of(False), weir=_off),  # SGLang
    "return_routed_experts": Rule(_LARGE, _one_of(False), weir=_off),  # SGLang
    # the prompt
    "chat_template": Rule(_CODE, weir=_never),  # vLLM
    "chat_template_kwargs": Rule(_CODE, _no_template_inside, weir=_no_template_inside),  # vLLM, SGLang
    "input_embeds": Rule(_PROMPT, weir=_nothing),  # SGLang
    "prompt_embeds": Rule(_PROMPT, weir=_nothing),  # vLLM
    # order and place
    "priority": Rule(_ORDER, _one_of(0)),  # vLLM, SGLang
    "data_parallel_rank": Rule(_PLACE),  # vLLM, SGLang
    "routed_dp_rank": Rule(_PLACE),  # SGLang
    "disagg_prefill_dp_rank": Rule(_PLACE),  # SGLang
    "id_slot": Rule(_PLACE, _one_of(-1)),  # llama.cpp
    # code, other machines, other requests
    "custom_logit_processor": Rule(_CODE, weir=_nothing),  # SGLang
    "logits_processors": Rule(_CODE, _one_of([]), weir=_nothing),  # vLLM
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
    "lora_path": Rule(_MODEL, weir=_nothing),  # SGLang
    "lora": Rule(_MODEL, _one_of([]), weir=_nothing),  # llama.cpp
    "models": Rule(_MODEL),  # OpenRouter
    "route": Rule(_MODEL),  # OpenRouter
    "provider": Rule(_MODEL),  # OpenRouter
    "fallbacks": Rule(_MODEL),  # LiteLLM
    # the operator's bill, and data that stays
    "service_tier": Rule(_BILL, _one_of("auto", "default")),
    "web_search_options": Rule(_BILL, weir=_never),
    "search_parameters": Rule(_BILL, weir=_never),  # xAI
    "enable_search": Rule(_BILL, _one_of(False), weir=_off),  # DashScope
    "plugins": Rule(_BILL, _one_of([]), weir=_nothing),  # OpenRouter
    "data_sources": Rule(_BILL, _one_of([]), weir=_nothing),  # Azure
    "mcp_servers": Rule(_BILL, _one_of([]), weir=_nothing),  # Anthropic
    "moderation": Rule(_BILL, weir=_never),
    "prediction": Rule(_BILL),
    "modalities": Rule(_BILL, _one_of(["text"]), weir=_one_of(["text"])),
    "audio": Rule(_BILL, weir=_never),
    "store": Rule(_KEPT, _one_of(False)),
    "prompt_cache_retention": Rule(_KEPT, _one_of("in_memory", "in-memory", "default")),
    "background": Rule(_LOOSE, _one_of(False), weir=_off),
    "deferred": Rule(_LOOSE, _one_of(False), weir=_off),  # xAI
    # other fields in disguise
    "extra_body": Rule(_WORK, _one_of({}), weir=_nothing),  # LiteLLM, Gemini
    "extra_headers": Rule(_WORK, _one_of({})),  # LiteLLM
}

IN_THE_PROMPT = ("tools", "functions", "documents", "response_format", "structured_outputs", "guided_json")
"""Fields whose text is added to the prompt, or may be."""
LIKE_TEXT = frozenset({"tools", "functions"})
"""Those that templates write into the prompt as they are."""
ID_LISTS = ("input_ids", "prompt_token_ids")

NAMES = frozenset(FIELDS)
WITHHELD = frozenset(name for name, rule in FIELDS.items() if rule.changes)
"""The fields that reach a server only where its entry allows them."""
ALLOWABLE = WITHHELD | {"best_of", "n_cmpl", "prompt_logprobs", "echo", "documents", *ID_LISTS}
"""The fields that a worker list may allow: those, and those that were withheld once and are priced now."""


def in_table(body: dict[str, Any]) -> Special:
    """The listed fields of a body, sorted."""
    return Special(tuple(sorted(NAMES.intersection(body))))


def judge(asked: ParsedRequest, servers: Servers, longest_tokens: int = LONGEST_TOKENS) -> Price:
    """The price of a request beyond one answer to one text. Raises BadInput naming the field that no server may get, or
    that a Weir worker among them cannot follow. No answer is longer than `longest_tokens`.
    """
    special, body = asked.special, asked.body
    if special is None or body is None:
        return ONE_TEXT
    present = [(name, value) for name in special.fields if (value := body[name]) is not None]
    if servers.weir:
        _judge_for_weir(special, present, body)
    if servers.allow is None:
        return ONE_TEXT
    for name, value in present:
        _judge_one(name, value, body, longest_tokens, servers.allow)
    return _price(special, body)


def asked_min_tokens(body: dict[str, Any] | None) -> int:
    """The shortest answer that the body asks for, in tokens; for a body that was judged."""
    return max((body or {}).get(name) or 0 for name in MINIMUMS)


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


def _judge_for_weir(special: Special, present: list[tuple[str, Any]], body: dict[str, Any]) -> None:
    for name, value in present:
        rule = FIELDS[name]
        if rule.weir is not None and not rule.weir(value, body):
            expected = rule.bound(value, 0) if rule.bound is _official_length else BEYOND_WEIR
            raise BadInput(f"{name}: {expected}", name)
    if special.fault is not None:
        raise BadInput(f"{special.fault.message} ({BEYOND_WEIR})", special.fault.param)


BEYOND_WEIR = (
    "Weir's own workers, which serve this model, do not support this; leave it out, or name a model of an "
    "OpenAI-compatible server"
)


def _price(special: Special, body: dict[str, Any]) -> Price:
    each = max(body.get("n") or 1, body.get("best_of") or 1)
    copies = each * special.prompts
    if copies > MAX_ANSWERS:
        raise BadInput(f"n: at most {MAX_ANSWERS} answers were expected, and {copies} were asked for", "n")
    sizes = {name: len(_size(value)) for name in IN_THE_PROMPT if (value := body.get(name))}
    tokens = special.more_tokens + sum(len(ids) for name in ID_LISTS if isinstance(ids := body.get(name), list))
    twice = body.get("prompt_logprobs") is not None or (body.get("echo") is True and _whole(body.get("logprobs")))
    return Price(
        copies, special.more_bytes + sum(sizes.values()), tokens, 2 if twice else 1,
        exact=not (tokens or twice or sizes.keys() - LIKE_TEXT),
    )  # fmt: skip
