"""More clients than slots at once: how soon the others are refused, and whether all that retry are served."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from loadtests.bench.governor.subject import Subject, governor
from loadtests.bench.governor.wire import receipt
from loadtests.report.figure import Figure, at_most
from services.governor.client import Client, Effort, Reply, SendFailed, connect

EVERY_S = 0.02
MAX_RETRIES = 50  # the default of the original's client
CLIENT_TIMEOUT_S = 120.0
PAYLOAD = b"hello world!"
ROWS = 16
COUNTED = ("heptamini_backend_inflight", "heptamini_executed_total", "heptamini_yielded_total")


@dataclass(frozen=True, slots=True)
class State:
    at_s: float
    inflight: int
    executed: int
    yielded: int


@dataclass(slots=True)
class Burst:
    """The results of a burst. `max_inflight`: the highest value of any reply or scrape."""

    clients: int
    cap: int
    stub_s: float
    seconds: float = 0.0
    done: int = 0
    yielded: int = 0
    max_inflight: int = 0
    max_yields: int = 0
    refused_within_s: float = 0.0
    states: list[State] = field(default_factory=list)

    @property
    def title(self) -> str:
        return f"{self.clients} clients, cap {self.cap}, jobs of {self.stub_s:g} s"


async def at_once(clients: int, stub_s: float) -> Burst:
    return await _burst(Burst(clients, 1, stub_s), retries=0)


async def coming_back(clients: int, stub_s: float, cap: int = 1) -> Burst:
    """Each client retries the same frame after the time that the reply asks for, with the next `seq`."""
    return await _burst(Burst(clients, cap, stub_s), retries=MAX_RETRIES)


async def _burst(burst: Burst, retries: int) -> Burst:
    """Runs a burst. All clients are connected before the first of them writes."""
    loop = asyncio.get_running_loop()
    effort = Effort(timeout_s=CLIENT_TIMEOUT_S, retries=retries, longest_wait_s=CLIENT_TIMEOUT_S)
    async with governor(cap=burst.cap, stub_ms=burst.stub_s * 1000) as subject:
        address = ("127.0.0.1", subject.port)
        clients = [
            await connect(address, job=f"J_{number}", effort=effort, show=_Replies(burst).add)
            for number in range(burst.clients)
        ]
        began = loop.time()
        watching = asyncio.create_task(_watched(subject, burst, began))
        await asyncio.gather(*(_send(client, burst, began) for client in clients))
        burst.seconds = loop.time() - began
        await asyncio.sleep(5 * EVERY_S)
        watching.cancel()
    return burst


class _Replies:
    def __init__(self, burst: Burst) -> None:
        self._burst = burst
        self._yields = 0

    def add(self, reply: Reply) -> None:
        burst = self._burst
        burst.max_inflight = max(burst.max_inflight, receipt(reply, "backend.inflight"))
        self._yields += reply["status"] == "yield"
        burst.max_yields = max(burst.max_yields, self._yields)


async def _send(client: Client, burst: Burst, began: float) -> None:
    try:
        reply = await client.send(PAYLOAD, chunk_bytes=8, content_type="text/plain")
        burst.done += reply["status"] == "done"
    except SendFailed:  # it was asked to retry more often than it does
        burst.refused_within_s = asyncio.get_running_loop().time() - began
        burst.yielded += 1
    client.close()


async def _watched(subject: Subject, burst: Burst, began: float) -> None:
    loop = asyncio.get_running_loop()
    while True:
        at_s = loop.time() - began
        state = State(at_s, *map(int, await subject.metric(*COUNTED)))
        burst.max_inflight = max(burst.max_inflight, state.inflight)
        burst.states.append(state)
        await asyncio.sleep(EVERY_S)


def figures(once: Burst, *others: Burst) -> Iterator[Figure]:
    note = f"{once.title}; the last refusal came after {once.refused_within_s * 1000:.0f} ms"
    yield Figure("executed, at once", once.done, "jobs", 1, note=note)
    yield Figure("yielded, at once", once.yielded, "clients", once.clients - 1)
    for burst in others:
        note = f"{burst.title}; {burst.seconds:.1f} s, the minimum is {burst.done * burst.stub_s / burst.cap:.1f} s"
        note += f"; no client was asked to retry more than {burst.max_yields} times"
        yield Figure(f"served of {burst.clients}, with retries", burst.done, "clients", burst.clients, note=note)
    all_of_them = (once, *others)
    beyond = max(burst.max_inflight - burst.cap for burst in all_of_them)
    scrapes = sum(len(burst.states) for burst in all_of_them)
    note = f"over every reply and {scrapes:,} scrapes"
    yield at_most("jobs beyond the cap at any time", max(0, beyond), 0, "jobs", note)


def timeline(states: Sequence[State], rows: int = ROWS) -> list[str]:
    changes = [states[0]] if states else []
    for state in states[1:]:
        last = changes[-1]
        if (state.inflight, state.executed, state.yielded) != (last.inflight, last.executed, last.yielded):
            changes.append(state)
    if len(changes) > rows:
        places = sorted({round(place * (len(changes) - 1) / (rows - 1)) for place in range(rows)})
        changes = [changes[place] for place in places]
    return [
        f"t={state.at_s:6.2f} s  inflight {state.inflight}  executed {state.executed:3}  yielded {state.yielded:5}  "
        f"{'#' * min(state.executed, 60)}".rstrip()
        for state in changes
    ]
