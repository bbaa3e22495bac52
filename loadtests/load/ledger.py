"""The client's ledger: one row per distinct request, with exactly one ending.

    served_on_time      complete, within the deadline from the intended time of the last try
    served_late         complete, later
    refused:CODE        a refusal: `error.code`, or `bare_STATUS` for a 429 or 503 without a code
    failed:WHAT         any other failure
    client_gave_up      the client's timeout passed
    held_back           the next try would have exceeded the client's limits, and was not sent

Tries are counted separately, because a server does not know which of its requests are retries: its counters must equal
`tries`, while `rows` show what users got.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

ON_TIME = "served_on_time"
LATE = "served_late"
GAVE_UP = "client_gave_up"
HELD_BACK = "held_back"

CODES = frozenset(
    {
        "tenant_queue_full", "rate_limit_exceeded", "yield", "deadline_infeasible", "deadline_expired",
        "deadline_exceeded", "no_capacity", "draining", "upstream_failed", "poison_request", "model_not_found",
        "invalid_request", "invalid_api_key", "internal_error", "bare_429", "bare_503",
    }
)  # fmt: skip
FAILURES = frozenset(
    {
        "connect",  # no connection
        "closed",  # the connection ended before the answer began
        "cut",  # the connection ended within the answer
        "malformed",  # not HTTP, or not the expected body
        "bad_status",  # an error without a known code
        "stream_error",  # an `error` event after the first token
    }
)
OWN = (ON_TIME, LATE, GAVE_UP, HELD_BACK)
ENDINGS = frozenset({*OWN, *(f"refused:{code}" for code in CODES), *(f"failed:{what}" for what in FAILURES)})


class Row:
    """One distinct request. Times are seconds after the start of the run; None if it did not happen."""

    __slots__ = (
        "asked_tokens",
        "attempts",
        "code",
        "deadline_ms",
        "degraded",
        "end_s",
        "ending",
        "first_s",
        "hint_ms",
        "impatient",
        "intended_s",
        "lag_s",
        "last_sent_s",
        "level",
        "number",
        "prompt_tokens",
        "sent_s",
        "should_retry",
        "source",
        "status",
        "stream",
        "tenant",
        "tokens",
        "tried_s",
    )

    def __init__(self, number: int, tenant: str, intended_s: float, deadline_ms: float) -> None:
        self.number = number
        self.tenant = tenant
        self.intended_s = intended_s
        self.deadline_ms = deadline_ms
        self.tried_s = intended_s  # when the last try was due
        self.sent_s: float | None = None  # when the first try left
        self.last_sent_s: float | None = None  # when the last try left
        self.first_s: float | None = None
        self.end_s: float | None = None
        self.lag_s = 0.0  # how long the client's event loop was blocked when it noticed the end
        self.stream = False
        self.impatient = False
        self.prompt_tokens = 0
        self.asked_tokens = 0
        self.tokens = 0
        self.status = 0
        self.code = ""
        self.hint_ms: float | None = None
        self.should_retry = False
        self.level = 0
        self.degraded = ""
        self.source = ""  # of its passages, if it requested any
        self.attempts = 0
        self.ending = ""

    @property
    def latency_s(self) -> float | None:
        """From the intended time of the try that ended it."""
        return None if self.end_s is None else self.end_s - self.tried_s

    @property
    def late_s(self) -> float:
        """The generator's own lateness; 0 if nothing was sent."""
        return 0.0 if self.sent_s is None else self.sent_s - self.intended_s

    def as_dict(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}

    def __repr__(self) -> str:
        return f"<Row {self.number} {self.tenant} at {self.intended_s:.3f} s: {self.ending or 'open'}>"


class Refusal(NamedTuple):
    """One refused try; a row may have several. `after_s` counts from the intended time."""

    tenant: str
    at_s: float
    after_s: float
    code: str
    should_retry: bool
    hint_ms: float | None


class Ledger:
    """The rows of a run, at most one per request of its plan, and the outcomes of all tries."""

    __slots__ = ("open", "refusals", "rows", "tries")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.refusals: list[Refusal] = []
        self.tries: Counter[str] = Counter()
        self.open = 0

    def enter(self, row: Row) -> None:
        """Add a request that was due."""
        self.rows.append(row)
        self.open += 1

    def began(self, row: Row, at_s: float) -> None:
        """A try leaves. Rows hold this already; a ledger without rows counts it here."""

    def tried(self, row: Row, outcome: str) -> None:
        """Count a try's outcome. The row may have another try."""
        self.tries[outcome] += 1
        if outcome.startswith("refused:") and row.end_s is not None:
            after_s = row.end_s - row.tried_s
            self.refusals.append(Refusal(row.tenant, row.tried_s, after_s, row.code, row.should_retry, row.hint_ms))

    def close(self, row: Row, ending: str) -> None:
        """End the request. Raises RuntimeError at a second or unknown ending."""
        if row.ending:
            raise RuntimeError(f"{row!r} ended a second time: {ending}")
        if ending not in ENDINGS:
            raise RuntimeError(f"{ending!r} is not an ending")
        row.ending = ending
        self.open -= 1

    def __repr__(self) -> str:
        return f"<Ledger {len(self.rows)} requests, {self.open} open, {self.tries.total()} tries>"
