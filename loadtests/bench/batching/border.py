"""The cost of what surrounds an engine in service: its own process, and the worker's loop."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from loadtests.bench.batching.section import Section, middle, numbers_table
from loadtests.bench.batching.subject import Subject
from loadtests.bench.batching.worker import START_S, answer, asking, turning
from loadtests.bench.engine_process import Compared, in_turns
from loadtests.report.figure import Figure, at_most, number
from loadtests.report.progress import Say
from services.worker.batching import EngineLoop
from services.worker.engine import Engine
from services.worker.engine_wire import Torch
from services.worker.engines.torch.loading import load as load_engine
from services.worker.process import EngineProcess

SLOTS = 8
WORDS = 20
TURNS, STEPS = 5, 30
ALONE_TOKENS = 32
TIMES_ALONE = 5  # each round
NEAR = 1.05
HAND, THERE, LOOP = "stepped by hand", "stepped by hand, in another process", "through the worker's loop"


def measure(subject: Subject, rounds: int, say: Say) -> Section:
    return asyncio.run(_measured(subject, rounds, say))


async def _measured(subject: Subject, rounds: int, say: Say) -> Section:
    spec = subject.spec(slots=SLOTS, context_tokens=512)
    here, there = load_engine(spec), EngineProcess(Torch(spec), start_within_s=START_S)
    async with turning(there, slots=SLOTS) as loop:
        say("steps here and in another process")
        full, single = await _compared(here, there, SLOTS), await _compared(here, there, 1)
        say("a request alone")
        alone = await _alone(here, there, loop, rounds * TIMES_ALONE)
    here.close()
    return _section(subject, full, single, alone)


async def _compared(here: Engine, there: EngineProcess, count: int) -> Compared:
    tokens = TURNS * STEPS + 2 * SLOTS + 64
    requests = [asking(f"{count}-{place}", WORDS, tokens) for place in range(count)]
    return await in_turns(here, there, requests, turns=TURNS, steps=STEPS)


async def _alone(here: Engine, there: EngineProcess, loop: EngineLoop, times: int) -> dict[str, list[float]]:
    """Milliseconds of one short answer on an idle engine, by the way it takes."""
    ways: dict[str, Callable[[], Awaitable[None]]] = {
        HAND: lambda: _by_hand(here), THERE: lambda: _by_hand_there(there), LOOP: lambda: _through(loop),
    }  # fmt: skip
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(times + 1):
        for name, way in ways.items() if turn % 2 == 0 else reversed(ways.items()):
            began = time.perf_counter()
            await way()
            if turn:  # the first turn is a warm-up
                taken[name].append((time.perf_counter() - began) * 1000)
    return taken


async def _by_hand(engine: Engine) -> None:
    engine.admit(engine.prepare(asking("alone", WORDS, ALONE_TOKENS)))
    while engine.running:
        engine.step()


async def _by_hand_there(engine: EngineProcess) -> None:
    engine.admit(await engine.prepare(asking("alone", WORDS, ALONE_TOKENS)))
    while engine.running:
        await engine.step()


async def _through(loop: EngineLoop) -> None:
    await answer(await loop.submit(asking("alone", WORDS, ALONE_TOKENS)))


def _section(subject: Subject, full: Compared, single: Compared, alone: dict[str, list[float]]) -> Section:
    ms = {name: statistics.median(taken) for name, taken in alone.items()}
    of_steps = ("a step", "here, ms", "in its own process, ms", "times", "processor here, ms", "processor, both, ms")
    more_ms = 1000 * (full.there.wall_s - full.here.wall_s)
    return Section(
        f"What surrounds an engine: {subject.described}",
        f"Steps with {SLOTS} sequences and with one, in this process and in one of its own: medians of {TURNS} turns "
        f"of {STEPS} steps. Then a request of {ALONE_TOKENS} tokens, alone on an idle worker.",
        [
            at_most("alone, through the loop over by hand in the same kind of process", ms[LOOP] / ms[THERE], NEAR,
                    "times"),
            Figure("alone, through the loop and a process over by hand here", ms[LOOP] / ms[HAND], "times"),
            Figure("cost of the process, a step", more_ms, "ms"),
            Figure(f"tokens/s of {SLOTS}, in its own process", SLOTS / full.there.wall_s, "tokens/s",
                   note=f"{number(SLOTS / full.here.wall_s)} here"),
        ],
        [
            numbers_table(of_steps, [_step_row(f"of {SLOTS}", full), _step_row("of one", single)]),
            numbers_table(
                ("a request alone", "ms", "times"),
                [(name, middle(taken), number(ms[name] / ms[HAND])) for name, taken in alone.items()],
            ),
        ],
    )  # fmt: skip


def _step_row(name: str, step: Compared) -> tuple[str, ...]:
    here, there = step.here, step.there
    values = (here.wall_s, there.wall_s, here.cpu_s, there.cpu_s + there.child_s)
    here_ms, there_ms, *cpu_ms = (1000 * value for value in values)
    return (name, *map(number, (here_ms, there_ms, there_ms / here_ms, *cpu_ms)))
