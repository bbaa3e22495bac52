"""A line from a client, parsed into a frame.

The wire is heptamini v1, whose server parses JSON as Go does: keys match in any letter case, the last of equal keys
counts, `null` is ignored, unknown keys are skipped, invalid UTF-8 becomes U+FFFD; but one value of a wrong type makes
the line invalid. Numbers are unsigned 64-bit integers: `1.0` and `1e2` are invalid.

Most lines have exactly the keys of one of three shapes, each once; msgspec decodes those in a third of the time. A
shape applies if the line has as many colons as the shape has keys, so there are no duplicate and no unknown keys. Any
line that does not fit is parsed by `read_with_care`, so the fast path never rejects a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar

import msgspec

U64 = 2**64
TRIMMED = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"

# The `need_code` of a line that is not a frame, by its first characters. The first match counts.
LOOKS_LIKE = (
    (("GET ", "POST ", "PUT ", "HEAD "), "http_request"),
    (("GIF87a", "GIF89a"), "binary_gif"),
    (("<!DOCTYPE", "<html", "<HTML"), "html_document"),
    (("<?xml", "<rss", "<feed"), "xml_document"),
    (("[",), "json_array"),
    (("{",), "json_malformed"),
    (("",), "not_json"),
)


MAX_NAME_BYTES = 256  # of a job's name or a manifest's text, in UTF-8; heptamini's client sends about 70
NO_JOB_NAME = "J_?"  # in replies: a job whose name is unknown or too long
MAX_AUTH_BYTES = 4096  # of a token, which may be a JWT


class NotAFrame(Exception):
    """The line cannot be parsed; the message is its `need_code`."""


def size(text: str) -> int:
    """The text's size in UTF-8, in bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


class Manifest(msgspec.Struct, gc=False):
    """A payload's description. Sizes in bytes; 0 and '' where the client gave no value."""

    payload_id: str = ""
    content_type: str = ""
    content_encoding: str = ""
    cipher: str = ""
    total_bytes: int = 0
    chunk_bytes: int = 0
    chunks: int = 0
    sha256: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Its texts."""
        return self.payload_id, self.content_type, self.content_encoding, self.cipher, self.sha256

    @property
    def bytes(self) -> int:
        """The size of its texts, in bytes."""
        return sum(map(size, self.names))


class Chunk(msgspec.Struct, gc=False):
    """A part of a payload, in base64. `offset` is parsed but not used."""

    payload_id: str = ""
    index: int = 0
    offset: int = 0
    sha256: str = ""
    bytes_b64: str = ""


class FrameEnvelope(NamedTuple):
    """The fields of a frame that its reply repeats; nothing else of a frame is kept."""

    job: str
    seq: int
    ttl_ms: int


class ProtocolFrame(msgspec.Struct):
    """A parsed line; `sound` says whether its envelope is valid."""

    v: int = 0
    verb: str = ""
    job: str = ""
    seq: int = 0
    ttl_ms: int = 0
    status: str = ""
    payload_manifest: Manifest | None = None
    payload_chunk: Chunk | None = None
    need_code: str = ""
    retry_hint_ms: int = 0
    error_code: str = ""
    receipts: int = 0
    auth: str = ""

    @property
    def sound(self) -> bool:
        """Whether the envelope is valid: a known verb with its fields, and no field of replies only.

        Names above `MAX_NAME_BYTES`, which are kept, and tokens above `MAX_AUTH_BYTES` are invalid; the original has no
        such bounds.
        """
        rule = _RULES.get(self.verb)
        return self.v == 0 and self.job != "" and self.seq > 0 and rule is not None and rule(self) and self._short

    @property
    def unnamed(self) -> FrameEnvelope:
        return FrameEnvelope(NO_JOB_NAME, self.seq, self.ttl_ms)

    @property
    def _short(self) -> bool:
        manifest = self.payload_manifest
        names = (self.job,) if manifest is None else (self.job, *manifest.names)
        return size(self.auth) <= MAX_AUTH_BYTES and max(map(size, names)) <= MAX_NAME_BYTES

    @property
    def _payloads(self) -> int:
        return (self.payload_manifest is not None) + (self.payload_chunk is not None)

    @property
    def _has_reply_fields(self) -> bool:
        return bool(self.status or self.need_code or self.error_code or self.retry_hint_ms or self.receipts)


_Small = Annotated[int, msgspec.Meta(ge=0, le=U64 // 2 - 1)]


class _WholeManifest(Manifest, kw_only=True, gc=False):
    payload_id: str
    content_type: str
    content_encoding: str
    cipher: str
    total_bytes: _Small
    chunk_bytes: _Small
    chunks: _Small
    sha256: str


class _WholeChunk(Chunk, kw_only=True, gc=False):
    payload_id: str
    index: _Small
    offset: _Small
    sha256: str
    bytes_b64: str


class _Ping(ProtocolFrame, kw_only=True):
    v: _Small
    verb: str
    job: str
    seq: _Small
    ttl_ms: _Small


class _WithManifest(_Ping, kw_only=True):
    payload_manifest: _WholeManifest


class _WithChunk(_Ping, kw_only=True):
    payload_chunk: _WholeChunk


_SHAPES: Mapping[int, msgspec.json.Decoder[ProtocolFrame]] = {
    5: msgspec.json.Decoder(_Ping),
    6 + 8: msgspec.json.Decoder(_WithManifest),
    6 + 5: msgspec.json.Decoder(_WithChunk),
}
"""By the number of keys, including those of the payload."""

_RULES: Mapping[str, Callable[[ProtocolFrame], bool]] = {
    "ping": lambda frame: frame._payloads == 0 and not frame._has_reply_fields,
    "share": lambda frame: frame._payloads == 1 and not frame._has_reply_fields,
    "clarify": lambda frame: frame._payloads == 0 and frame.status != "",
    "confirm": lambda frame: frame._payloads == 0 and frame.status != "",
}


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with duplicate keys, in order."""


