"""One part under load: a stack, open-loop clients, faults, and the checker.

After the last fault the part waits until the router holds nothing and misses no component. Then a light load has to be
served as if there had been no fault.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from time import perf_counter

from loadtests.cluster.making import CLIENTS, Shape
from loadtests.cluster.processes import StandError, get
from loadtests.cluster.settling import left_over
from loadtests.cluster.stack import Stack, stack
from loadtests.cluster.stand import Server
from loadtests.faults.evil.row import BOTH
from loadtests.load.client import Client
from loadtests.load.ledger import Ledger
from loadtests.report.progress import SAY_EVERY_S, Say
from loadtests.runs.beside import beside
from loadtests.runs.integrity import logs, schedule
from loadtests.runs.integrity.checker import AFTERMATH_S, UNWRITTEN_S, Checked, Checker, Entry, Worked, by_id
from loadtests.runs.integrity.injection import FaultInjector
from loadtests.runs.integrity.listener import Listener
from loadtests.runs.integrity.parts import Done, Kind, Part
from loadtests.runs.integrity.questions import Kept, Questions, asks, plan_of
from loadtests.runs.integrity.schedule import PlannedFault
from loadtests.stillness import Stillness

DEADLINE_MS = 2000.0
WIRED_SHARE = 0.3
WIRED_FROM, TAIL_FROM = 10_000_000, 20_000_000  # first request numbers, so that no nonce is used twice
TAIL_REQUESTS, TAIL_PER_S = 200, 40.0
LATE_S = 0.02
SETTLED_WITHIN_S = 35.0
"""A worker that was killed or frozen again and again is ejected for up to 30 s: docs/operations/workers.md."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The setup of a kind of part. `wired`: the share of clients with a wire of their own before the router."""

    cards: Callable[[int], Iterator[PlannedFault]]
    shape: Shape
    wired: float = 0.0
    alone: bool = True


PROFILES = {
    Kind.FAULTS: Profile(schedule.deal, Shape(), WIRED_SHARE, alone=False),
    Kind.KILLS: Profile(schedule.kills, Shape(wires=False)),
    Kind.NONCES: Profile(schedule.frozen_and_killed, Shape(wires=False, step_ms=8.0, evil=BOTH)),
}


class Asking:
    """The clients of a part. Some use the router directly, the others through a wire that fails too."""

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
        client = Client(plan, url, asks(plan, count), requests=requests, answer=Kept, listen=listener.record)
        self._clients.append(client)
        self._listeners.append(listener)
        return client, listener

    async def run(self) -> list[Ledger]:
        return list(await asyncio.gather(*(client.run() for client in self._clients)))

    async def once_more(self) -> Sequence[Entry]:
        client, listener = self._add(self._made.router.url, TAIL_REQUESTS, TAIL_PER_S, TAIL_FROM)
        await client.run()
        return listener.entries

    @property
    def entries(self) -> list[Entry]:
        return [entry for listener in self._listeners for entry in listener.entries]

    @property
    def unasked(self) -> int:
        return sum(client.unasked for client in self._clients)

    @property
    def verdicts(self) -> Counter[str]:
        return sum((listener.verdicts for listener in self._listeners), Counter())

    def body_of(self, id: str) -> bytes:
        return next((listener.bodies[id] for listener in self._listeners if id in listener.bodies), b"")


