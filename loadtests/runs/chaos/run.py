"""One run: the stack, two kinds of clients who ask whatever becomes of them, and the havoc beside it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from loadtests.load.client import Client
from loadtests.load.ledger import Ledger
from loadtests.runs.chaos import logs
from loadtests.runs.chaos.checker import Checked, Checker
from loadtests.runs.chaos.deck import Card
from loadtests.runs.chaos.havoc import Havoc, Say, Span
from loadtests.runs.chaos.listener import Listener
from loadtests.runs.chaos.questions import Questions, asks, plan_of
from loadtests.runs.chaos.stand import CLIENTS, Stand, stand
from loadtests.runs.nonces.asking import Kept
from loadtests.stillness import Stillness

PER_S = 100.0
DEADLINE_MS = 2000.0
WIRED_SHARE = 0.3
WIRED_FROM = 10_000_000  # numbers of their requests
LEAST_REQUESTS, MOST_REQUESTS = 100, 100_000
MOST_FAULTS = 1000
SETTLED_WITHIN_S = 20.0
LOOK_EVERY_S = 0.1
SAY_EVERY_S = 10.0


@dataclass(frozen=True)
class Wanted:
    """What is asked for."""

    requests: int
    faults: int
    seed: int = 1
    per_s: float = PER_S

    @property
    def seconds(self) -> float:
        return self.requests / self.per_s


@dataclass(frozen=True)
class Result:
    """What came of it. `left`: places that the router still held when everybody had been answered."""

    wanted: Wanted
    checked: Checked
    spans: list[Span]
    left: float
    lacks: list[str]
    errors: list[str]
    took_s: float
    still_s: float
    client_late: float
    bodies: dict[str, bytes]

    @property
    def done(self) -> Counter[Card]:
        """Faults by kind."""
        return Counter(span.card for span in self.spans)

    @property
    def held(self) -> bool:
        """Whether nothing happened that must never be, and all that was wanted was done."""
        whole = self.checked.asked == self.wanted.requests and self.done.total() == self.wanted.faults
        return whole and self.checked.clean and not self.left and not self.lacks and not self.errors


class Asking:
    """The clients: some ask the router, others have a wire before it that fails too."""

    def __init__(self, made: Stand, wanted: Wanted) -> None:
        wired = round(wanted.requests * WIRED_SHARE)
        self._wanted = wanted
        self.direct, self.wired = Listener(wire=False), Listener(wire=True)
        self._clients = [
            self._client(made.router.url, self.direct, wanted.requests - wired, 0),
            self._client(made.wired_url, self.wired, wired, WIRED_FROM),
        ]

    def _client(self, url: str, listener: Listener, count: int, first: int) -> Client:
        wanted = self._wanted
        plan = plan_of(wanted.seconds, count / wanted.seconds, DEADLINE_MS, wanted.seed + first)
        requests = Questions(url, first)
        return Client(plan, url, asks(plan, count), requests=requests, answer=Kept, listen=listener.hear)

    async def run(self) -> list[Ledger]:
        """All of them, each to its end."""
        return list(await asyncio.gather(*(client.run() for client in self._clients)))

    @property
    def unasked(self) -> int:
        """Answers that came when nobody was waiting for one."""
        return sum(client.unasked for client in self._clients)

    @property
    def verdicts(self) -> Counter[str]:
        return self.direct.verdicts + self.wired.verdicts


async def play(wanted: Wanted, say: Say) -> Result:
    """Raises StandError where the stand cannot be set up, or a part does not come back."""
    say("starting the stack: three workers, retrieval, PostgreSQL, Valkey, the router, and a wire before each")
    async with stand() as made:
        still = Stillness(lambda: _heart(made))
        asking = Asking(made, wanted)
        havoc = Havoc(made, wanted.faults, wanted.seconds, wanted.seed, lambda text: None)
        say(f"{wanted.requests:,} requests and {wanted.faults} faults in {wanted.seconds:.0f} s")
        began = perf_counter()
        async with _beside(still.beat(), _progress(say, wanted, asking, havoc)):
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(asking.run())
                group.create_task(havoc.go_on())
            left, lacks = await _settled(made)
        took_s = perf_counter() - began
        await made.router.process.stop()  # which writes down what it has not yet
        log = made.router.process.log
        checker = Checker(havoc.troubles(), still.between)
        entries = [*asking.direct.entries, *asking.wired.entries]
        checked = checker.check(entries, logs.outcomes(log), asking.unasked)
        return Result(
            wanted, checked, havoc.spans, left, lacks, logs.faults(log), took_s, still.late_s,
            _late_share(sending.result()), asking.direct.bodies | asking.wired.bodies,
        )  # fmt: skip


@asynccontextmanager
async def _beside(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """While the body runs; a fault of theirs is raised when it is over."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if ended is not None and not isinstance(ended, asyncio.CancelledError):
                raise ended


async def _progress(say: Say, wanted: Wanted, asking: Asking, havoc: Havoc) -> None:
    began = perf_counter()
    while True:
        await asyncio.sleep(SAY_EVERY_S)
        now_s = perf_counter() - began
        ended = ", ".join(f"{name} {count:,}" for name, count in sorted(asking.verdicts.items()))
        left_s = max(0.0, wanted.seconds - now_s)
        say(f"  {now_s:4.0f} s, {left_s:.0f} s left; faults over: {len(havoc.spans)}; {ended}")


def _heart(made: Stand) -> list[int]:
    """Whose waiting for a processor makes an answer late: the router alone keeps deadlines, and the wire before it."""
    return [made.router.process.pid, made.wires[CLIENTS].process.pid]


def _late_share(ledgers: list[Ledger]) -> float:
    rows = [row for ledger in ledgers for row in ledger.rows]
    return sum(row.late_s > 0.02 for row in rows) / max(1, len(rows))


async def _settled(made: Stand) -> tuple[float, list[str]]:
    """What is held and what is lacking once everything is over: nothing, or what stays."""
    held, lacks = 0.0, ["a look"]
    for _ in range(int(SETTLED_WITHIN_S / LOOK_EVERY_S)):
        with contextlib.suppress(OSError):
            held, lacks = await made.held(), await made.lacks()
            if not held and not lacks:
                break
        await asyncio.sleep(LOOK_EVERY_S)
    return held, lacks
