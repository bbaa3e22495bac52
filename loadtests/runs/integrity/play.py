"""One part under load: a stack, clients that ask on time whatever becomes of their requests, faults, and the checker.

After the last fault the part waits until the router holds nothing and lacks nothing, and asks once more: in the calm
all has to be as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from time import perf_counter
from typing import Any

from loadtests.cluster.making import CLIENTS, Shape
from loadtests.cluster.processes import StandError, get
from loadtests.cluster.settling import left_over
from loadtests.cluster.stack import Stack, stack
from loadtests.cluster.stand import Server
from loadtests.faults.evil.row import BOTH
from loadtests.load.client import Client
from loadtests.load.ledger import Ledger
from loadtests.report.progress import SAY_EVERY_S, Say
from loadtests.runs.integrity import deck, logs
from loadtests.runs.integrity.checker import AFTERMATH_S, UNWRITTEN_S, Checked, Checker, Entry, Worked, by_id
from loadtests.runs.integrity.deck import Card
from loadtests.runs.integrity.havoc import Havoc
from loadtests.runs.integrity.listener import Listener
from loadtests.runs.integrity.parts import Done, Kind, Part
from loadtests.runs.integrity.questions import Kept, Questions, asks, plan_of
from loadtests.stillness import Stillness

DEADLINE_MS = 2000.0
WIRED_SHARE = 0.3
WIRED_FROM, TAIL_FROM = 10_000_000, 20_000_000  # numbers of their requests, so that no nonce comes twice
TAIL_REQUESTS, TAIL_PER_S = 200, 40.0
LATE_S = 0.02
SETTLED_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Mood:
    """What a kind of part has of its own. `wired`: the share of clients with a wire of their own before the router."""

    cards: Callable[[int], Iterator[Card]]
    shape: Shape
    wired: float = 0.0
    alone: bool = True


MOODS = {
    Kind.FAULTS: Mood(deck.deal, Shape(), WIRED_SHARE, alone=False),
    Kind.KILLS: Mood(deck.kills, Shape(wires=False)),
    Kind.NONCES: Mood(deck.frozen_and_killed, Shape(wires=False, step_ms=8.0, evil=BOTH)),
}


class Asking:
    """The clients of a part: some ask the router, others have a wire before it that fails too."""

    def __init__(self, made: Stack, part: Part, wired_share: float) -> None:
        wired = round(part.requests * wired_share)
        self._made, self._part = made, part
        self._clients: list[Client] = []
        self._listeners: list[Listener] = []
        self._add(made.router.url, part.requests - wired, part.per_s * (1 - wired_share), 0)
        if wired:
            self._add(made.wired_url, wired, part.per_s * wired_share, WIRED_FROM, wire=True)

    def _add(self, url: str, count: int, per_s: float, first: int, *, wire: bool = False) -> tuple[Client, Listener]:
        plan, listener = plan_of(count / per_s, per_s, DEADLINE_MS, self._part.seed + first), Listener(wire=wire)
        requests = Questions(url, first)
        client = Client(plan, url, asks(plan, count), requests=requests, answer=Kept, listen=listener.hear)
        self._clients.append(client)
        self._listeners.append(listener)
        return client, listener

    async def run(self) -> list[Ledger]:
        """All requests, each to its end."""
        return list(await asyncio.gather(*(client.run() for client in self._clients)))

    async def once_more(self) -> Sequence[Entry]:
        """A light load in the calm."""
        client, listener = self._add(self._made.router.url, TAIL_REQUESTS, TAIL_PER_S, TAIL_FROM)
        await client.run()
        return listener.entries

    @property
    def entries(self) -> list[Entry]:
        """Every request that has ended."""
        return [entry for listener in self._listeners for entry in listener.entries]

    @property
    def unasked(self) -> int:
        """Answers that came when nobody was waiting for one."""
        return sum(client.unasked for client in self._clients)

    @property
    def verdicts(self) -> Counter[str]:
        """How those ended, by verdict."""
        return sum((listener.verdicts for listener in self._listeners), Counter())

    def body_of(self, id: str) -> bytes:
        """What was kept of a wrong answer."""
        return next((listener.bodies[id] for listener in self._listeners if id in listener.bodies), b"")


async def play(part: Part, say: Say) -> Done:
    """One part under load. Raises StandError where the stack cannot be set up, or a part of it does not come back."""
    mood, began = MOODS[part.kind], perf_counter()
    async with stack(mood.shape) as made:
        still = Stillness(lambda: _heart(made))
        asking = Asking(made, part, mood.wired)
        havoc = Havoc(made, mood.cards(part.seed), part.faults, part.seconds, Random(part.seed), mood.alone)
        for server in made.evil:
            server.process.start()
        async with _beside(still.beat(), _progress(say, part, asking, havoc)):
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(asking.run())
                group.create_task(havoc.go_on())
            late = _late(sending.result())
            tricks = Counter[str]()
            for server in made.evil:
                tricks += await _reformed(server)
            left, lacks = await _settled(made)
            tail = [] if lacks else await asking.once_more()
            left = left or (await _settled(made))[0]
        counted, retries = await made.counted()
        await asyncio.sleep(UNWRITTEN_S)
        for server in (made.router, *made.workers):
            await server.process.stop()  # which writes down what it has not yet
        book = logs.book(made.router.process.log, havoc.router_logged)
        pairs = (pair for worker in made.workers for pair in logs.received(worker.process.name, worker.process.log))
        worked = Worked(
            by_id(pairs), [worker.process.name for worker in made.workers], counted, retries,
            1 + len(havoc.router_logged), perf_counter() - began,
        )  # fmt: skip
        checked = Checker(havoc.troubles(), still.between, havoc.kills()).check(
            asking.entries, book, worked=worked, unasked=asking.unasked, tail=[entry.seen for entry in tail],
            alone=part.kind is Kind.KILLS,
        )  # fmt: skip
        done = Done(part.number, part.kind.value, took_s=perf_counter() - began, still_s=still.late_s)
        done.counts = _counts(checked, tricks) + Counter(
            {"places held": round(left), "lacks": len(lacks), "errors": len(book.errors), "late": late}
        )
        done.counts["tail"] += len(tail)
        done.counts["asked"] -= len(tail)
        done.faults = Counter(f"{span.card.part}: {span.card.what}" for span in havoc.spans)
        told = (_told(what, entry, asking, havoc) for what, _, entry in checked.kept)
        done.kept = [*told, *lacks, *book.errors[:MOST_ERRORS]]
        return done


MOST_ERRORS = 10


def _counts(checked: Checked, tricks: Counter[str]) -> Counter[str]:
    named = {"asked": checked.asked} | {end.value: count for end, count in checked.ends.items()}
    return Counter(named | {rule.value: count for rule, count in checked.broken.items()}) + tricks


def _told(what: str, entry: Entry | None, asking: Asking, havoc: Havoc) -> str:
    """All that is known of a request that something is wrong with."""
    if entry is None:
        return what
    seen = entry.seen
    met = [
        f"{span.card.what} of {span.part} from {span.from_s - seen.sent_s:+.2f} s to {span.to_s - seen.sent_s:+.2f} s"
        for span in havoc.spans
        if span.from_s <= seen.end_s and seen.sent_s - AFTERMATH_S <= span.to_s
    ]
    way = "by way of the wire" if entry.wire else "straight"
    body = asking.body_of(seen.id).decode(errors="replace")[:2000]
    return (
        f"{what}: {seen.id}, sent {way}: {seen.verdict}, status {seen.status}, after {seen.end_s - seen.sent_s:.3f} s; "
        f"meanwhile: {'; '.join(met) or 'nothing'} {body}"
    )


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


async def _progress(say: Say, part: Part, asking: Asking, havoc: Havoc) -> None:
    began = perf_counter()
    while True:
        await asyncio.sleep(SAY_EVERY_S)
        now_s = perf_counter() - began
        ended = ", ".join(f"{name} {count:,}" for name, count in sorted(asking.verdicts.items()))
        left_s = max(0.0, part.seconds - now_s)
        say(f"part {part.number}: {left_s:.0f} s left; faults over: {len(havoc.spans)} of {part.faults}; {ended}")


def _heart(made: Stack) -> list[int]:
    """Whose waiting for a processor makes an answer late: the router alone keeps deadlines, and the wire before it."""
    return [made.router.process.pid, *([made.wires[CLIENTS].process.pid] if made.wires else [])]


def _late(ledgers: list[Ledger]) -> int:
    """Requests that left the client itself late."""
    return sum(row.late_s > LATE_S for ledger in ledgers for row in ledger.rows)


async def _reformed(evil: Server) -> Counter[str]:
    """How often an evil worker was asked and answered by a trick; from now on it is honest."""
    try:
        told = json.loads(await asyncio.to_thread(get, f"{evil.url}/reform"))
    except OSError:
        return Counter()
    return Counter({"answers of evil workers": told["asked"], "tricks": told["tricks"]})


async def _settled(made: Stack) -> tuple[float, list[str]]:
    """Places still held and parts still lacking once everything is over; there should be none of either."""
    try:
        await made.until_whole(SETTLED_WITHIN_S)
    except StandError as error:
        return 0.0, [str(error)]
    return await left_over(made.held, SETTLED_WITHIN_S), []
