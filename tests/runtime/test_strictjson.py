"""A body means one thing or is refused, by name."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contracts.answer import AskRequest
from services.contracts.documents import PutDocument
from services.contracts.openai import ChatRequest
from services.router.parsing.plain import PlainChat
from services.runtime.errors import BadInput
from services.runtime.strictjson import LONG, JsonLimits, decode, loads

STRICT_ONLY = JsonLimits()  # equal to the default, but not the same object: only that one is read quickly

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8), inner, max_size=5),
    max_leaves=30,
)  # fmt: skip


@given(json_values)
def test_whatever_is_plain_json_is_read_as_the_standard_library_reads_it(value: Any) -> None:
    body = json.dumps(value, ensure_ascii=False).encode()
    assert loads(body) == json.loads(body)


def comes_of(body: bytes, *limits: JsonLimits) -> str:
    """What is read, types included (1 is not 1.0, and 0.0 is not -0.0), or why not."""
    try:
        return repr(loads(body, *limits))
    except BadInput as refused:
        return f"refused: {refused.message}, {refused.param}, {refused.code}"


scraps = st.sampled_from(
    [b"{", b"}", b"[", b"]", b",", b":", b'"a"', b'"b"', b'"a":', b'"a" :1', b'"a\\":1"', b'":"', b" ", b"\n", b"1",
     b"-0", b"1e400", b"1e-400", b"9" * 20, b"9" * 21, b"-" + b"9" * 20, b"2.50", b"NaN", b"null", b"\\u0061",
     b'"\\u0000"', b'"\\ud83c\\udf0a"', b'"\\ud83c"', b'"\xc3\xa9"', b'"\xed\xa0\x80"', b"\x00", b"\xef\xbb\xbf"]
)  # fmt: skip


@given(st.lists(scraps, max_size=12).map(b"".join))
def test_the_quick_reader_says_what_the_strict_one_says_of_anything(body: bytes) -> None:
    assert comes_of(body) == comes_of(body, STRICT_ONLY)
    inside = b'{"c":1,' + body + b"}"
    assert comes_of(inside) == comes_of(inside, STRICT_ONLY)


names = st.sampled_from(["a", "b", "a:", '"a', " :"])
gaps = st.sampled_from(["", "", " ", " \n", "\t"])


@given(st.lists(st.tuples(names, gaps, json_values), max_size=4), st.booleans())
def test_no_key_that_stands_twice_escapes_the_quick_reader(members: list[tuple[str, str, Any]], ascii: bool) -> None:
    texts = [f"{json.dumps(name)}{gap}:{json.dumps(value, ensure_ascii=ascii)}" for name, gap, value in members]
    body = ("{" + ",".join(texts) + "}").encode()
    assert comes_of(body) == comes_of(body, STRICT_ONLY)
    assert ("appears twice" in comes_of(body)) == (len({name for name, _, _ in members}) < len(members))


REFUSED = {
    "an empty body": (b"", "empty"),
    "a byte-order mark": (b'\xef\xbb\xbf{"a": 1}', "byte-order mark"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "byte-order mark"),
    "bytes that are not UTF-8": (b'{"a": "\xff"}', "not UTF-8"),
    "NaN": (b'{"a": NaN}', "NaN"),
    "Infinity": (b'{"a": Infinity}', "Infinity"),
    "minus infinity": (b'{"a": -Infinity}', "-Infinity"),
    "a number beyond the range": (b'{"a": 1e999}', "out of range"),
    "a number with too many digits": (b'{"a": ' + b"1" * 21 + b"}", "digits"),
    "a key that stands twice": (b'{"model": "a", "model": "b"}', "'model' appears twice"),
    "a key that stands twice, written differently": (b'{"a": 1, "\\u0061": 2}', "'a' appears twice"),
    "an escaped NUL": (b'{"a": "x\\u0000y"}', "a contains NUL"),
    "a raw NUL": (b'{"a": "x\x00y"}', "not JSON"),
    "a lone surrogate": (b'{"a": ["ok", "\\ud800"]}', "a[1] contains a lone surrogate"),
    "a lone surrogate in a key": (b'{"\\udfff": 1}', "a key contains a lone surrogate"),
    "trailing text": (b"{} {}", "not JSON"),
    "a trailing comma": (b'{"a": 1,}', "not JSON"),
    "single quotes": (b"{'a': 1}", "not JSON"),
    "nesting that is too deep": (b"[" * 65 + b"]" * 65, "deeper than 64"),
    "nesting that is too deep in an object": (b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}", "deeper than 64"),
    "nesting that would overflow a stack": (b"[" * 100_000 + b"]" * 100_000, "10000 elements"),
    "more elements than allowed": (b"[" + b"1," * 10_001 + b"1]", "10000 elements"),
}


@pytest.mark.parametrize(("body", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_ambiguous_or_explosive_is_refused_by_name(body: bytes, says: str) -> None:
    with pytest.raises(BadInput) as refused:
        loads(body)
    assert says in refused.value.message
    assert refused.value.status == 400


def test_a_proper_pair_of_surrogates_is_one_character() -> None:
    assert loads(b'{"a": "\\ud83c\\udf0a"}') == {"a": "\U0001f30a"}


def test_brackets_and_commas_inside_strings_count_for_nothing() -> None:
    text = "[{," * 20_000
    assert loads(json.dumps({"query": text}).encode()) == {"query": text}


def test_sixty_four_levels_are_not_too_deep() -> None:
    loads(b"[" * 64 + b"]" * 64)
    with pytest.raises(BadInput):
        loads(b"[" * 3 + b"]" * 3, JsonLimits(max_depth=2))


LONG_STRICT = replace(LONG, quick=False)


@pytest.mark.parametrize("limits", [LONG, LONG_STRICT])
def test_a_long_body_may_have_many_elements_and_fewer_objects(limits: JsonLimits) -> None:
    ids = list(range(200_000))
    assert loads(json.dumps({"prompt": ids}).encode(), limits) == {"prompt": ids}
    for value, fault in (
        (list(range(300_000)), "262144 elements"),
        ([{}] * 20_000, "16384 objects and arrays"),
        ([[]] * 20_000, "16384 objects and arrays"),
    ):
        with pytest.raises(BadInput, match=fault):
            loads(json.dumps(value).encode(), limits)
    with pytest.raises(BadInput, match="10000 elements"):
        loads(json.dumps(ids).encode())


def test_more_quotes_than_elements_can_have_are_refused_before_they_are_taken_apart() -> None:
    with pytest.raises(BadInput, match="262144 elements"):
        loads(b"[" * 70 + b'"' * 1_100_000, LONG)


FIELDS = {
    "a missing field": (ChatRequest, b"{}", "messages"),
    "an inner field of a wrong type": (ChatRequest, b'{"messages":[{"role":1,"content":"x"}]}', "messages[0].role"),
    "a boolean for a number": (AskRequest, b'{"query": "x", "top_k": true}', "top_k"),
    "a string for a number": (AskRequest, b'{"query": "x", "top_k": "5"}', "top_k"),
    "a float for a whole number": (AskRequest, b'{"query": "x", "max_tokens": 1.5}', "max_tokens"),
    "a number above its bound": (AskRequest, b'{"query": "x", "top_k": 21}', "top_k"),
    "a number below its bound": (AskRequest, b'{"query": "x", "max_tokens": 0}', "max_tokens"),
    "null where a value is needed": (AskRequest, b'{"query": null}', "query"),
    "too long a text": (AskRequest, b'{"query": "' + b"x" * 8193 + b'"}', "query"),
    "a list at the top": (AskRequest, b"[]", None),
    "one that is not known where all must be": (PutDocument, b'{"text": "x", "txet": "y"}', "txet"),
    "an image where text is served": (
        PlainChat, b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}',
        "messages[0].content[0].type",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("type_", "body", "param"), FIELDS.values(), ids=FIELDS.keys())
def test_a_wrong_field_is_named_with_its_path(type_: type, body: bytes, param: str | None) -> None:
    with pytest.raises(BadInput) as refused:
        decode(body, type_)
    assert refused.value.param == param
    assert refused.value.status == 400


def test_unknown_fields_are_ignored() -> None:
    assert decode(b'{"query": "x", "from_the_future": {"a": [1]}}', AskRequest) == AskRequest(query="x")
