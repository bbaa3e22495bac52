"""Weir beside other gateways: each on one core before the same two stubs, which share the other core with the client.

Every round measures each gateway once, and each round begins with another one; the figures are medians of the rounds. A
gateway that is not installed is installed first (`loadtests/runs/matrix/environments.py`), or left out if that fails.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec

from loadtests.bench.router import RATE, latency
from loadtests.bench.stand import CONNECTIONS, FULL, HELD, HOLD_S, Workers, all_different, chat, router_before
from loadtests.bench.stub import stub
from loadtests.cluster.processes import Process, free_ports, until_ready
from loadtests.cluster.usage import cores, pinned
from loadtests.load.closed import closed_loop, hold
from loadtests.report.figure import Figure, at_least, at_most
from loadtests.report.page import figures_table
from loadtests.report.progress import Say
from loadtests.report.result import Result
from loadtests.runs.matrix import environments
from loadtests.runs.matrix.subjects import SUBJECTS, Subject, versions
from services import compiled

QUICK: Mapping[str, object] = {"seconds": 0.5, "rounds": 1}
WEIR = "weir"
OTHERS = ("haproxy", "sglang-router", "vllm-router")
SLOTS = 1000
"""Of each stub: more than there are connections, so that no gateway queues or rejects."""
LIMITS = {
    "SLOTS": SLOTS,
    "ALL_SLOTS": 2 * SLOTS,
    "QUEUE_SIZE": SLOTS,
    "QUEUE_MS": 10_000,
    "LONGEST_S": 30,
}
REFUSALS_TO_ANSWERS = 2.0
PAGE = """\
Every gateway forwards OpenAI chat completions of 64 tokens to two stubs that answer at once. A gateway has one core;
the client and the stubs share the other. {connections} connections send again as soon as they are answered. Streams
are of 200 chunks, one a millisecond, so that {connections} streams offer 32,000 chunks a second. Added latency is that
of the gateway less that of a stub alone, at {rate:g} requests a second (Poisson arrivals, counted from the intended
time). Refusals: two requests hold the only slot and the only place in the queue, and all others are refused; no two in
a row on one connection are alike. Every figure is the median of {rounds} rounds of {seconds:g} s, and its note the
least and the most; each round measures every gateway, in another order.

Weir's code: {code}. Others: {versions}."""


class Options(msgspec.Struct, frozen=True):
    seconds: Annotated[float, msgspec.Meta(ge=0.2, le=60, description="duration of each load")] = 4.0
    rounds: Annotated[int, msgspec.Meta(ge=1, le=20, description="rounds; the figures are medians")] = 5


@dataclass(slots=True)
class Seen:
    """One value per round."""

    answers: list[float] = field(default_factory=list)
    chunks: list[float] = field(default_factory=list)
    added_p50_ms: list[float] = field(default_factory=list)
    added_p99_ms: list[float] = field(default_factory=list)


async def measure(options: Options, say: Say) -> Result:
    for name in OTHERS:
        if package := _subject(name).package:
            environments.make(package, say)
    names = [WEIR, *(name for name in OTHERS if not _subject(name).missing())]
    seen = {name: Seen() for name in names}
    refusals: list[float] = []
    with pinned(cores()[1]):
        async with stub() as one, stub() as two, _standing(names, (one, two)) as ports:
            for number in range(options.rounds):
                say(f"round {number + 1} of {options.rounds}")
                first = number % len(names)
                for name in names[first:] + names[:first]:
                    await _measure(seen[name], ports[name], one, options.seconds)
                refusals.append(await _refusals(one, options.seconds))
    found = figures(seen, refusals)
    about = PAGE.format(
        connections=CONNECTIONS,
        rate=RATE,
        rounds=options.rounds,
        seconds=options.seconds,
        code="compiled" if compiled.in_use() else "Python",
        versions=versions(),
    )
    return Result("Beside other gateways", {"gateways": found}, [about, figures_table(found)])


