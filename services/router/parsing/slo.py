"""The SLO of a request: its deadline, its limits for the first token and the wait in the queue, its class.

docs/api/README.md lists the headers, read in one pass since every request pays for it. An unreadable duration is an
error, since a wrong guess breaks a promise. An unreadable preference is ignored, as RFC 7240 demands, and an unreadable
retry count is 0. The scheduler, not this module, checks the class.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

import msgspec

from services.router.parsing.deadlines import READERS as DEADLINES
from services.router.parsing.deadlines import Header, milliseconds, shortest_ms

FIRST_TOKENS = {b"x-weir-ttft-ms": milliseconds, b"x-llm-d-slo-ttft-ms": milliseconds}
CLASSES = (b"x-weir-class", b"x-llm-d-inference-objective", b"x-smg-priority")
DEADLINE, FIRST_TOKEN, WAIT_LIMIT, CLASS, ATTEMPT = "deadline", "first token", "patience", "class", "attempt"
FIELD_OF: Mapping[bytes, str] = {
    **dict.fromkeys(DEADLINES, DEADLINE),
    **dict.fromkeys(FIRST_TOKENS, FIRST_TOKEN),
    b"prefer": WAIT_LIMIT,
    **dict.fromkeys(CLASSES, CLASS),
    b"x-stainless-retry-count": ATTEMPT,
}
_NAMES, _name_of = frozenset(FIELD_OF), itemgetter(0)
MAX_ATTEMPTS = 1000
"""A higher count cannot be right."""

_QUOTED = rb'"(?:[^"\\]|\\.)*\\?(?:"|\Z)'  # an unclosed quotation reaches to the end
_PREFERENCE = re.compile(rb'(?:[^,"]|%b)+' % _QUOTED, re.DOTALL)
_WAIT = re.compile(rb'\s*wait\s*=\s*(?:([0-9]{1,15})|"([0-9]{1,15})")\s*(?:;.*)?', re.IGNORECASE | re.DOTALL)
_NAMES_WAIT = re.compile(rb"\s*wait\s*(?:[=;]|$)", re.IGNORECASE)
_COUNT = re.compile(rb"[0-9]{1,9}")


class RequestSLO(msgspec.Struct, frozen=True):
    """The client's limits, or the defaults."""

    deadline_ms: float
    ttft_ms: float
    """Until the first token; for a plain answer, the deadline."""
    ttft_asked: bool = False
    """Whether the client named it: then it is enforced, and not only expected."""
    max_wait_s: float | None = None
    """The longest wait in the queue that the client accepts; None: limited only by the deadline."""
    class_name: str | None = None
    attempt: int = 0


NO_SLO = RequestSLO(0.0, 0.0)
"""The value before the headers are read."""


def read(
    headers: Sequence[Header],
    *,
    default_ms: float,
    max_ms: float,
    default_ttft_ms: float,
    stream: bool,
    tenant_ms: float | None = None,
) -> RequestSLO:
    """The SLO of one request. `tenant_ms`: the tenant's own maximum deadline. Raises BadInput naming the header."""
    if tenant_ms is not None:
        default_ms = tenant_ms
    if _NAMES.isdisjoint(map(_name_of, headers)):
        return RequestSLO(default_ms, min(default_ttft_ms, default_ms) if stream else default_ms)
    by_field: dict[str, list[Header]] = {}
    for header in headers:
        if header[0] in FIELD_OF:
            by_field.setdefault(FIELD_OF[header[0]], []).append(header)
    deadline_ms, ttft_ms, ttft_asked = default_ms, default_ttft_ms, False
    if DEADLINE in by_field:
        deadline_ms = shortest_ms(by_field[DEADLINE], DEADLINES, max_ms)
    if FIRST_TOKEN in by_field:
        ttft_ms, ttft_asked = shortest_ms(by_field[FIRST_TOKEN], FIRST_TOKENS, max_ms), stream
    return RequestSLO(
        deadline_ms if tenant_ms is None else min(deadline_ms, tenant_ms),
        min(ttft_ms, deadline_ms) if stream else deadline_ms,
        ttft_asked,
        _max_wait_s(by_field[WAIT_LIMIT]) if WAIT_LIMIT in by_field else None,
        _class_name(by_field[CLASS]) if CLASS in by_field else None,
        _attempt(by_field[ATTEMPT]) if ATTEMPT in by_field else 0,
    )


def _max_wait_s(given: Sequence[Header]) -> float | None:
    """The first `Prefer: wait=S` in seconds (RFC 7240, section 2); None if it is malformed or absent."""
    for _, value in given:
        for preference in _preferences(value):
            if _NAMES_WAIT.match(preference):
                match = _WAIT.fullmatch(preference)
                return float(match[1] or match[2]) if match else None
    return None


def _preferences(value: bytes) -> Iterator[bytes]:
    """The parts between commas, except commas within a quoted string."""
    return (match[0] for match in _PREFERENCE.finditer(value))


def _class_name(given: Sequence[Header]) -> str | None:
    """The value of the first of CLASSES that is present; None if it is empty."""
    _, value = min(given, key=lambda header: CLASSES.index(header[0]))
    return value.strip().decode("latin-1") or None


def _attempt(given: Sequence[Header]) -> int:
    value = given[0][1].strip()
    return min(int(value), MAX_ATTEMPTS) if _COUNT.fullmatch(value) else 0
