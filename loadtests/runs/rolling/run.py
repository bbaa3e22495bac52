"""A rolling restart: routers are restarted in turn under a steady load, and each request is counted by its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from loadtests.cluster.stand import key_of
from loadtests.load.arrivals import Ask, asks
from loadtests.load.client import Client
from loadtests.load.ledger import LATE, ON_TIME, Row
from loadtests.load.plan import MAX_SECONDS, Plan, Size, Step, Tenant
from loadtests.runs.rolling.stand import SHAPE, TENANTS, rolling

PER_S = {"whole": 25.0, "streams": 10.0}
ANSWER_TOKENS = {"whole": SHAPE.answer_tokens, "streams": 5 * SHAPE.answer_tokens}
DEADLINE_MS = 20_000.0  # far more than an answer takes: what is late is no matter of this run
MOST_RESTARTS = 200
AFTER_S = 1.0  # of load after the last restart

Say = Callable[[str], None]


@dataclass
class Result:
    """How the requests ended, and the restarts."""

    restarts: int = 0
    unclean: int = 0  # routers that did not leave by themselves with status 0
    sent: int = 0
    answered: int = 0
    streamed: int = 0  # of the answered
    refused: int = 0  # by a router, with a time to come back
    lost: Counter[str] = field(default_factory=Counter)
    generator_late: int = 0

    @property
    def held(self) -> bool:
        """Whether each restart was a clean one, and no request was lost."""
        return self.restarts > 0 and self.answered > 0 and not self.unclean and not self.lost.total()

    def hear(self, row: Row) -> None:
        """One request has ended. A refusal without a hint is a balancer's own: nobody took the request."""
        self.sent += 1
        if row.ending in (ON_TIME, LATE):
            self.answered += 1
            self.streamed += row.stream
        elif row.ending.startswith("refused:") and row.hint_ms is not None:
            self.refused += 1
        else:
            self.lost[row.ending] += 1


def plan_of(seed: int) -> Plan:
    """The load. It lasts as long as it has to: see `play`."""
    tenants = tuple(
        Tenant(
            name, (Step(0.0, PER_S[name]),), answer_tokens=Size(ANSWER_TOKENS[name]), deadline_ms=DEADLINE_MS,
            stream=float(name == "streams"), key=key_of(name),
        )
        for name in TENANTS
    )  # fmt: skip
    return Plan(MAX_SECONDS, tenants, seed=seed)


async def play(restarts: int, seed: int, say: Say) -> Result:
    """Restart so often, under load all the while. Raises StandError, NotPossible."""
    over = asyncio.Event()
    async with rolling() as stand:
        plan, result = plan_of(seed), Result()
        client = Client(plan, stand.url, _until(over, asks(plan)))
        load = asyncio.create_task(client.run())
        try:
            for number in range(restarts):
                result.unclean += not await stand.restart(number)
                result.restarts += 1
                say(f"  restart {result.restarts} of {restarts}")
                if load.done():
                    break  # it failed: its fault is raised below
            await asyncio.sleep(AFTER_S)
        finally:
            over.set()
        for row in (await load).rows:
            result.hear(row)
            result.generator_late += row.late_s * 1000 > plan.late_ms
        return result


def _until(over: asyncio.Event, asked: Iterator[Ask]) -> Iterator[Ask]:
    """No request after that."""
    for ask in asked:
        if over.is_set():
            return
        yield ask
