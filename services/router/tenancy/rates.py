"""A tenant's rate limit: requests and tokens per second, a fixed maximum even without other tenants.

A request takes 1 from the bucket of requests and its estimated tokens from the bucket of tokens, or nothing from
either; the tokens are settled at the end. Both hold one second's worth, and at least one request (one token).

A request larger than the burst is admitted when the bucket is full and leaves a debt; otherwise a rate would limit
sizes, which are only estimated here. So every wait is finite. Bound, for charges as estimated: over any t seconds, what
is taken less what is given back is at most

    max(burst, the last request taken) + rate * t

Settling is exact: unless the bucket was full in between, it is then as if the actual use had been taken at first. If it
was full, nothing is banked, and an excess is charged from full.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from services.core.bucket import Bucket
from services.core.reservations import SHARE, RetryReservations

_ROUNDING_S = 1e-6
"""Tolerance for early requests: times are floats, and a client that waits as long as hinted must be admitted."""


class Debtor(Bucket):
    """A bucket that may go below empty: taking more than the burst needs a full bucket, and `charge` needs nothing."""

    __slots__ = ()

    def __init__(self, rate_per_s: float) -> None:
        super().__init__(rate_per_s, burst=max(1.0, rate_per_s))

    def wait_s(self, now: float, n: float = 1.0) -> float:
        """Seconds until `n` fits if nothing else is taken; until the bucket is full for `n` above the burst."""
        return max(0.0, self._full_at - now - max(0.0, self.burst - n) / self.rate_per_s)

    def charge(self, now: float, n: float) -> None:
        """Take `n`, even into debt."""
        self._full_at = max(self._full_at, now) + n / self.rate_per_s

    def settle(self, now: float, estimated: float, actual: float) -> None:
        """Charge the use beyond the estimate, or give back the rest."""
        if actual > estimated:
            self.charge(now, actual - estimated)
        else:
            self.give_back(now, estimated - actual)


class Rate:
    """The rate of one tenant. None: no limit of that unit."""

    __slots__ = ("_appointments", "requests", "taken_requests", "taken_tokens", "tokens")

    def __init__(self, requests_per_s: float | None, tokens_per_s: float | None = None) -> None:
        self.requests = None if requests_per_s is None else Debtor(requests_per_s)
        self.tokens = None if tokens_per_s is None else Debtor(tokens_per_s)
        self.taken_requests = 0
        """Taken less given back here, and not at other routers."""
        self.taken_tokens = 0.0
        self._appointments = RetryReservations()

    def try_take(self, now: float, tokens: float) -> float | None:
        """Take one request and its tokens (None), or take nothing and return the wait in seconds."""
        of_requests, of_tokens = self.requests, self.tokens
        wait_s = self.wait_s(now, tokens)
        if wait_s:
            assert wait_s < inf, f"{tokens} tokens would never be let in: {self!r}"
            return wait_s
        if of_requests is not None:
            of_requests.charge(now, 1.0)
        if of_tokens is not None:
            of_tokens.charge(now, tokens)
        self.taken_requests += 1
        self.taken_tokens += tokens
        return None

    def wait_s(self, now: float, tokens: float) -> float:
        """Seconds until one request and its tokens fit if nothing else is taken; 0 if they fit now."""
        wait_s = 0.0 if self.requests is None else self.requests.wait_s(now)
        if self.tokens is not None:
            wait_s = max(wait_s, self.tokens.wait_s(now, tokens))
        return wait_s if wait_s > _ROUNDING_S else 0.0

    def give_back(self, now: float, tokens: float) -> None:
        """Undo `try_take` for a request that was rejected later."""
        self.taken_requests -= 1
        self.taken_tokens -= tokens
        if self.requests is not None:
            self.requests.give_back(now, 1.0)
        if self.tokens is not None:
            self.tokens.give_back(now, tokens)

    def settle(self, now: float, estimated: float, actual: float) -> None:
        """Settle the tokens of a request that has ended."""
        self.taken_tokens += actual - estimated
        if self.tokens is not None:
            self.tokens.settle(now, estimated, actual)

    def take_elsewhere(self, now: float, requests: int, tokens: float) -> None:
        """Other routers have taken this much of the same limit; below 0: they have given it back."""
        for bucket, taken in ((self.requests, float(requests)), (self.tokens, tokens)):
            if bucket is not None and taken > 0:
                bucket.charge(now, taken)
            elif bucket is not None:
                bucket.give_back(now, -taken)

    def hint_s(self, now: float, wait_s: float, tokens: float, random: Callable[[], float]) -> float:
        """The retry hint after `try_take` returned `wait_s`: a reservation, in seconds of this rate for both units."""
        work_s = 0.0 if self.requests is None else 1.0 / self.requests.rate_per_s
        if self.tokens is not None:
            work_s = max(work_s, tokens / self.tokens.rate_per_s)
        return self._appointments.hint(now, queued_work=SHARE * wait_s, work=work_s, rate=1.0, random=random)

    def __repr__(self) -> str:
        return f"<Rate requests {self.requests!r}, tokens {self.tokens!r}>"
