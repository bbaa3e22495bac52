"""More clients than slots, all at once: who is refused, how soon, and whether everybody is served who comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from loadtests.bench.governor.subject import Subject, governor
from loadtests.bench.governor.wire import receipts, upload
from loadtests.report.figure import Figure

EVERY_S = 0.02
MOST_RETRIES = 50  # what the original's client has by default
ROWS = 16


@dataclass(frozen=True, slots=True)
class State:
    """What /metrics said, so long after the clients were let go."""

    at_s: float
    inflight: int
    executed: int
    yielded: int


@dataclass(slots=True)
class Burst:
    """What came of it. `most_inflight` is the most that any reply or any scrape ever told."""

    clients: int
    cap: int
    stub_s: float
    seconds: float = 0.0
    done: int = 0
    yielded: int = 0
    most_inflight: int = 0
    most_yields: int = 0
    refused_within_s: float = 0.0
    states: list[State] = field(default_factory=list)

    @property
    def told(self) -> str:
        return f"{self.clients} clients, cap {self.cap}, jobs of {self.stub_s:g} s"


async def at_once(clients: int, stub_s: float) -> Burst:
    """Each client asks once, and takes no for an answer."""
    return await _burst(Burst(clients, 1, stub_s), retries=0)


async def coming_back(clients: int, stub_s: float, cap: int = 1) -> Burst:
    """Each does as the original's client does: it sends the same frame again when it was told to, with the next seq."""
    return await _burst(Burst(clients, cap, stub_s), retries=MOST_RETRIES)


async def _burst(burst: Burst, retries: int) -> Burst:
    loop = asyncio.get_running_loop()
    async with governor(cap=burst.cap, stub_ms=burst.stub_s * 1000) as subject:
        lines = [await asyncio.open_connection("127.0.0.1", subject.port) for _ in range(burst.clients)]
        began = loop.time()
        watching = asyncio.create_task(_watched(subject, burst, began))
        await asyncio.gather(*(_Client(burst, number, retries, began).send(*line) for number, line in enumerate(lines)))
        burst.seconds = loop.time() - began
        await asyncio.sleep(5 * EVERY_S)
        watching.cancel()
        for _, writer in lines:
            writer.close()
    return burst


class _Client:
    def __init__(self, burst: Burst, number: int, retries: int, began: float) -> None:
        self._burst = burst
        self._frames = upload(b"hello world!", job=f"J_{number}", chunk_bytes=8)
        self._retries = retries
        self._began = began

    async def send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        burst, seq, yields, at = self._burst, 0, 0, 0
        while at < len(self._frames):
            seq += 1
            fields = json.loads(self._frames[at])
            writer.write(json.dumps({**fields, "seq": seq}).encode() + b"\n")
            status, hint_ms = await self._answer(reader)
            while status == "ok" and at == len(self._frames) - 1:  # only that the job still runs
                status, hint_ms = await self._answer(reader)
            if status == "done":
                burst.done += 1
            elif status == "yield":
                yields += 1
                burst.most_yields = max(burst.most_yields, yields)
                if yields > self._retries:
                    burst.refused_within_s = asyncio.get_running_loop().time() - self._began
                    burst.yielded += 1
                    return
                await asyncio.sleep(hint_ms / 1000)
                continue
            at += 1

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[str, int]:
        reply = json.loads(await reader.readline())
        self._burst.most_inflight = max(self._burst.most_inflight, receipts(reply)["backend.inflight"])
        return reply["status"], reply.get("retry_hint_ms", 0)


async def _watched(subject: Subject, burst: Burst, began: float) -> None:
    loop = asyncio.get_running_loop()
    while True:
        at_s = loop.time() - began
        told = await asyncio.to_thread(subject.scrape)
        names = ("heptamini_backend_inflight", "heptamini_executed_total", "heptamini_yielded_total")
        state = State(at_s, *(int(told[name]) for name in names))
        burst.most_inflight = max(burst.most_inflight, state.inflight)
        burst.states.append(state)
        await asyncio.sleep(EVERY_S)


def figures(once: Burst, *others: Burst) -> Iterator[Figure]:
    note = f"{once.told}; the last of them heard of it after {once.refused_within_s * 1000:.0f} ms"
    yield Figure("executed, at once", once.done, "jobs", 1, note=note)
    yield Figure("yielded, at once", once.yielded, "clients", once.clients - 1)
    for burst in others:
        note = f"{burst.told}; {burst.seconds:.1f} s, {burst.done * burst.stub_s / burst.cap:.1f} s is the floor"
        note += f"; nobody was told to come back more than {burst.most_yields} times"
        yield Figure(f"served of {burst.clients}, coming back", burst.done, "clients", burst.clients, note=note)
    all_of_them = (once, *others)
    most = max(burst.most_inflight - burst.cap for burst in all_of_them)
    scrapes = sum(len(burst.states) for burst in all_of_them)
    note = f"by every reply and {scrapes:,} scrapes"
    yield Figure("jobs that ran beyond the cap, ever", max(0, most), "jobs", 0, at_least=False, note=note)


def timeline(states: Sequence[State], rows: int = ROWS) -> list[str]:
    """The changes, as text; evenly thinned out where there are many."""
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