@asynccontextmanager
async def _standing(names: Sequence[str], stubs: Sequence[int]) -> AsyncIterator[dict[str, int]]:
    """All gateways, each on the same core. Yields their ports by name."""
    async with AsyncExitStack() as stack:
        ports = {}
        for name in names:
            if name == WEIR:
                made = await stack.enter_async_context(
                    router_before(stubs[0], workers=Workers(slots=SLOTS, also=tuple(stubs[1:])))
                )
                ports[name] = made.port
            else:
                ports[name] = await stack.enter_async_context(_other(_subject(name), stubs))
        yield ports


@asynccontextmanager
async def _other(subject: Subject, stubs: Sequence[int]) -> AsyncIterator[int]:
    port, other_port = free_ports(2)
    values = {name: str(value) for name, value in LIMITS.items()}
    values |= {"PORT": str(port), "HEALTH_PORT": str(other_port), "METRICS_PORT": str(other_port)}
    values |= {f"WORKER_{number}": f"http://127.0.0.1:{each}" for number, each in enumerate(stubs)}
    program = subject.program() if subject.program else None
    if program is None or subject.build is None:
        raise RuntimeError(subject.missing())
    with tempfile.TemporaryDirectory(prefix="weir-", ignore_cleanup_errors=True) as folder:
        command = subject.build(program, values, Path(folder))
        process = Process(subject.name, command.line, command.env or {}, Path(folder), cores()[0])
        process.start()
        try:
            await until_ready(process, command.ready_url)
            yield port
        finally:
            await process.stop()


async def _measure(seen: Seen, port: int, stub_port: int, seconds: float) -> None:
    busy = await closed_loop(port, chat(port), CONNECTIONS, seconds)
    streams = await closed_loop(port, chat(port, stream=True), CONNECTIONS, seconds)
    busy.only(200)
    streams.only(200)
    alone, through = await latency(stub_port, seconds), await latency(port, seconds)
    seen.answers.append(busy.per_second)
    seen.chunks.append(streams.events / streams.wall_s)
    seen.added_p50_ms.append(through.p50 - alone.p50)
    seen.added_p99_ms.append(through.p99 - alone.p99)


async def _refusals(stub_port: int, seconds: float) -> float:
    async with router_before(stub_port, FULL) as made:
        held = await hold(made.port, [chat(made.port, "hang")] * HELD, HOLD_S)
        refused = await closed_loop(made.port, all_different(made.port), CONNECTIONS, seconds)
        refused.only(429)
        for holder in held:
            holder.transport.close()
        return refused.per_second


def figures(seen: Mapping[str, Seen], refusals: Sequence[float]) -> list[Figure]:
    """Weir's, with targets from the others' in the same run, and all of the others'."""
    others = {name: each for name, each in seen.items() if name != WEIR}
    routers = [each for name, each in others.items() if name != "haproxy"]
    weir, rival = seen[WEIR], others.get("sglang-router")
    return [
        _wanted("answers", weir.answers, "requests/s", max((median(each.answers) for each in routers), default=None)),
        _wanted("refusals", refusals, "requests/s", REFUSALS_TO_ANSWERS * median(rival.answers) if rival else None),
        _wanted("streamed chunks", weir.chunks, "chunks/s", median(rival.chunks) if rival else None),
        _wanted("added p50", weir.added_p50_ms, "ms", median(rival.added_p50_ms) if rival else None, maximum=True),
        _wanted("added p99", weir.added_p99_ms, "ms", median(rival.added_p99_ms) if rival else None, maximum=True),
        *(figure for name, each in others.items() for figure in _recorded(name, each)),
    ]


def _recorded(name: str, seen: Seen) -> Iterator[Figure]:
    yield _wanted(f"{name}: answers", seen.answers, "requests/s")
    yield _wanted(f"{name}: streamed chunks", seen.chunks, "chunks/s")
    yield _wanted(f"{name}: added p50", seen.added_p50_ms, "ms")
    yield _wanted(f"{name}: added p99", seen.added_p99_ms, "ms")


def _wanted(
    what: str, values: Sequence[float], unit: str, target: float | None = None, *, maximum: bool = False
) -> Figure:
    note = f"{min(values):,.4g} to {max(values):,.4g}"
    if target is None:
        return Figure(what, median(values), unit, note=note)
    return (at_most if maximum else at_least)(what, median(values), target, unit, note)


def _subject(name: str) -> Subject:
    return next(each for each in SUBJECTS if each.name == name)
