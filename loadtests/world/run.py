"""Many seeds: over several processes, kept in a file that a later run goes on with, added up, and told."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from loadtests.report import record
from loadtests.world.play import Result, play

SEEDS_OF_A_PROCESS = 200
"""After so many a process makes room for a fresh one."""
TOLD_EVERY_S = 60.0
"""Where nobody watches a terminal; there, every second."""


FIELDS = tuple(each.name for each in fields(Result))


@dataclass(slots=True)
class Played:
    """A seed's result, and the processor time that it took."""

    result: Result
    cpu_s: float


@dataclass(slots=True)
class Totals:
    """What many seeds came to. `broken`: the seeds that broke a promise."""

    seeds: int = 0
    with_faults: int = 0
    requests: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    broken: list[int] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, played: Played) -> None:
        """Count one more."""
        result = played.result
        self.seeds += 1
        self.with_faults += bool(result.faults)
        self.requests += result.requests
        self.virtual_s += result.virtual_s
        self.cpu_s += played.cpu_s
        self.counts.update(result.counts)
        if result.violations:
            self.broken.append(result.seed)

    def __str__(self) -> str:
        ends = ", ".join(f"{count:,} {name}" for name, count in sorted(self.counts.items()))
        return (
            f"{self.seeds:,} seeds ({self.with_faults:,} with faults), {self.requests:,} requests ({ends}), "
            f"{self.virtual_s:,.0f} virtual seconds in {self.cpu_s:,.1f} s of processor time: "
            f"{self.requests / max(self.cpu_s, 1e-9):,.0f} requests a second of one core; "
            f"{len(self.broken)} seeds broke a promise"
        )


class Record:
    """The results of seeds, in a file. Those of another commit or size are refused."""

    def __init__(self, path: Path, *, size: int, machine: str) -> None:
        """Raises OtherRun."""
        self._record = record.Record(path, {"size": size, "machine": machine})
        self.played = {row["seed"]: _read(row) for row in self._record.rows}

    def add(self, played: Played) -> None:
        """Keep one more."""
        result = played.result
        self._record.add({name: getattr(result, name) for name in FIELDS} | {"cpu_s": round(played.cpu_s, 4)})


def _read(row: dict[str, Any]) -> Played:
    cpu_s = row.pop("cpu_s")
    return Played(Result(**row | {"counts": Counter(row["counts"])}), cpu_s)


def timed(seed: int, size: int) -> Played:
    """Play one seed."""
    began = time.thread_time()
    result = play(seed, size=size)
    return Played(result, time.thread_time() - began)


def results(seeds: Iterable[int], size: int, jobs: int) -> Iterator[Played]:
    """Play seeds in so many processes, as they come to their end."""
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
    seeds: range, *, size: int, seconds: float, jobs: int, kept: Record | None, tell: Callable[[Result], None]
) -> Totals:
    """Play those that the record does not have, for so many seconds at most (0: all), and add up all of them."""
    totals = Totals()
    have = kept.played if kept is not None else {}
    for seed in seeds:
        if seed in have:
            totals.add(have[seed])
    began = told = time.perf_counter()
    until = began + seconds if seconds else float("inf")
    before = totals.seeds
    to_play = [seed for seed in seeds if seed not in have]
    for one in results(_until(until, to_play), size, jobs):
        totals.add(one)
        if kept is not None:
            kept.add(one)
        if one.result.violations:
            tell(one.result)
        now = time.perf_counter()
        if now - told >= (1.0 if sys.stderr.isatty() else TOLD_EVERY_S):
            told = now
            _progress(totals, now - began, totals.seeds - before, len(to_play))
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return totals


def _until(until: float, seeds: Iterable[int]) -> Iterator[int]:
    for seed in seeds:
        if time.perf_counter() >= until:
            return
        yield seed


def _progress(totals: Totals, spent_s: float, done: int, of: int) -> None:
    left_s = spent_s / done * (of - done)
    begin, end = ("\r", "") if sys.stderr.isatty() else ("", "\n")
    print(
        f"{begin}{totals.seeds:,} seeds, {totals.requests:,} requests, {len(totals.broken)} broken; all in "
        f"{left_s / 60:,.0f} min", end=end, file=sys.stderr, flush=True,
    )  # fmt: skip