async def play(part: Part, say: Say) -> Done:
    """Play one part. Raises StandError if the stack cannot be set up, or a component does not come back."""
    profile, began = PROFILES[part.kind], perf_counter()
    async with stack(profile.shape) as made:
        still = Stillness(lambda: _heart(made))
        asking = Asking(made, part, profile.wired)
        injector = FaultInjector(
            made, profile.cards(part.seed), part.faults, part.seconds, Random(part.seed), profile.alone
        )
        for server in made.evil:
            server.process.start()
        async with beside(still.beat(), _progress(say, part, asking, injector)):
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(asking.run())
                group.create_task(injector.run())
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
            await server.process.stop()  # which flushes its log
        router_log = logs.read_router_log(made.router.process.log, injector.router_logged)
        pairs = (pair for worker in made.workers for pair in logs.received(worker.process.name, worker.process.log))
        worked = Worked(
            by_id(pairs), [worker.process.name for worker in made.workers], counted, retries,
            1 + len(injector.router_logged), perf_counter() - began,
        )  # fmt: skip
        checked = Checker(injector.troubles(), still.between, injector.kills()).check(
            asking.entries, router_log, worked=worked, unasked=asking.unasked, tail=[entry.seen for entry in tail],
            alone=part.kind is Kind.KILLS,
        )  # fmt: skip
        done = Done(part.number, part.kind.value, took_s=perf_counter() - began, still_s=still.late_s)
        done.counts = _counts(checked, tricks) + Counter(
            {"places held": round(left), "lacks": len(lacks), "errors": len(router_log.errors), "late": late}
        )
        done.counts["tail"] += len(tail)
        done.counts["asked"] -= len(tail)
        done.faults = Counter(f"{span.card.part}: {span.card.what}" for span in injector.spans)
        messages = (_message(what, entry, asking, injector) for what, _, entry in checked.kept)
        done.kept = [*messages, *lacks, *router_log.errors[:MAX_ERRORS]]
        return done


MAX_ERRORS = 10


def _counts(checked: Checked, tricks: Counter[str]) -> Counter[str]:
    named = {"asked": checked.asked} | {end.value: count for end, count in checked.ends.items()}
    return Counter(named | {rule.value: count for rule, count in checked.broken.items()}) + tricks


def _message(what: str, entry: Entry | None, asking: Asking, injector: FaultInjector) -> str:
    """A request with a breach, with its fate and the faults around it."""
    if entry is None:
        return what
    seen = entry.seen
    overlapping = [
        f"{span.card.what} of {span.part} from {span.from_s - seen.sent_s:+.2f} s to {span.to_s - seen.sent_s:+.2f} s"
        for span in injector.spans
        if span.from_s <= seen.end_s and seen.sent_s - AFTERMATH_S <= span.to_s
    ]
    way = "through the wire" if entry.wire else "directly"
    body = asking.body_of(seen.id).decode(errors="replace")[:2000]
    return (
        f"{what}: {seen.id}, sent {way}: {seen.verdict}, status {seen.status}, after {seen.end_s - seen.sent_s:.3f} s; "
        f"meanwhile: {'; '.join(overlapping) or 'nothing'} {body}"
    )


async def _progress(say: Say, part: Part, asking: Asking, injector: FaultInjector) -> None:
    began = perf_counter()
    while True:
        await asyncio.sleep(SAY_EVERY_S)
        now_s = perf_counter() - began
        ended = ", ".join(f"{name} {count:,}" for name, count in sorted(asking.verdicts.items()))
        left_s = max(0.0, part.seconds - now_s)
        say(f"part {part.number}: {left_s:.0f} s left; faults over: {len(injector.spans)} of {part.faults}; {ended}")


def _heart(made: Stack) -> list[int]:
    """The processes whose wait for a processor delays answers: the router, which keeps deadlines, and its wire."""
    return [made.router.process.pid, *([made.wires[CLIENTS].process.pid] if made.wires else [])]


def _late(ledgers: list[Ledger]) -> int:
    return sum(row.late_s > LATE_S for ledger in ledgers for row in ledger.rows)


async def _reformed(evil: Server) -> Counter[str]:
    """The counters of a byzantine worker: requests, and those answered by a trick. It is honest from then on."""
    try:
        counters = json.loads(await asyncio.to_thread(get, f"{evil.url}/reform"))
    except OSError:
        return Counter()
    return Counter({"answers of evil workers": counters["asked"], "tricks": counters["tricks"]})


async def _settled(made: Stack) -> tuple[float, list[str]]:
    """Slots still held and components still missing after the run; there should be none of either."""
    try:
        await made.until_whole(SETTLED_WITHIN_S)
    except StandError as error:
        return 0.0, [str(error)]
    return await left_over(made.held, SETTLED_WITHIN_S), []
