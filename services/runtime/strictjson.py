"""JSON for untrusted input: everything ambiguous or explosive is rejected (docs/architecture/parsers.md).

Python's json accepts NaN, Infinity, 1e999, duplicate keys, UTF-16, a byte-order mark and 990 levels of nesting; lone
surrogates and NUL fail later. Two parsers that disagree about a body defeat any check (RFC 8259 section 4).

msgspec parses the common body, several times faster, and `_plain` checks what msgspec does not. Any doubt sends the
body to the strict reader, which decides. Both take linear time; `tests/linear` counts the steps. Python's `int()` takes
quadratic time, hence `max_digits`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from services.runtime.errors import BadInput

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JsonLimits:
    """`max_items` bounds members and elements of the whole document, `max_containers` its objects and arrays, which
    take the most memory for a byte; `max_digits` the digits of an integer.
    """

    max_depth: int = 64
    max_items: int = 10_000
    max_containers: int = 10_000
    max_digits: int = 20
    quick: bool = False
    """Whether msgspec reads the common body: it knows the depth and the digits of `_LIMITS` only."""


_LIMITS = JsonLimits(quick=True)
LONG = JsonLimits(max_items=262_144, max_containers=16_384, quick=True)
"""For long contexts: a prompt of token ids, a chat of thousands of messages."""
MAX_QUOTES = 4
"""Of an element: around its name and around its value. A list of the pieces between more would take much memory."""
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


class _Strict:
    """Callbacks of the standard library's decoder that reject what RFC 8259 leaves open."""

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
            twice = _first_repeated(name for name, _ in pairs)
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


def _first_repeated(names: Iterable[str]) -> str:
    count = Counter(names)
    return next(name for name in count if count[name] > 1)


_DEFAULT = _Strict(_LIMITS)


class _Doubt(Exception):
    """The quick reader leaves a body to the strict one."""


_decode = msgspec.json.Decoder().decode
_BEFORE_A_VALUE = (b'":', b" :", b"\n:", b"\t:", b"\r:")
_LONG = 10**_LIMITS.max_digits


