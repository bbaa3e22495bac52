"""A tenant's rate: so many requests, and so many tokens, each second.

Fair shares (the scheduler) divide what there is; a rate is a contract, and holds when nobody else is there. Two
buckets, and a request takes from both or from neither:

    requests    1 a request
    tokens      estimated at the door, settled at the end with what was used

Both hold one second's worth, and at least one request (one token): the burst that a client sends in step with our
clock is the rate itself. What does not fit is not lost: it is told in how many seconds it would.

**A request larger than the burst** is let in when the bucket is full, and leaves a debt that the rate pays off before
the next is let in. The alternative, to refuse it for ever, turns a rate into a limit on size, and the sizes are only
guessed here. So a wait is always finite, and a hint is always possible. For the same reason an answer that came out
longer than it was guessed is charged in full, as debt. Bound, for charges as they were estimated: over any t seconds
what is taken, less what was given back, is at most

    max(burst, the last request taken) + rate * t

Settling is exact: as long as the bucket was not full again in between, it stands afterwards as if the actual use had
been taken in the first place. If it was, nothing is banked, and an excess is charged from full.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from services.core.bucket import Bucket
from services.core.reservations import SHARE, RetryReservations

_ROUNDING_S = 1e-6
"""So early a request may be: times are floats, and who waits as long as it was told must not be sent away again."""


class Debtor(Bucket):
    """A bucket that may go below empty: `n` above the burst needs a full bucket, and a charge needs nothing."""

    __slots__ = ()

    def __init__(self, rate_per_s: float) -> None:
        super().__init__(rate_per_s, burst=max(1.0, rate_per_s))

    def wait_s(self, now: float, n: float = 1.0) -> float:
        """Seconds until `n` would be let in if nobody else came: for all it holds, until it is full."""
        return max(0.0, self._full_at - now - max(0.0, self.burst - n) / self.rate_per_s)

    def charge(self, now: float, n: float) -> None:
        """Take `n`, whether it is there or not."""
        self._full_at = max(self._full_at, now) + n / self.rate_per_s

    def settle(self, now: float, estimated: float, actual: float) -> None:
        """Charge what was used beyond the estimate, or give back what was not."""
        if actual > estimated:
            self.charge(now, actual - estimated)
        else:
            self.give_back(now, estimated - actual)


class Rate:
    """The rate of one tenant. None: that unit has no limit."""

    __slots__ = ("_appointments", "requests", "tokens")

    def __init__(self, requests_per_s: float | None, tokens_per_s: float | None = None) -> None:
        self.requests = None if requests_per_s is None else Debtor(requests_per_s)
        self.tokens = None if tokens_per_s is None else Debtor(tokens_per_s)
        self._appointments = RetryReservations()

    def try_take(self, now: float, tokens: float) -> float | None:
        """Take one request and its tokens: None. Or take nothing, and say in how many seconds it could."""
        of_requests, of_tokens = self.requests, self.tokens
        wait_s = 0.0 if of_requests is None else of_requests.wait_s(now)
        if of_tokens is not None:
            wait_s = max(wait_s, of_tokens.wait_s(now, tokens))
        if wait_s > _ROUNDING_S:
            assert wait_s < inf, f"{tokens} tokens would never be let in: {self!r}"
            return wait_s
        if of_requests is not None:
            of_requests.charge(now, 1.0)
        if of_tokens is not None:
            of_tokens.charge(now, tokens)
        return None

    def give_back(self, now: float, tokens: float) -> None:
        """It was refused later: as if it had not come."""
        if self.requests is not None:
            self.requests.give_back(now, 1.0)
        if self.tokens is not None:
            self.tokens.give_back(now, tokens)

    def settle(self, now: float, estimated: float, actual: float) -> None:
        """It ended, having used so many tokens."""
        if self.tokens is not None:
            self.tokens.settle(now, estimated, actual)

    def hint_s(self, now: float, wait_s: float, tokens: float, random: Callable[[], float]) -> float:
        """When to come back, after `try_take` said `wait_s`: by reservation, so that the refused do not come together.

        The book is kept in seconds of this rate, so that one book serves both units.
        """
        work_s = 0.0 if self.requests is None else 1.0 / self.requests.rate_per_s
        if self.tokens is not None:
            work_s = max(work_s, tokens / self.tokens.rate_per_s)
        return self._appointments.hint(now, queued_work=SHARE * wait_s, work=work_s, rate=1.0, random=random)

    def __repr__(self) -> str:
        return f"<Rate requests {self.requests!r}, tokens {self.tokens!r}>"
