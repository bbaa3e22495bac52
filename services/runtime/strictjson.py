"""JSON as a front door must read it: everything ambiguous or explosive is refused by name.

Python's json accepts NaN, Infinity, 1e999, duplicate keys (the last wins), UTF-16, a byte-order mark and 990 levels
of nesting; lone surrogates and NUL pass and explode later in `.encode()`, a tokenizer or PostgreSQL. Two parsers that
disagree about a body are a way round any check (RFC 8259 section 4), so a body means one thing here or is refused.

Cost: the common body is parsed by msgspec, several times faster than with callbacks, and what msgspec does not look at
is looked at here (`_plain`). Whatever raises a doubt, a fault included, is read again by the strict reader, whose word
is the last: the quick one only ever agrees with it.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from services.runtime.errors import BadInput

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JsonLimits:
    """`max_items` bounds members and elements over the whole document; `max_digits` a number's length."""

    max_depth: int = 64
    max_items: int = 10_000
    max_digits: int = 20


_LIMITS = JsonLimits()
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SUSPICIOUS_ESCAPE = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")


class _Strict:
    """Callbacks of the standard library's decoder, refusing what RFC 8259 leaves open."""

    __slots__ = ("decoder", "limits")

    def __init__(self, limits: JsonLimits) -> None:
        self.limits = limits
        self.decoder = json.JSONDecoder(
            object_pairs_hook=self.members,
            parse_constant=self.constant,
            parse_float=self.number,
            parse_int=self.integer,
        )

    def members(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise BadInput(f"the key {twice!r} appears twice in one object", twice, code="invalid_json")
        return found

    def constant(self, text: str) -> float:
        raise BadInput(f"{text} is not a JSON number", code="invalid_json")

    def number(self, text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            raise BadInput(f"the number {text[:24]} is out of range", code="invalid_json")
        return value

    def integer(self, text: str) -> int:
        if len(text.lstrip("-")) > self.limits.max_digits:
            raise BadInput(f"a number has more than {self.limits.max_digits} digits", code="invalid_json")
        return int(text)


_DEFAULT = _Strict(_LIMITS)


class _Doubt(Exception):
    """The quick reader leaves a body to the strict one."""


_decode = msgspec.json.Decoder().decode
_BEFORE_A_VALUE = (b'":', b" :", b"\n:", b"\t:", b"\r:")
_LONG = 10**_LIMITS.max_digits


def loads(body: bytes, limits: JsonLimits = _LIMITS) -> Any:
    """Parse a request body. Raises BadInput (code `invalid_json`) naming what is wrong."""
    if limits is _LIMITS:
        try:
            return _plain(body)
        except (_Doubt, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            pass
    return _strict(body, limits)


def _plain(body: bytes) -> dict[str, Any]:
    """What the strict reader would make of the body, or `_Doubt`.

    Each key has a colon. So as many colons as members, after duplicate keys have become one, means that there were no
    duplicates. Where strings hold colons, too, only those count that stand behind a quote or behind white space.
    """
    most = _LIMITS.max_items
    if len(body) > most and body.count(b",") + body.count(b"[") + body.count(b"{") > most:
        raise _Doubt
    if b"\\u" in body and _SUSPICIOUS_ESCAPE.search(body):
        raise _Doubt
    value = _decode(body)
    if type(value) is not dict:
        raise _Doubt
    members = _members(value, _LIMITS.max_depth)
    if members != body.count(b":") and members != sum(map(body.count, _BEFORE_A_VALUE)):
        raise _Doubt
    return value


def _members(value: Any, depth: int) -> int:
    """How many members all its objects have together."""
    if depth == 0:
        raise _Doubt
    members, inner = (len(value), value.values()) if type(value) is dict else (0, value)
    for each in inner:
        kind = type(each)
        if kind is str:
            continue
        if kind is dict or kind is list:
            members += _members(each, depth - 1)
        elif kind is int and not -_LONG < each < _LONG:
            raise _Doubt
    return members


def _strict(body: bytes, limits: JsonLimits) -> Any:
    """The reader that decides, and names what is wrong."""
    if not body:
        raise BadInput("the body is empty: JSON was expected", code="invalid_json")
    if body.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise BadInput("the body begins with a byte-order mark: plain UTF-8 was expected", code="invalid_json")
    _bound_structure(body, limits)
    reader = _DEFAULT if limits is _LIMITS else _Strict(limits)
    try:
        value = reader.decoder.decode(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadInput(f"the body is not UTF-8: byte {error.start}", code="invalid_json") from None
    except json.JSONDecodeError as error:
        raise BadInput(
            f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            code="invalid_json",
        ) from None
    if b"\\u" in body and _SUSPICIOUS_ESCAPE.search(body):
        _refuse_bad_text(value, "")
    return value


def _bound_structure(body: bytes, limits: JsonLimits) -> None:
    openings = body.count(b"[") + body.count(b"{")
    if openings <= limits.max_depth and body.count(b",") + openings <= limits.max_items:
        return
    bare = _STRING.sub(b'""', body)  # brackets and commas inside strings do not count
    if bare.count(b",") + bare.count(b"[") + bare.count(b"{") > limits.max_items:
        raise BadInput(f"the body has more than {limits.max_items} elements", code="invalid_json")
    if _depth(bare) > limits.max_depth:
        raise BadInput(f"the body is nested deeper than {limits.max_depth} levels", code="invalid_json")


def _depth(bare: bytes) -> int:
    depth = deepest = 0
    for byte in bare:
        if byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


def _refuse_bad_text(value: Any, path: str) -> None:
    if isinstance(value, str):
        if "\x00" in value:
            raise BadInput(f"{path or 'the body'} contains NUL", path or None, code="invalid_text")
        if any("\ud800" <= char <= "\udfff" for char in value):
            raise BadInput(f"{path or 'the body'} contains a lone surrogate", path or None, code="invalid_text")
    elif isinstance(value, dict):
        for key, member in value.items():
            _refuse_bad_text(key, "a key")
            _refuse_bad_text(member, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, element in enumerate(value):
            _refuse_bad_text(element, f"{path}[{index}]")


_MESSAGE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<field>[^`]+)`")
_UNKNOWN = re.compile(r"contains unknown field `(?P<field>[^`]+)`")


def convert(value: Any, type_: type[T]) -> T:
    """Check a parsed body against a wire type. Raises BadInput with the path of the first wrong field."""
    try:
        return msgspec.convert(value, type_, strict=True)
    except msgspec.ValidationError as error:
        raise _bad_field(str(error)) from None


def decode(body: bytes, type_: type[T]) -> T:
    """`loads`, then `convert`."""
    return convert(loads(body), type_)


def _bad_field(text: str) -> BadInput:
    match = _MESSAGE.match(text)
    what, path = (match["what"], match["path"] or "") if match else (text, "")
    missing = _MISSING.search(what)
    if missing:
        path = f"{path}.{missing['field']}" if path else missing["field"]
        return BadInput(f"{path} is required", path)
    if unknown := _UNKNOWN.search(what):
        path = f"{path}.{unknown['field']}" if path else unknown["field"]
        return BadInput(f"{path} is not known here", path)
    where = path or "the body"
    return BadInput(f"{where}: {what[:1].lower()}{what[1:]}", path or None)
