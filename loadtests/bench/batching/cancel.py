"""Requests that leave at random points: how soon another request has their slot, and what was computed in vain.

As in service, with the worker's loop and the engine in its own process. There is one request more than there are slots,
so that one always waits. Each leaves at a random point and returns under the same id; in the end all are answered, and
the answers are compared with those of a run without cancels.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtests.bench.batching.section import Section, numbers_table
from loadtests.bench.batching.worker import START_S, Watched, answer, asking, turning
from loadtests.load.figures import quantile_of
from loadtests.report.figure import Figure, at_most
from loadtests.report.progress import Say
from services.worker.batching import EngineLoop
from services.worker.engine import Sequence
from services.worker.engine_wire import Torch
from services.worker.job import Job
from services.worker.process import EngineProcess

if TYPE_CHECKING:
    from loadtests.bench.batching.subject import Subject

SLOTS = 8
WORDS, TOKENS = 40, 160
MAX_STEPS_BETWEEN = 3.0  # a request leaves within so many steps after the previous one did
LOOK_EVERY_S = 0.0005
MODULE = (sys.executable, "-m", "loadtests.bench.batching.counted")


@dataclass(slots=True)
class Seen:
    steps: list[int] = field(default_factory=list)
    """From the last step begun before it left to the first one that computes for the next request in its slot."""
    free_ms: list[float] = field(default_factory=list)
    at: Counter[str] = field(default_factory=Counter)
    left: list[tuple[Sequence, int]] = field(default_factory=list)
    """Each sequence with its number of tokens when it left."""
    step_ms: list[float] = field(default_factory=list)
    equal: int = 0

    @property
    def thrown_away(self) -> list[int]:
        """Tokens of steps that were running when they left."""
        return [sequence.completion_tokens - then for sequence, then in self.left]


def measure(subject: Subject, cancels: int, say: Say) -> Section:
    say(f"{cancels} cancels")
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "counts.json"
        seen = asyncio.run(_measured(subject, cancels, record))
        counts = json.loads(record.read_text(encoding="utf-8"))
    return _section(subject, cancels, seen, counts)


async def _measured(subject: Subject, cancels: int, record: Path) -> Seen:
    spec = subject.spec(slots=SLOTS, context_tokens=512)
    watched = Watched(EngineProcess(Torch(spec), start_within_s=START_S, command=(*MODULE, str(record))))
    ids = [f"leaver-{number}" for number in range(SLOTS + 1)]
    async with turning(watched, slots=SLOTS) as loop:
        jobs = {id: await _ask(loop, id) for id in ids}
        undisturbed = {id: await answer(job) for id, job in jobs.items()}
        jobs = {id: await _ask(loop, id) for id in ids}
        seen, chance = Seen(), random.Random(4)
        while seen.at.total() < cancels:
            await asyncio.sleep(chance.random() * MAX_STEPS_BETWEEN * (loop.pace.step_s or 0.01))
            for id in ids:
                if jobs[id].stream.ending is not None:  # answered before it could leave
                    jobs[id] = await _ask(loop, id)
            await _until(lambda: loop.running == SLOTS and loop.waiting == 1)
            seen.step_ms.append(1000 * (loop.pace.step_s or 0.0))
            id = chance.choice(ids)
            await _leave(loop, watched, jobs[id], seen)
            jobs[id] = await _ask(loop, id)
        seen.equal = sum([await answer(job) == undisturbed[id] for id, job in jobs.items()])
    return seen


async def _ask(loop: EngineLoop, id: str) -> Job:
    return await loop.submit(asking(id, WORDS, TOKENS))


async def _leave(loop: EngineLoop, watched: Watched, job: Job, seen: Seen) -> None:
    ran, started, admitted = job.started_at is not None, watched.started, len(watched.admitted)
    seen.at[_point(job)] += 1
    left_at = asyncio.get_running_loop().time()
    if not loop.cancel(job.id):
        raise AssertionError(f"{job.id} was not found to be cancelled")
    if not ran:
        return
    seen.left.append((job.sequence, job.sequence.completion_tokens))
    await _until(lambda: len(watched.admitted) > admitted)
    _, first_step, at = watched.admitted[admitted]
    seen.free_ms.append((at - left_at) * 1000)
    seen.steps.append(first_step - started)


def _point(job: Job) -> str:
    if job.started_at is None:
        return "waiting"
    return "reading its prompt" if job.sequence.unread_tokens else "writing"


async def _until(condition: Callable[[], bool]) -> None:
    """Wait at most a minute: each condition is met by a step."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(LOOK_EVERY_S)


def _section(subject: Subject, cancels: int, seen: Seen, counts: dict[str, Any]) -> Section:
    ran = len(seen.left)
    points = ", ".join(f"{count} {point}" for point, count in seen.at.most_common())
    thrown = seen.thrown_away
    in_vain = counts["tokens_after_drop"] + counts["rows_too_many"]
    step_p50 = quantile_of(seen.step_ms, 0.5)
    rows = [
        ("milliseconds until the next request has the slot", *_shown(seen.free_ms)),
        ("steps until the next request's first", *_shown(seen.steps)),
        ("tokens of the step that ran, thrown away", *_shown(thrown)),
    ]
    return Section(
        f"{cancels} cancels: {subject.described}",
        f"{SLOTS} slots, {SLOTS + 1} requests, the engine in its own process; left were {points}. "
        f"A step takes {step_p50:.1f} ms.",
        [
            at_most("steps until another request has the slot, max", max(seen.steps), 2, "steps"),
            at_most("tokens computed in steps begun after the cancel", in_vain, 0, "tokens",
                    f"counted in the engine, {counts['dropped']} drops"),
            at_most("tokens thrown away by one cancel, max", max(thrown), 1, "tokens",
                    f"{sum(thrown)} by {ran} that ran"),
            Figure("answers under a reused id that equal the undisturbed ones", seen.equal, "answers",
                   SLOTS + 1 if subject.exact else None, note=f"of {SLOTS + 1}; each id was used many times"),
            at_most("memory that was not freed", counts["left_in_memory"], 0, "share"),
        ],
        [numbers_table(("", "p50", "p99", "max"), rows)],
    )  # fmt: skip


def _shown(samples: list[float] | list[int]) -> tuple[str, ...]:
    return tuple(f"{quantile_of(samples, share):.3g}" for share in (0.5, 0.99, 1.0))