def loads(body: bytes, limits: JsonLimits = _LIMITS) -> Any:
    """Parse a request body. Raises BadInput (code `invalid_json` or `invalid_text`) that names the fault."""
    if limits.quick:
        try:
            return _plain(body, limits)
        except (_Doubt, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            pass
    return _strict(body, limits)


def _plain(body: bytes, limits: JsonLimits) -> dict[str, Any]:
    """What the strict reader would return, or `_Doubt`.

    As many colons as members mean no duplicate keys. If strings contain colons, only those behind a quote or white
    space count.
    """
    if len(body) > limits.max_containers and _may_exceed(body, limits):
        raise _Doubt
    if b"\\u0000" in body:  # msgspec itself rejects a lone surrogate
        raise _Doubt
    value = _decode(body)
    if type(value) is not dict:
        raise _Doubt
    members = _members(value, limits.max_depth)
    if members != body.count(b":") and members != sum(map(body.count, _BEFORE_A_VALUE)):
        raise _Doubt
    return value


def _may_exceed(body: bytes, limits: JsonLimits) -> bool:
    """Whether the document may have too many elements, those within its strings counted too."""
    openings = body.count(b"[") + body.count(b"{")
    return openings > limits.max_containers or openings + body.count(b",") > limits.max_items


def _members(value: Any, depth: int) -> int:
    if depth == 0:
        raise _Doubt
    members, inner = 0, value
    if type(value) is dict:
        members, inner = len(value), value.values()
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
    if b"\\u" in body:
        _refuse_bad_text(value)
    return value


def _bound_structure(body: bytes, limits: JsonLimits) -> None:
    openings = body.count(b"[") + body.count(b"{")
    if openings <= limits.max_depth and not _may_exceed(body, limits):
        return
    bare = _outside_strings(body, MAX_QUOTES * (limits.max_items + 1))
    if bare is None or bare.count(b",") + bare.count(b"[") + bare.count(b"{") > limits.max_items:
        raise BadInput(f"the body has more than {limits.max_items} elements", code="invalid_json")
    if bare.count(b"[") + bare.count(b"{") > limits.max_containers:
        raise BadInput(f"the body has more than {limits.max_containers} objects and arrays", code="invalid_json")
    if _depth(bare) > limits.max_depth:
        raise BadInput(f"the body is nested deeper than {limits.max_depth} levels", code="invalid_json")


def _outside_strings(body: bytes, max_quotes: int) -> bytes | None:
    """The parts of a JSON document outside its strings; None if it has more than `max_quotes` quotes.

    Without `\\\\` and `\\"` every quote begins or ends a string, so every second piece between quotes is outside. A
    backslash outside a string is not JSON: the decoder stops there, and up to there this is right.
    """
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return None if bare.count(b'"') > max_quotes else b"".join(bare.split(b'"')[::2])


def _depth(bare: bytes) -> int:
    depth = deepest = 0
    for byte in bare.translate(None, _NOT_BRACKETS):
        if byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return deepest


def _refuse_bad_text(value: Any) -> None:
    found = _bad_text(value)
    if found is None:
        return
    what, parts = found
    path = "".join(reversed(parts)).removeprefix(".")
    raise BadInput(f"{path or 'the body'} contains {what}", path or None, code="invalid_text")


_Bad = tuple[str, list[str]]
"""The fault of a text, and the path to the text, its last part first."""


def _bad_text(value: Any) -> _Bad | None:
    """The first text that cannot be stored or encoded. A path is built only for that one, since it may be long."""
    if isinstance(value, str):
        what = _fault_of(value)
        return None if what is None else (what, [])
    if isinstance(value, dict):
        return _bad_member(value)
    if isinstance(value, list):
        for index, element in enumerate(value):
            if (found := _bad_text(element)) is not None:
                found[1].append(f"[{index}]")
                return found
    return None


def _bad_member(members: dict[str, Any]) -> _Bad | None:
    for key, member in members.items():
        if (what := _fault_of(key)) is not None:
            raise BadInput(f"a key contains {what}", "a key", code="invalid_text")
        if (found := _bad_text(member)) is not None:
            found[1].append(f".{key}")
            return found
    return None


def _fault_of(text: str) -> str | None:
    if "\x00" in text:
        return "NUL"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "a lone surrogate"
    return None


def convert(value: Any, type_: type[T]) -> T:
    """Check a parsed body against a wire type. Raises BadInput with the path of the first wrong field."""
    try:
        return msgspec.convert(value, type_, strict=True)
    except msgspec.ValidationError as error:
        raise _bad_field(str(error)) from None


def decode(body: bytes, type_: type[T], limits: JsonLimits = _LIMITS) -> T:
    """`loads`, then `convert`. Raises BadInput."""
    return convert(loads(body, limits), type_)


_ABOUT_A_FIELD = (
    ("Object missing required field `", "is required"),
    ("Object contains unknown field `", "is not a known field"),
)
"""How a msgspec message about a field begins, and the message of ours."""


def _bad_field(text: str) -> BadInput:
    what, path = _what_and_path(text)
    for beginning, message in _ABOUT_A_FIELD:
        if what.startswith(beginning):
            field = what.removeprefix(beginning).removesuffix("`")
            path = f"{path}.{field}" if path else field
            return BadInput(f"{path} {message}", path)
    return BadInput(f"{path or 'the body'}: {what[:1].lower()}{what[1:]}", path or None)


def _what_and_path(text: str) -> tuple[str, str]:
    """Split msgspec's `WHAT - at `$.path``. WHAT may contain text of the client, so the last separator counts."""
    what, mark, path = text.rpartition(" - at `$")
    if not mark or not path.endswith("`"):
        return text, ""
    return what, path[:-1].removeprefix(".")
