"""Many seeds over several processes, with results in a file that a later run continues."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import islice, takewhile
from math import inf
from pathlib import Path

from loadtests.report import record
from loadtests.report.progress import by_share, progress
from loadtests.world.play import Result, play

SEEDS_OF_A_PROCESS = 200
"""A process is replaced after this many seeds."""
FIELDS = tuple(each.name for each in fields(Result))


@dataclass(slots=True)
class Totals:
    """Sums over many seeds. `broken`: seeds with violations."""

    seeds: int = 0
    with_faults: int = 0
    requests: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    broken: list[int] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.with_faults += bool(result.faults)
        self.requests += result.requests
        self.virtual_s += result.virtual_s
        self.cpu_s += result.cpu_s
        self.counts.update(result.counts)
        if result.violations:
            self.broken.append(result.seed)

    def briefly(self) -> str:
        """The progress as one line."""
        return f"{self.seeds:,} seeds, {self.requests:,} requests, {len(self.broken)} broken"

    def __str__(self) -> str:
        ends = ", ".join(f"{count:,} {name}" for name, count in sorted(self.counts.items()))
        return (
            f"{self.seeds:,} seeds ({self.with_faults:,} with faults), {self.requests:,} requests ({ends}), "
            f"{self.virtual_s:,.0f} virtual seconds in {self.cpu_s:,.1f} s of processor time: "
            f"{self.requests / max(self.cpu_s, 1e-9):,.0f} requests a second of one core; "
            f"{len(self.broken)} seeds broke a promise"
        )


class Record:
    """Results of seeds in a file of the same commit and size."""

    def __init__(self, path: Path, *, size: int, machine: str) -> None:
        """Raises OtherRun for a file of another commit or size."""
        self._record = record.Record(path, {"size": size, "machine": machine})
        rows = (Result(**row | {"counts": Counter(row["counts"])}) for row in self._record.rows)
        self.played = {result.seed: result for result in rows}

    def add(self, result: Result) -> None:
        self._record.add({name: getattr(result, name) for name in FIELDS})


def timed(seed: int, size: int) -> Result:
    """Play one seed and measure its processor time."""
    began = time.thread_time()
    result = play(seed, size=size)
    result.cpu_s = round(time.thread_time() - began, 4)
    return result


def results(seeds: Iterable[int], size: int, jobs: int) -> Iterator[Result]:
    """Play seeds in `jobs` processes, in order of completion."""
    one = partial(timed, size=size)
    if jobs == 1:
        yield from map(one, seeds)
        return
    left = iter(seeds)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, max_tasks_per_child=SEEDS_OF_A_PROCESS) as pool:
        waiting = {pool.submit(one, seed) for seed in islice(left, 2 * jobs)}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            waiting |= {pool.submit(one, seed) for seed in islice(left, len(done))}
            for future in done:
                yield future.result()


def many(
    seeds: range, *, size: int, seconds: float, jobs: int, kept: Record | None, report: Callable[[Result], None]
) -> Totals:
    """Play the seeds that the record lacks for at most `seconds` (0: all), and sum up all."""
    totals = Totals()
    have = kept.played if kept is not None else {}
    for seed in seeds:
        if seed in have:
            totals.add(have[seed])
    began = time.perf_counter()
    to_play = [seed for seed in seeds if seed not in have]
    in_time = takewhile(lambda _: not seconds or time.perf_counter() < began + seconds, to_play)
    before = totals.seeds
    all_of_them = by_share(lambda: (totals.seeds - before) / len(to_play))
    with progress("world", lambda taken_s: min(all_of_them(taken_s), seconds or inf), far=totals.briefly):
        for result in results(in_time, size, jobs):
            totals.add(result)
            if kept is not None:
                kept.add(result)
            if result.violations:
                report(result)
    return totals
