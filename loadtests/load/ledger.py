"""One row per distinct request, and exactly one ending for each: the client's own books.

    served_on_time      whole, within the deadline, counted from the intended time of the try that brought it
    served_late         whole, later
    refused:CODE        an answer that says no: `error.code`, or `bare_STATUS` where a 429 or 503 carries no code
    failed:WHAT         anything else that went wrong
    client_gave_up      its patience ran out
    held_back           its next try would have passed the client's own bounds, and was not made

Tries are counted beside the rows, since a server cannot know which of its requests are one person's second try: its
counters are to equal `tries`, and what users got is told by `rows`.
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
        "closed",  # the connection ended before a byte of the answer
        "cut",  # it ended within the answer
        "malformed",  # not HTTP, or not the body that was promised
        "bad_status",  # an error without a code that is known
        "stream_error",  # an `error` event after the first token
    }
)
OWN = (ON_TIME, LATE, GAVE_UP, HELD_BACK)
ENDINGS = frozenset({*OWN, *(f"refused:{code}" for code in CODES), *(f"failed:{what}" for what in FAILURES)})


class Row:
    """One distinct request. Times are seconds after the start of the run; None: it never came to that."""

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
        self.last_sent_s: float | None = None  # when the last one did
        self.first_s: float | None = None
        self.end_s: float | None = None
        self.lag_s = 0.0  # how long the client's own event loop had been away when it noticed the end
        self.stream = False
        self.prompt_tokens = 0
        self.asked_tokens = 0
        self.tokens = 0
        self.status = 0
        self.code = ""
        self.hint_ms: float | None = None
        self.should_retry = False
        self.level = 0
        self.degraded = ""
        self.source = ""  # of its passages, where it asked for any
        self.attempts = 0
        self.ending = ""

    @property
    def latency_s(self) -> float | None:
        """From the intended time of the try that ended it."""
        return None if self.end_s is None else self.end_s - self.tried_s

    @property
    def late_s(self) -> float:
        """By how much the generator itself was late; 0 for what was never sent."""
        return 0.0 if self.sent_s is None else self.sent_s - self.intended_s

    def as_dict(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}

    def __repr__(self) -> str:
        return f"<Row {self.number} {self.tenant} at {self.intended_s:.3f} s: {self.ending or 'open'}>"


class Refusal(NamedTuple):
    """One try that was refused; several may belong to one row. `after_s` counts from the intended time."""

    tenant: str
    at_s: float
    after_s: float
    code: str
    should_retry: bool
    hint_ms: float | None


class Ledger:
    """The rows of a run, at most as many as its plan has requests, and how its tries ended."""

    __slots__ = ("open", "refusals", "rows", "tries")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.refusals: list[Refusal] = []
        self.tries: Counter[str] = Counter()
        self.open = 0

    def enter(self, row: Row) -> None:
        """A request was due."""
        self.rows.append(row)
        self.open += 1

    def began(self, row: Row, at_s: float) -> None:
        """A try leaves. Rows are enough to know of it; a ledger without rows counts it here."""

    def tried(self, row: Row, outcome: str) -> None:
        """One try ended so; the row may have another."""
        self.tries[outcome] += 1
        if outcome.startswith("refused:") and row.end_s is not None:
            after_s = row.end_s - row.tried_s
            self.refusals.append(Refusal(row.tenant, row.tried_s, after_s, row.code, row.should_retry, row.hint_ms))

    def close(self, row: Row, ending: str) -> None:
        """The request is over. Raises RuntimeError at a second ending, or one that is not in the set."""
        if row.ending:
            raise RuntimeError(f"{row!r} ended a second time: {ending}")
        if ending not in ENDINGS:
            raise RuntimeError(f"{ending!r} is no ending")
        row.ending = ending
        self.open -= 1

    def __repr__(self) -> str:
        return f"<Ledger {len(self.rows)} requests, {self.open} open, {self.tries.total()} tries>"