class _Number(str):
    """A number as it was written."""

    __slots__ = ()


class _WrongType(Exception):
    """A value has the wrong type for its key."""


def _no_constant(name: str) -> NoReturn:
    raise _WrongType(name)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_Pairs, parse_int=_Number, parse_float=_Number, parse_constant=_no_constant
)
_SURROGATES = re.compile("[\ud800-\udfff]")


def read(line: bytes) -> ProtocolFrame | None:
    """The frame on this line; None for a blank line. Raises NotAFrame."""
    shape = _SHAPES.get(line.count(b":"))
    if shape is not None and b"-0" not in line:  # -0 is valid for a version only
        try:
            return shape.decode(line)
        except (ValueError, RecursionError):
            pass  # another frame with as many colons, or not a frame
    return read_with_care(line)


def read_with_care(line: bytes) -> ProtocolFrame | None:
    """As `read`, for any line, without the fast path."""
    text = line.decode("utf-8", "surrogateescape").strip(TRIMMED)  # an invalid byte becomes one U+FFFD, as in Go
    if not text:
        return None
    try:
        value = _DECODER.decode(text)
        return ProtocolFrame() if value is None else _fill(ProtocolFrame(), value, _FRAME)
    except (ValueError, _WrongType, RecursionError):
        raise NotAFrame(_looks_like(text)) from None


def _looks_like(text: str) -> str:
    return next(name for beginnings, name in LOOKS_LIKE if text.startswith(beginnings))


T = TypeVar("T", ProtocolFrame, Manifest, Chunk)
Reader = Callable[[Any, Any], Any]
"""Converts a value, given the key's previous value. Raises _WrongType."""


def _fill(into: T, pairs: Any, readers: Mapping[str, Reader]) -> T:
    if type(pairs) is not _Pairs:
        raise _WrongType
    for key, value in pairs:
        name = key if key in readers else _folded(key)
        reader = readers.get(name)
        if reader is not None:
            setattr(into, name, reader(value, getattr(into, name)))
    return into


def _folded(key: str) -> str:
    """Go compares letters by Unicode's simple folding, by which two non-ASCII letters equal ASCII ones."""
    return key.lower() if key.isascii() else key.replace("\u017f", "s").lower()


def _text(value: Any, before: str) -> str:
    if type(value) is str:
        return value if value.isascii() else _SURROGATES.sub("\ufffd", value)
    if value is None:
        return before
    raise _WrongType


def _optional_text(value: Any, before: str) -> str:
    """For a key that the original does not know, so any type is accepted."""
    return _text(value, before) if type(value) is str else before


def _unsigned(value: Any, before: int) -> int:
    if type(value) is _Number and len(value) <= 20 and value.isdigit() and (number := int(value)) < U64:
        return number
    if value is None:
        return before
    raise _WrongType


def _version(value: Any, before: int) -> int:
    """The only signed number."""
    if type(value) is _Number and len(value) <= 20 and value.removeprefix("-").isdigit():
        number = int(value)
        if -U64 // 2 <= number < U64 // 2:
            return number
    if value is None:
        return before
    raise _WrongType


def _manifest(value: Any, before: Manifest | None) -> Manifest | None:
    return None if value is None else _fill(before or Manifest(), value, _MANIFEST)


def _chunk(value: Any, before: Chunk | None) -> Chunk | None:
    return None if value is None else _fill(before or Chunk(), value, _CHUNK)


def _receipts(value: Any, _: int) -> int:
    """The number of receipts; a client should send none."""
    if value is None:
        return 0
    if type(value) is not list:
        raise _WrongType
    for receipt in value:
        if receipt is None:
            continue
        if type(receipt) is not _Pairs:
            raise _WrongType
        for key, value in receipt:
            name = _folded(key)
            if name == "kind":
                _text(value, "")
            elif name == "value_u64":
                _unsigned(value, 0)
    return len(value)


_FRAME: Mapping[str, Reader] = {
    "v": _version, "verb": _text, "job": _text, "seq": _unsigned, "ttl_ms": _unsigned, "status": _text,
    "payload_manifest": _manifest, "payload_chunk": _chunk, "need_code": _text, "retry_hint_ms": _unsigned,
    "error_code": _text, "receipts": _receipts, "auth": _optional_text,
}  # fmt: skip
_MANIFEST: Mapping[str, Reader] = {
    "payload_id": _text, "content_type": _text, "content_encoding": _text, "cipher": _text,
    "total_bytes": _unsigned, "chunk_bytes": _unsigned, "chunks": _unsigned, "sha256": _text,
}  # fmt: skip
_CHUNK: Mapping[str, Reader] = {
    "payload_id": _text, "index": _unsigned, "offset": _unsigned, "sha256": _text, "bytes_b64": _text,
}  # fmt: skip
