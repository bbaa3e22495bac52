"""A line that a client sent, as a frame: what may stand in it, and what its first letters say where it is none.

The wire is heptamini v1, whose server reads JSON as Go does. So a key may be written in other letter case, of equal
keys the last one counts, `null` is as good as nothing, unknown keys are skipped, and what is not UTF-8 becomes U+FFFD;
but one value of a wrong type spoils the whole line. Numbers are unsigned and have 64 bits: `1.0` and `1e2` are none.

Nearly every line has exactly the keys of one of three shapes, each once. Those are read at once by msgspec, a third
of the time. As many colons as a shape has keys say that nothing else can be there: none twice, none unknown. Whatever
does not fit, for whatever reason, is read with care, so that the short way decides nothing by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar

import msgspec

U64 = 2**64
TRIMMED = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"

# What a line that is no frame begins with, and what it is then called. The first that fits decides.
LOOKS_LIKE = (
    (("GET ", "POST ", "PUT ", "HEAD "), "http_request"),
    (("GIF87a", "GIF89a"), "binary_gif"),
    (("<!DOCTYPE", "<html", "<HTML"), "html_document"),
    (("<?xml", "<rss", "<feed"), "xml_document"),
    (("[",), "json_array"),
    (("{",), "json_malformed"),
    (("",), "not_json"),
)


MAX_NAME_BYTES = 256  # of a name or a field of a manifest, in UTF-8: what heptamini's client sends has some 70
NO_JOB_NAME = "J_?"  # what a reply calls a job whose name is not known or too long
MAX_AUTH_BYTES = 4096  # of a token, which may be one that says much itself


class NotAFrame(Exception):
    """The line cannot be read; the message is its `need_code`."""


def size(text: str) -> int:
    """Its bytes in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


class Manifest(msgspec.Struct, gc=False):
    """What a payload will be. Sizes in bytes; 0 and '' where nothing was said."""

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
        """All of it that is text."""
        return self.payload_id, self.content_type, self.content_encoding, self.cipher, self.sha256

    @property
    def bytes(self) -> int:
        """How many bytes of text it holds."""
        return sum(map(size, self.names))


class Chunk(msgspec.Struct, gc=False):
    """One piece of a payload, in base64. Its `offset` is read and not believed."""

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
    """A line that could be read: whether it makes sense is for `fault` to say."""

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
        """Whether the envelope is: a known verb with what belongs to it, and nothing that only a server says.

        Nor may a name be longer than `MAX_NAME_BYTES`, since names are kept; the original knows no such bound.
        """
        rule = _RULES.get(self.verb)
        return self.v == 0 and self.job != "" and self.seq > 0 and rule is not None and rule(self) and self._short

    @property
    def unnamed(self) -> FrameEnvelope:
        """Its envelope without the name, which is too long to be repeated."""
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
"""By how many keys there are, those of the payload included."""

_RULES: Mapping[str, Callable[[ProtocolFrame], bool]] = {
    "ping": lambda frame: frame._payloads == 0 and not frame._has_reply_fields,
    "share": lambda frame: frame._payloads == 1 and not frame._has_reply_fields,
    "clarify": lambda frame: frame._payloads == 0 and frame.status != "",
    "confirm": lambda frame: frame._payloads == 0 and frame.status != "",
}


class _Pairs(list[tuple[str, Any]]):
    """An object, with every key it had, in order."""


class _Number(str):
    """A number, as it was written."""

    __slots__ = ()


class _WrongType(Exception):
    """A value that its key cannot have."""


def _no_constant(name: str) -> NoReturn:
    raise _WrongType(name)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_Pairs, parse_int=_Number, parse_float=_Number, parse_constant=_no_constant
)
_SURROGATES = re.compile("[\ud800-\udfff]")


def read(line: bytes) -> ProtocolFrame | None:
    """The frame on this line; None for a blank one. Raises NotAFrame."""
    shape = _SHAPES.get(line.count(b":"))
    if shape is not None and b"-0" not in line:  # the one number that only a version may be
        try:
            return shape.decode(line)
        except (ValueError, RecursionError):
            pass  # another frame with as many colons, or none
    return read_with_care(line)


def read_with_care(line: bytes) -> ProtocolFrame | None:
    """The same for any line."""
    text = line.decode("utf-8", "surrogateescape").strip(TRIMMED)  # so each bad byte becomes one U+FFFD, as there
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
"""What a value becomes, given what its key had before. Raises _WrongType."""


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
    """Go compares letters by Unicode's simple folding: two of them look like none of ASCII's and are."""
    return key.lower() if key.isascii() else key.replace("\u017f", "s").lower()


def _text(value: Any, before: str) -> str:
    if type(value) is str:
        return value if value.isascii() else _SURROGATES.sub("\ufffd", value)
    if value is None:
        return before
    raise _WrongType


def _optional_text(value: Any, before: str) -> str:
    """Of a key that the original does not know, and whose value it therefore lets be anything."""
    return _text(value, before) if type(value) is str else before


def _unsigned(value: Any, before: int) -> int:
    if type(value) is _Number and len(value) <= 20 and value.isdigit() and (number := int(value)) < U64:
        return number
    if value is None:
        return before
    raise _WrongType


def _version(value: Any, before: int) -> int:
    """The one signed number."""
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
    """How many there are: a client has none to give."""
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
