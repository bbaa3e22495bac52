"""Plays the rows: an honest tenant at half the capacity, first alone, then beside each attack, on a fresh testbed.

The honest tenant has two kinds of clients, because an attack on connections affects them differently: pooled clients
use connections that were open before the attack, and newcomers open one for each request. The first second asks for
twice the capacity, so that the pool opens its connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

import msgspec
import psutil

from loadtests.cluster import cpu
from loadtests.cluster.processes import Process, StandError, python
from loadtests.cluster.stand import Shape, Stand, key_of, stand
from loadtests.cluster.usage import pinned
from loadtests.load import capacity
from loadtests.load.arrivals import Ask
from loadtests.load.asking import Asking
from loadtests.load.client import Client
from loadtests.load.figures import figures
from loadtests.load.ledger import Ledger
from loadtests.load.plan import Plan, Step, Tenant
from loadtests.paths import ROOT
from loadtests.report.console import why
from loadtests.report.progress import SAY_EVERY_S, Say
from loadtests.report.record import Record
from loadtests.runs.matrix.staging import spread
from loadtests.runs.siege.attackers import latest
from loadtests.runs.siege.attacks import BY_NAME, GUEST
from loadtests.runs.siege.judging import NEWCOMER, POOLED, UNDISTURBED, Row, clients_of

SHAPE = Shape()
LOAD = 0.5  # of the capacity
NEWCOMERS = 0.2  # of the load
DEADLINE_MS = 1000.0
TENANTS = (POOLED, NEWCOMER, GUEST)
CONNECTIONS = 64
SETTLE_S = 6.0  # before the attack: the pool opens its connections, and the backlog of the first second is answered
ENDED_WITHIN_S = 15.0  # the attackers start later than the honest client, by the start time of a process
STAND_S = 6.0  # estimated start of a testbed
LOOK_EVERY_S, COUNT_EVERY = 0.25, 4  # memory at each sample, descriptors at every fourth: listing 10,000 takes some ms
WORDS = {
    "shape": SHAPE, "load": LOAD, "deadline_ms": DEADLINE_MS, "newcomers": NEWCOMERS, "connections": CONNECTIONS,
}  # fmt: skip
"""Values of the page's template."""


@dataclass(frozen=True)
class Wanted:
    """The run that is wanted. `limit` bounds the attackers of each row."""

    rows: tuple[str, ...] = tuple(BY_NAME)
    seconds: float = 60.0
    limit: int = 10_000
    settle_s: float = SETTLE_S

    @property
    def row_s(self) -> float:
        return self.seconds + self.settle_s + STAND_S

    @property
    def takes_s(self) -> float:
        return (1 + len(self.rows)) * self.row_s


class Questions:
    """The usual requests; a newcomer's close their connection."""

    def __init__(self, url: str) -> None:
        self._asking = Asking(url, "completions")

    def bytes_of(self, ask: Ask, number: int) -> bytes:
        request = self._asking.bytes_of(ask, number)
        if ask.tenant.name != NEWCOMER:
            return request
        return request.replace(b"\r\n", b"\r\nconnection: close\r\n", 1)


def plan(per_s: float, seconds: float, settle_s: float = SETTLE_S) -> Plan:
    """Half of the capacity `per_s` for `seconds` after the settling time; only those seconds count."""
    tokens = spread(SHAPE.answer_tokens)
    rates = {POOLED: (1 - NEWCOMERS) * LOAD * per_s, NEWCOMER: NEWCOMERS * LOAD * per_s}
    tenants = tuple(
        Tenant(
            name, (Step(0, 2 * per_s if name == POOLED else 0), Step(1, rate)), answer_tokens=tokens,
            deadline_ms=DEADLINE_MS, key=key_of(name), connections=CONNECTIONS,
        )
        for name, rate in rates.items()
    )  # fmt: skip
    return Plan(settle_s + seconds, tenants, warmup_s=settle_s, cooldown_s=0)


async def play(wanted: Wanted, record: Record, say: Say) -> list[Row]:
    """All rows, the undisturbed one first, without those of the record. Raises StandError if a testbed fails."""
    if warned := await cpu.warning():
        say(warned)
    names = (UNDISTURBED, *wanted.rows)
    rows = {row.name: row for row in (msgspec.convert(each, Row) for each in record.rows)}
    cores = os.sched_getaffinity(0)
    first = {min(cores)}  # the router's alone; all other processes share the rest
    with pinned(cores - first or cores):
        for number, name in enumerate(names):
            if name in rows:
                say(f"{number + 1}/{len(names)} {name}: was finished before")
                continue
            row, left_s = Row(name), (len(names) - number) * wanted.row_s
            say(f"{number + 1}/{len(names)} {name}: {row.about} (all done in about {left_s / 60:.0f} min)")
            async with stand(SHAPE, TENANTS) as made:
                calm = rows.get(UNDISTURBED)
                row.per_s = calm.per_s if calm else (await capacity.measure(made)).per_s
                _pin(made, first)
                await play_row(row, made, plan(row.per_s, wanted.seconds, wanted.settle_s), wanted, say)
            say(row.fault or "done")
            rows[name] = row
            if not row.fault:
                record.add(asdict(row))
    return [rows[name] for name in names]


