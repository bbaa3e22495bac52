"""What surrounds an engine in service, and what it costs: a process of its own, the worker's loop, a line before it.

The same weights in this process and in another one. They are stepped in turns, so that whatever else runs on the
machine meets all alike.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from loadtests.bench.batching.section import Section, Spent, Table, middle
from loadtests.bench.batching.subject import Subject
from loadtests.bench.batching.worker import START_S, Lent, answer, asking, turning
from loadtests.bench.machine import cpu_s
from loadtests.report.figure import Figure, number
from loadtests.report.progress import Say
from services.core.batcher import Batching
from services.worker.batching import EngineLoop
from services.worker.engine import Sequence
from services.worker.engine_wire import Torch
from services.worker.engines.torch.engine import TorchEngine
from services.worker.engines.torch.loading import load as load_engine
from services.worker.process import EngineProcess

SLOTS = 8
WORDS = 20
TURNS, STEPS = 5, 30
ALONE_TOKENS = 32
TIMES_ALONE = 5  # each round
WINDOW_S = 0.010
NEAR = 1.05
Alone = Callable[[str], Awaitable[None]]


@dataclass(slots=True)
class Places:
    """The same engine here and there."""

    here: TorchEngine
    there: EngineProcess
    loop: EngineLoop
    windowed: EngineLoop


@dataclass(slots=True)
class Steps:
    """What a step took, in turns."""

    here: list[Spent] = field(default_factory=list)
    there: list[Spent] = field(default_factory=list)


def measure(subject: Subject, rounds: int, say: Say) -> Section:
    return asyncio.run(_measured(subject, rounds, say))


async def _measured(subject: Subject, rounds: int, say: Say) -> Section:
    spec = subject.spec(slots=SLOTS, context_tokens=512)
    there = EngineProcess(Torch(spec), start_within_s=START_S)
    here = load_engine(spec)
    shared = Lent(there)
    try:
        await there.start()
        async with (
            turning(shared, slots=SLOTS) as loop,
            turning(shared, slots=SLOTS, batching=Batching.STATIC, window_s=WINDOW_S) as windowed,
        ):
            places = Places(here, there, loop, windowed)
            say("steps here and in another process")
            full, single = await _in_turns(places, SLOTS), await _in_turns(places, 1)
            say("a request alone")
            alone = await _alone(places, rounds * TIMES_ALONE)
    finally:
        await there.stop()
        here.close()
    return _section(subject, full, single, alone)


# Steps


async def _in_turns(places: Places, count: int) -> Steps:
    """Both kept at `count` sequences that write."""
    tokens = TURNS * STEPS + 2 * SLOTS + 64
    requests = [asking(f"{count}-{place}", WORDS, tokens) for place in range(count)]
    ours = [places.here.prepare(request) for request in requests]
    theirs = [await places.there.prepare(request) for request in requests]
    for mine, other in zip(ours, theirs, strict=True):
        places.here.admit(mine)
        places.there.admit(other)
    while any(sequence.unread_tokens for sequence in ours):
        places.here.step()
    while any(sequence.unread_tokens for sequence in theirs):
        await places.there.step()
    steps = Steps()
    for _ in range(TURNS):
        steps.here.append(_here(places))
        steps.there.append(await _there(places))
    for mine, other in zip(ours, theirs, strict=True):
        places.here.drop(mine)
        places.there.drop(other)
    places.there.rest()
    return steps


def _here(places: Places) -> Spent:
    """A step's mean over one turn."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        places.here.step()
    return Spent((time.perf_counter() - wall) / STEPS, (time.process_time() - cpu) / STEPS)


async def _there(places: Places) -> Spent:
    assert places.there.pid is not None
    other = places.there.pid
    wall, cpu = time.perf_counter(), time.process_time() + cpu_s(other)
    for _ in range(STEPS):
        await places.there.step()
    both = time.process_time() + cpu_s(other)
    return Spent((time.perf_counter() - wall) / STEPS, (both - cpu) / STEPS)


# A request alone


async def _alone(places: Places, times: int) -> dict[str, list[float]]:
    """Milliseconds of one short answer with nobody else about, by the way it takes."""
    ways: dict[str, Alone] = {
        "stepped by hand": lambda id: _by_hand(places.here, id),
        "stepped by hand, in another process": lambda id: _by_hand_there(places.there, id),
        "through the worker's loop": lambda id: _through(places.loop, id),
        "through the loop, static with a window of 10 ms": lambda id: _through(places.windowed, id),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(times + 1):
        for name, way in ways.items() if turn % 2 == 0 else reversed(ways.items()):
            began = time.perf_counter()
            await way("alone")
            if turn:  # the first one warms up
                taken[name].append((time.perf_counter() - began) * 1000)
    return taken


async def _by_hand(engine: TorchEngine, id: str) -> None:
    engine.admit(engine.prepare(asking(id, WORDS, ALONE_TOKENS)))
    while engine.running:
        engine.step()


async def _by_hand_there(host: EngineProcess, id: str) -> None:
    sequence: Sequence = await host.prepare(asking(id, WORDS, ALONE_TOKENS))
    host.admit(sequence)
    while host.running:
        await host.step()


async def _through(loop: EngineLoop, id: str) -> None:
    await answer(await loop.submit(asking(id, WORDS, ALONE_TOKENS)))


def _section(subject: Subject, full: Steps, single: Steps, alone: dict[str, list[float]]) -> Section:
    hand, there, looped, windowed = (statistics.median(taken) for taken in alone.values())
    more_ms = 1000 * (_median_s(full.there) - _median_s(full.here))
    return Section(
        f"What surrounds an engine: {subject.described}",
        f"Steps with {SLOTS} sequences and with one, in this process and in one of its own: medians of {TURNS} turns "
        f"of {STEPS} steps. Then a request of {ALONE_TOKENS} tokens, alone on an idle worker.",
        [
            Table(
                ("a step", "here, ms", "in its own process, ms", "times", "processor here, ms", "processor, both, ms"),
                [_step_row(f"of {SLOTS}", full), _step_row("of one", single)],
            ),
            Table(
                ("a request alone", "ms", "times"),
                [(name, middle(taken), number(statistics.median(taken) / hand)) for name, taken in alone.items()],
            ),
        ],
        [
            Figure("alone, through the loop over by hand in the same kind of process", looped / there, "times", NEAR,
                   at_least=False),
            Figure("alone, through the loop and a process over by hand here", looped / hand, "times",
                   at_least=False),
            Figure("alone, with a static window over without", windowed / looped, "times"),
            Figure("what the process adds to a step", more_ms, "ms"),
            Figure(f"tokens/s of {SLOTS}, in its own process", SLOTS / _median_s(full.there), "tokens/s",
                   note=f"{number(SLOTS / _median_s(full.here))} here"),
        ],
    )  # fmt: skip


def _step_row(name: str, steps: Steps) -> tuple[str, ...]:
    here, there = _median_s(steps.here), _median_s(steps.there)
    cpu = [1000 * statistics.median(each.cpu_s for each in several) for several in (steps.here, steps.there)]
    return (name, number(1000 * here), number(1000 * there), number(there / here), *map(number, cpu))


def _median_s(spent: list[Spent]) -> float:
    return statistics.median(each.wall_s for each in spent)
