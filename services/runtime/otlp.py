"""Encodes spans as OTLP's protobuf message (opentelemetry/proto/trace/v1/trace.proto).

OpenTelemetry's own way makes an object of the SDK and a message for each span and attribute, 56 us a span; this takes
3 us (decision 065). A message of protobuf is its fields one after the other, so texts that come again are
encoded once and copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

from services.runtime.tracing import Attribute, CommonAttributes, FinishedTrace, Kind

MAX_CACHED = 4096
"""Encoded attributes that are kept. All are dropped when there are more: clients choose some of them."""
UNIQUE = frozenset({"weir.id", "weir.why"})
"""Attributes that hardly ever have the same value twice."""
KINDS: dict[Kind, int] = {"internal": 1, "server": 2, "client": 3}
INT64 = range(-(2**63), 2**63)

# A field begins with its number * 8 + its type: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes.
SPAN = b"\x12"  # of ScopeSpans
TRACE_ID, SPAN_ID, PARENT_ID = b"\x0a\x10", b"\x12\x08", b"\x22\x08"  # with their lengths
STATE, NAME, KIND, ATTRIBUTE, STATUS = b"\x1a", b"\x2a", b"\x30", b"\x4a", b"\x7a"
TIMES = Struct("<cQcQ")
START, END = b"\x39", b"\x41"
LOCAL_PARENT, REMOTE_PARENT = b"\x85\x01\x00\x01\x00\x00", b"\x85\x01\x00\x03\x00\x00"  # flags, as four bytes
NO_ERROR = b"\x7a\x00"
DOUBLE = Struct("<d")


class SpanEncoder:
    """Encodes spans, and remembers what it encoded. For one thread."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Attribute, type], bytes] = {}
        self._doubles: dict[str, bytes] = {}
        self._names: dict[tuple[str, Kind], bytes] = {}

    def spans(self, finished: FinishedTrace, state: str = "") -> bytes:
        """All spans of a trace, as fields of a ScopeSpans message. `state`: its valid `tracestate`."""
        trace_id, at, unix_ns = TRACE_ID + bytes.fromhex(finished.trace_id), finished.at, finished.unix_ns
        state_field = field(STATE, state.encode("ascii")) if state else b""
        flags = REMOTE_PARENT if finished.spans[0].parent_id else LOCAL_PARENT  # of the request's own span
        names, encoded = self._names, list[bytes]()
        for span in finished.spans:
            began_ns, ended_ns = round((span.began_at - at) * 1e9), round((span.ended_at - at) * 1e9)
            fields = [
                trace_id,
                SPAN_ID, bytes.fromhex(span.span_id),
                state_field,
                PARENT_ID + bytes.fromhex(span.parent_id) if span.parent_id else b"",
                names.get((span.name, span.kind)) or self._name(span.name, span.kind),
                TIMES.pack(START, unix_ns + began_ns, END, unix_ns + ended_ns),
            ]  # fmt: skip
            common = span.common
            if common is not None:
                fields.append(common.encoded or self._common(common))
            if span.attributes:
                self._attributes(span.attributes, fields)
            fields += (_error(span.error) if span.error else NO_ERROR, flags)
            body = b"".join(fields)
            encoded += (SPAN, varint(len(body)), body)
            flags = LOCAL_PARENT
        return b"".join(encoded)

    def _attributes(self, attributes: Mapping[str, Attribute], fields: list[bytes]) -> None:
        known, doubles = self._known, self._doubles
        for name, value in attributes.items():
            if value.__class__ is float:
                fields += (doubles.get(name) or self._double(name), DOUBLE.pack(value))
            else:
                fields.append(known.get((name, value, value.__class__)) or self._attribute(name, value))

    def _common(self, common: CommonAttributes) -> bytes:
        fields: list[bytes] = []
        self._attributes(common.attributes, fields)
        common.encoded = found = b"".join(fields)
        return found

    def _name(self, name: str, kind: Kind) -> bytes:
        found = field(NAME, _text(name)) + KIND + varint(KINDS[kind])
        if len(self._names) >= MAX_CACHED:
            self._names.clear()
        self._names[name, kind] = found
        return found

    def _double(self, name: str) -> bytes:
        """An attribute without the eight bytes of its number, which come last."""
        self._doubles[name] = found = _pair(name, b"\x21" + bytes(8))[:-8]
        return found

    def _attribute(self, name: str, value: Attribute) -> bytes:
        """The class is part of the key, since 1 equals True. An integer that OTLP cannot hold is left out."""
        if isinstance(value, int) and value not in INT64:
            return b""
        found = _pair(name, _value(value))
        if name not in UNIQUE:
            if len(self._known) >= MAX_CACHED:
                self._known.clear()
            self._known[name, value, value.__class__] = found
        return found


def field(tag: bytes, content: bytes) -> bytes:
    """A field with a length."""
    return b"%b%b%b" % (tag, varint(len(content)), content)


def varint(number: int) -> bytes:
    """A number from 0 on: seven bits a byte, lowest first; all bytes but the last have the eighth bit."""
    return VARINTS[number] if number < SHORT else _varint(number)


def _varint(number: int) -> bytes:
    groups = [number >> at & 0x7F | 0x80 for at in range(0, max(number.bit_length(), 1), 7)]
    groups[-1] &= 0x7F
    return bytes(groups)


SHORT = 1024
VARINTS = tuple(map(_varint, range(SHORT)))


def _error(message: str) -> bytes:
    return field(STATUS, field(b"\x12", _text(message)) + b"\x18\x02")


def _pair(name: str, value: bytes) -> bytes:
    return field(ATTRIBUTE, field(b"\x0a", _text(name)) + field(b"\x12", value))


def _value(value: Attribute) -> bytes:
    if isinstance(value, str):
        return field(b"\x0a", _text(value))
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + varint(value % 2**64)
    if isinstance(value, float):
        return b"\x21" + DOUBLE.pack(value)
    return field(b"\x2a", b"".join(field(b"\x0a", _value(each)) for each in value))


def _text(text: str) -> bytes:
    return text.encode("utf-8", "replace")
