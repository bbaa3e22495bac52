"""A worker's health, from probes and from how its requests end: docs/operations/workers.md#health-and-ejection.

An ejection lasts at least 1 s, twice as long each time, up to 30 s: a worker that restarts in a loop, or only answers
probes, gets one request at each return, less and less often. After FORGIVEN_AFTER_S in good health the count starts
anew. (Envoy's outlier detection counts the same way; its ejections end by time alone.)

If fewer than half of the workers of one of its models would be left, an outlier is not ejected, and an ejection ends
with the first good probe. So failing requests never eject a model's last worker. (Envoy's panic threshold, 50 % too.)
"""

from __future__ import annotations

FAILURES = 5
FIRST_EJECTION_S = 1.0
LONGEST_EJECTION_S = 30.0
FORGIVEN_AFTER_S = 60.0


class Health:
    """Pure decisions at `now`."""

    __slots__ = ("ejected_until", "ejections", "failures", "missed_probes", "out", "up", "up_since")

    def __init__(self) -> None:
        self.up = False
        self.out = False
        """Ejected and not yet back."""
        self.missed_probes = 0
        self.failures = 0
        """Failed requests in a row."""
        self.ejections = 0
        self.ejected_until = 0.0
        self.up_since = 0.0

    def answered(self, now: float, *, needed: bool) -> None:
        """A probe was answered. `needed`: too few other workers serve one of its models."""
        self.missed_probes = 0
        if not self.up and (needed or now >= self.ejected_until):
            self.up, self.out, self.up_since = True, False, now

    def suspect(self) -> None:
        """A connection was lost: no new requests until the worker answers a probe."""
        self.up = False

    def missed(self) -> bool:
        """A probe was missed. Returns whether the worker is dead: the second miss in a row."""
        self.missed_probes += 1
        self.up = False
        return self.missed_probes > 1

    def eject(self, now: float) -> None:
        """Eject it as dead or as an outlier. No effect while it is out."""
        self.up = False
        if self.out:
            return
        self.out = True
        if now - self.up_since >= FORGIVEN_AFTER_S:
            self.ejections = 0
        self.ejections += 1
        self.ejected_until = now + min(FIRST_EJECTION_S * 2.0 ** (self.ejections - 1), LONGEST_EJECTION_S)

    def failed(self) -> bool:
        """A request failed. Returns whether the worker is an outlier; after its return one failure is enough."""
        self.failures = min(self.failures + 1, FAILURES)
        return self.failures >= FAILURES

    def served(self) -> None:
        self.failures = 0

    def __repr__(self) -> str:
        state = "up" if self.up else "down"
        return f"<Health {state}, {self.failures} failures in a row, {self.ejections} ejections>"