async def play_row(row: Row, made: Stand, load: Plan, wanted: Wanted, say: Say) -> None:
    """Play one row. A router that dies is recorded as the row's fault."""
    try:
        async with _besieged(row, made, wanted) as attackers, _watched(row, made, wanted):
            before = cpu.read(made)
            client = Client(load, made.url, requests=Questions(made.url), rest_s=load.seconds)

            def report(now_s: float, ledger: Ledger) -> None:
                if attackers is not None:
                    row.counts = latest(attackers.log.read_text(encoding="utf-8"))
                if int(now_s) % SAY_EVERY_S == 0 and now_s >= wanted.settle_s:
                    say(_progress(row, now_s - wanted.settle_s, wanted.seconds, ledger))

            ledger = await client.run(report)
            made.check()
            shares = figures(load, ledger).tenants
            row.clients, row.late = {name: clients_of(share) for name, share in shares.items()}, late(load, ledger)
            row.router_cpu = (cpu.read(made) - before).router
            if attackers is not None:
                await _ended(attackers)
                row.counts = latest(attackers.log.read_text(encoding="utf-8"))
                if not row.counts.opened:
                    raise StandError(f"no attacker could connect: {attackers.last_words()}")
    except (OSError, RuntimeError, ExceptionGroup) as error:
        row.fault = why(error)


def late(load: Plan, ledger: Ledger) -> float:
    """The share of requests sent late after settling; in the first second many wait for a connection of the pool."""
    counted = [row.late_s * 1000 > load.late_ms for row in ledger.rows if row.intended_s >= load.warmup_s]
    return sum(counted) / max(1, len(counted))


async def _ended(attackers: Process) -> None:
    """Wait until they have ended by themselves, at most ENDED_WITHIN_S; then stop them."""
    loop = asyncio.get_running_loop()
    end = loop.time() + ENDED_WITHIN_S
    while attackers.running and loop.time() < end:  # noqa: ASYNC110  the end of a process is no event of this loop
        await asyncio.sleep(LOOK_EVERY_S)
    await attackers.stop()


def _progress(row: Row, now_s: float, seconds: float, ledger: Ledger) -> str:
    counts = row.counts
    besieged = f"{counts.connected:,} attackers connected, {counts.cut:,} cut off, {counts.refused:,} refused; "
    return (
        f"{now_s:3.0f} of {seconds:g} s, {max(0.0, seconds - now_s):.0f} s left: {besieged if row.attack else ''}"
        f"router {row.memory_mb[-1] if row.memory_mb else 0:.0f} MB; honest {ledger.tries.total():,} tries, "
        f"{ledger.open:,} open"
    )


@asynccontextmanager
async def _besieged(row: Row, made: Stand, wanted: Wanted) -> AsyncIterator[Process | None]:
    """Starts the attackers, which wait for the settling and then last as long as the row."""
    if row.attack is None:
        yield None
        return
    port = made.url.rpartition(":")[2]
    command = python(
        "-m", "loadtests.runs.siege.attackers", row.attack.name, "--port", port, "--count", str(wanted.limit),
        "--wait-s", str(wanted.settle_s), "--seconds", str(wanted.seconds),
    )  # fmt: skip
    attackers = Process("attackers", command, {"PYTHONPATH": str(ROOT)}, made.folder)
    attackers.start()
    try:
        yield attackers
    finally:
        await attackers.stop()


@asynccontextmanager
async def _watched(row: Row, made: Stand, wanted: Wanted) -> AsyncIterator[None]:
    """Samples the router's memory and descriptors, from the end of the settling on."""
    assert made.router is not None
    watching = asyncio.create_task(_watch(row, made.router.process.pid, wanted.settle_s))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _watch(row: Row, pid: int, settle_s: float) -> None:
    await asyncio.sleep(settle_s)
    with contextlib.suppress(psutil.NoSuchProcess):
        router = psutil.Process(pid)
        while True:
            row.memory_mb.append(router.memory_info().rss / 1e6)
            if len(row.memory_mb) % COUNT_EVERY == 0:
                row.descriptors = max(row.descriptors, router.num_fds())
            await asyncio.sleep(LOOK_EVERY_S)


def _pin(made: Stand, core: Iterable[int]) -> None:
    """Pin every thread of the router, so that the attackers cost it their bytes and no processor time."""
    assert made.router is not None
    for thread in os.listdir(f"/proc/{made.router.process.pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), core)
