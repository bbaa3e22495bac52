"""Every reply of the governor, and its encoding as a line.

Keys have a fixed order, and keys without a value are left out. Replies contain codes only, no sentences. Strings are
escaped as Go does: `<`, `>` and `&` too, and all control characters but three by number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from services.governor.frame import U64

DONE, ABORT, YIELD, IDLE, GONE = 1, 2, 3, 4, 5
"""`conn.outcome`"""
BUSY, BAD_FRAME, BAD_MANIFEST, QUOTA, PEER_GONE, BACKEND, TIMED_OUT, LATE = 1, 2, 3, 5, 7, 8, 9, 10
"""`conn.outcome_reason`. `LATE` (a deadline has passed) is not in the original."""


@dataclass(frozen=True, slots=True)
class ReplyTemplate:
    """A kind of reply. The reply's `seq` is the frame's plus `step`."""

    verb: str
    status: str
    need: str = ""
    error: str = ""
    step: int = 1
    outcome: int = 0
    reason: int = 0


OK_PING = ReplyTemplate("confirm", "ok")
OK = ReplyTemplate("clarify", "ok")
MANIFEST_BAD = ReplyTemplate("clarify", "need", "manifest_invalid", "need_manifest_fix", reason=BAD_MANIFEST)
EARLY_YIELD = ReplyTemplate("clarify", "yield", "server_busy", "busy", outcome=YIELD, reason=BUSY)
YIELDED = ReplyTemplate("clarify", "yield", "server_busy", "busy", step=2, outcome=YIELD, reason=BUSY)
FINISHED = ReplyTemplate("confirm", "done", step=2, outcome=DONE)
BACKEND_FAILED = ReplyTemplate(
    "confirm", "abort", "backend_error", "backend_error", step=2, outcome=ABORT, reason=BACKEND
)
TOO_LATE = ReplyTemplate("confirm", "abort", "deadline", "deadline", outcome=ABORT, reason=LATE)
RAN_LATE = ReplyTemplate("confirm", "abort", "deadline", "deadline", step=2, outcome=ABORT, reason=LATE)
ENVELOPE_BAD = ReplyTemplate("clarify", "need", "envelope_invalid", "bad_envelope", reason=BAD_FRAME)
UNAUTHORIZED = ReplyTemplate("clarify", "need", "auth_required", "auth", reason=BAD_FRAME)
NO_PAYLOAD = ReplyTemplate("clarify", "need", "missing_payload", "need_manifest_or_chunk", reason=BAD_FRAME)
LINE_TOO_LONG = ReplyTemplate("confirm", "abort", "line_too_large", "bad_frame", outcome=ABORT, reason=BAD_FRAME)
TOO_MANY_JOBS = ReplyTemplate("confirm", "abort", "too_many_jobs", "quota", outcome=ABORT, reason=QUOTA)
TOO_MANY_BYTES = ReplyTemplate("confirm", "abort", "too_many_bytes", "quota", outcome=ABORT, reason=QUOTA)
TOO_MANY_PEERS = ReplyTemplate("confirm", "abort", "too_many_connections", "quota", outcome=ABORT, reason=QUOTA)
IDLE_TOO_LONG = ReplyTemplate("confirm", "abort", "idle_timeout", "timeout", outcome=IDLE, reason=TIMED_OUT)
PEER_HUNG_UP = ReplyTemplate("confirm", "abort", "peer_gone", "conn_closed", outcome=GONE, reason=PEER_GONE)
DRAINING = ReplyTemplate("confirm", "abort", "server_draining", "draining", outcome=ABORT)


def not_a_frame(need: str) -> ReplyTemplate:
    """The reply to a line that cannot be parsed."""
    return ReplyTemplate("clarify", "need", need, "bad_frame", reason=BAD_FRAME)


def chunk_refused(need: str) -> ReplyTemplate:
    return ReplyTemplate("clarify", "need", need, "need_more")


class GovernorStatus(NamedTuple):
    """The governor's state, which every reply reports."""

    inflight: int
    cap: int
    executed_total: int
    yielded_total: int
    leaving: bool = False

    @property
    def health(self) -> int:
        """1 if a slot is free and the governor is not about to leave, else 0."""
        return int(self.inflight < self.cap and not self.leaving)


_PLAIN = re.compile(r"[A-Za-z0-9_.:/ -]*", re.ASCII)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
_ESCAPED = re.compile('[\x00-\x1f"\\\\<>&\u2028\u2029]')


def quoted(text: str) -> str:
    """A JSON string, escaped as Go does."""
    if _PLAIN.fullmatch(text):
        return f'"{text}"'
    return '"' + _ESCAPED.sub(lambda found: _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}", text) + '"'


def line(
    template: ReplyTemplate,
    status: GovernorStatus,
    *,
    job: str,
    seq: int,
    ttl_ms: int,
    bytes_in: int = 0,
    hint_ms: int = 0,
    backend_ms: int | None = None,
    result: Iterable[tuple[str, object]] = (),
) -> bytes:
    """One reply. `seq` is the answered frame's; `result` the backend's, in a key that old clients skip."""
    parts = [
        f'{{"v":0,"verb":"{template.verb}","job":{quoted(job)},"seq":{(seq + template.step) % U64},"ttl_ms":{ttl_ms},'
        f'"status":"{template.status}"'
    ]
    if template.need:
        parts.append(f',"need_code":"{template.need}"')
    if hint_ms:
        parts.append(f',"retry_hint_ms":{hint_ms}')
    if template.error:
        parts.append(f',"error_code":"{template.error}"')
    parts.append(
        f',"receipts":[{{"kind":"server.health","value_u64":{status.health}}},'
        f'{{"kind":"backend.inflight","value_u64":{status.inflight}}},'
        f'{{"kind":"backend.cap","value_u64":{status.cap}}},'
        f'{{"kind":"server.executed_total","value_u64":{status.executed_total}}},'
        f'{{"kind":"server.yielded_total","value_u64":{status.yielded_total}}},'
        f'{{"kind":"cdr.bytes_in","value_u64":{bytes_in}}}'
    )
    for kind, value in (
        ("cdr.backend.ms", backend_ms),
        ("conn.outcome", template.outcome or None),
        ("conn.outcome_reason", template.reason or None),
        ("conn.retry_hint_ms", hint_ms or None),
    ):
        if value is not None:
            parts.append(f',{{"kind":"{kind}","value_u64":{value}}}')
    parts.append("]")
    shown = dict(result)
    if shown:
        parts.append(f',"result":{json.dumps(shown, separators=(",", ":"))}')
    parts.append("}\n")
    return "".join(parts).encode()
