"""Deadline headers: one relative budget per request, read on arrival and passed on as the remaining time.

Only relative times are used, since clocks differ. Each reader matches one anchored pattern once, on a value of bounded
length. Go durations are those of `time.ParseDuration`, without signs and with at most 8 parts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

from services.runtime.errors import BadInput

Header = tuple[bytes, bytes]
Reader = Callable[[bytes], float | None]

_NUMBER = re.compile(rb"[0-9]{1,15}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?")  # any float as a client prints it
_GO_PART = r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(ms|us|µs|ns|s|m|h)"
_GO_PARTS = re.compile(_GO_PART)
_GO_DURATION = re.compile(f"(?:{_GO_PART}){{1,8}}")
_LONGEST_GO_BYTES = 64
_GRPC = re.compile(r"([0-9]{1,8})([HMSmun])")
_GO_MS = {"h": 3_600_000.0, "m": 60_000.0, "s": 1000.0, "ms": 1.0, "us": 1e-3, "µs": 1e-3, "ns": 1e-6}
_GRPC_MS = {"H": 3_600_000.0, "M": 60_000.0, "S": 1000.0, "m": 1.0, "u": 1e-3, "n": 1e-6}


def milliseconds(value: bytes) -> float | None:
    """A plain decimal number, or None. `1_0` and digits of other scripts are not numbers."""
    return float(value) if _NUMBER.fullmatch(value) else None


def _go_duration(value: bytes) -> float | None:
    if len(value) > _LONGEST_GO_BYTES:
        return None
    text = value.decode("utf-8", "replace")
    if _GO_DURATION.fullmatch(text) is None:
        return None
    return sum(float(number) * _GO_MS[unit] for number, unit in _GO_PARTS.findall(text))


def _grpc_timeout(value: bytes) -> float | None:
    match = _GRPC.fullmatch(value.decode("latin-1"))
    return float(match[1]) * _GRPC_MS[match[2]] if match else None


OURS = b"x-weir-"
READERS: Mapping[bytes, Reader] = {
    b"x-weir-deadline-ms": milliseconds,
    b"x-llm-d-inference-ttl": _go_duration,
    b"x-envoy-expected-rq-timeout-ms": milliseconds,
    b"grpc-timeout": _grpc_timeout,
}


def shortest_ms(headers: Sequence[Header], readers: Mapping[bytes, Reader], max_ms: float) -> float:
    """The shortest duration that these headers name. Raises BadInput naming a header.

    A Weir header above the maximum is an error. The aliases come from proxies that do not know the maximum and send the
    same to every server: those are cut to it.
    """
    shortest = math.inf
    for name, value in headers:
        asked_ms = readers[name](value.strip())
        ours = name.startswith(OURS)
        if asked_ms is None or not 0 < asked_ms < math.inf or (ours and asked_ms > max_ms):
            header = name.decode("ascii")
            raise BadInput(f"{header}: a duration above 0 and at most {max_ms:g} ms was expected", header)
        shortest = min(shortest, asked_ms, max_ms)
    return shortest
