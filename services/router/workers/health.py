"""Whether a worker is believed to be well: from probes, and from how its requests end.

    a missed probe, or a connection lost             no new requests until it answers a probe
    two missed in a row, or a refused connection     dead: ejected
    FAILURES requests in a row failed, though it
    answers probes (an outlier)                      ejected, and by one more failure after its return
    a good probe                                     it returns, if its ejection is over

An ejection lasts at least 1 s, and twice as long each time, up to 30 s: a worker that restarts in a loop, or that
answers probes and nothing else, takes one request each time it returns, and that less and less often. A minute in
good standing is forgiveness. (Envoy's outlier detection counts the same way; its ejections end by the clock alone.)

Neither may leave nobody, or few: an outlier stays, and an ejection ends with the first good probe, where fewer than
half of those who serve one of its models would be left otherwise; so the last worker of a model is never ejected for
what its requests meet. A bad worker is better than none: some of its answers are good, and the failures of the others
have a status and a reason. (Envoy's panic threshold, 50 % as well.)
"""

from __future__ import annotations

FAILURES = 5
FIRST_EJECTION_S = 1.0
LONGEST_EJECTION_S = 30.0
FORGIVEN_AFTER_S = 60.0


class Health:
    """Decisions on `now`; nothing here waits."""

    __slots__ = ("ejected_until", "ejections", "failures", "missed_probes", "out", "up", "up_since")

    def __init__(self) -> None:
        self.up = False
        self.out = False
        """Ejected, and not yet back."""
        self.missed_probes = 0
        self.failures = 0
        """Requests that failed, in a row."""
        self.ejections = 0
        self.ejected_until = 0.0
        self.up_since = 0.0

    def answered(self, now: float, *, needed: bool) -> None:
        """A good probe. `needed`: too few others serve one of its models."""
        self.missed_probes = 0
        if not self.up and (needed or now >= self.ejected_until):
            self.up, self.out, self.up_since = True, False, now

    def suspect(self) -> None:
        """A connection was lost, or one probe missed: nothing new until it has answered one."""
        self.up = False

    def missed(self) -> bool:
        """A probe went unanswered. Whether it is dead: the second in a row."""
        self.missed_probes += 1
        self.up = False
        return self.missed_probes > 1

    def eject(self, now: float) -> None:
        """It is dead, or an outlier. While it is out, to say so again changes nothing."""
        self.up = False
        if self.out:
            return
        self.out = True
        if now - self.up_since >= FORGIVEN_AFTER_S:
            self.ejections = 0
        self.ejections += 1
        self.ejected_until = now + min(FIRST_EJECTION_S * 2.0 ** (self.ejections - 1), LONGEST_EJECTION_S)

    def failed(self) -> bool:
        """A request failed. Whether that makes it an outlier. After it has returned, one more is enough."""
        self.failures = min(self.failures + 1, FAILURES)
        return self.failures >= FAILURES

    def served(self) -> None:
        """A request was answered."""
        self.failures = 0

    def __repr__(self) -> str:
        state = "up" if self.up else "down"
        return f"<Health {state}, {self.failures} failures in a row, {self.ejections} ejections>"
