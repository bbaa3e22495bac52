"""The open loop at steady rates, for any route. Plan files do this for the router's own routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from loadtests.load.answer import Answer
from loadtests.load.arrivals import Ask
from loadtests.load.client import Client, Listen, Requests
from loadtests.load.ledger import Ledger
from loadtests.load.plan import Plan, Step, Tenant

CLIENT_TIMEOUT_MS = 5_000.0


class Same:
    def __init__(self, request: bytes) -> None:
        self._request = request

    def bytes_of(self, ask: Ask, number: int) -> bytes:
        return self._request


async def at_rates(
    port: int,
    per_s: Mapping[str, float],
    requests: Requests,
    seconds: float,
    *,
    answer: Callable[[], Answer] = Answer,
    listen: Listen | None = None,
) -> Ledger:
    """Poisson arrivals at the given rates. A kind is a tenant's name.

    A request without an answer within `PATIENCE_MS` is given up.
    """
    kinds = tuple(
        Tenant(kind, (Step(0, rate),), deadline_ms=CLIENT_TIMEOUT_MS, client_timeout_ms=CLIENT_TIMEOUT_MS)
        for kind, rate in per_s.items()
        if rate > 0
    )
    plan = Plan(seconds, kinds, warmup_s=0.0, cooldown_s=0.0)
    return await Client(plan, f"http://127.0.0.1:{port}", requests=requests, answer=answer, listen=listen).run()
