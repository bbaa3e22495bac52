"""Runs every policy at every load with every seed, in parallel processes.

A run depends only on its scenario and seed, so the figures do not depend on the number of processes. The largest runs
start first, which shortens the whole.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.shared_memory import ShareableList
from operator import itemgetter
from typing import TypeVar

from loadtests.report.progress import by_share, progress
from loadtests.scenarios.arrivals import Closed, Trace
from loadtests.scenarios.model import PolicyChoice, Scenario
from loadtests.simulator.capacity import announced as announced_by
from loadtests.simulator.capacity import weights_of
from loadtests.simulator.engine import Progress
from loadtests.simulator.engine import run as simulate
from loadtests.simulator.policies.catalog import build
from loadtests.simulator.report import PolicyReport
from loadtests.simulator.results import loads
from services.cli.errors import LabError

LOOK_EVERY_S = 0.1
Moved = Callable[[float, int], None]
"""Called with the work done (the sum of `Run.size`) and the number of runs done."""
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Run:
    """One policy at one load with one seed."""

    scenario: Scenario
    choice: PolicyChoice
    load: float | None

    @property
    def size(self) -> float:
        """Simulated seconds times load, which is proportional to the run time."""
        return self.scenario.duration_s * sum(_asked(self.scenario))


Make = Callable[[Run, Progress | None], Found]
"""Makes one run."""


def _asked(scenario: Scenario) -> Iterator[float]:
    for group in scenario.tenants:
        arrivals = group.arrivals
        load = 1.0 if isinstance(arrivals, Closed) else arrivals.load or 1.0
        yield load
        for phase in () if isinstance(arrivals, Closed | Trace) else arrivals.phases:
            yield load * phase.times * (phase.until_s - phase.from_s) / scenario.duration_s


def plan(scenario: Scenario) -> list[Run]:
    return [
        Run((scenario if load is None else scenario.at_load(load)).with_seed(seed), choice, load)
        for load in loads(scenario)
        for seed in scenario.runs
        for choice in scenario.policies
    ]


def check(scenario: Scenario) -> None:
    """Make each policy once. Raises LabError for a wrong setting before any run starts."""
    weights, announced = weights_of(scenario.workers), announced_by(scenario.workers)
    for choice in scenario.policies:
        build(scenario, choice, seed=scenario.seed, weights=weights, announced=announced, tenant_weights={})


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def progress_lines(runs: Sequence[Run]) -> Iterator[Moved]:
    """Write progress every ten seconds."""
    whole = sum(run.size for run in runs)
    size, number = 0.0, 0

    def moved(now: float, done: int) -> None:
        nonlocal size, number
        size, number = now, done

    with progress("simulator", by_share(lambda: size / whole), far=lambda: f"{number} of {len(runs)} runs"):
        yield moved


def spread(runs: Sequence[Run], jobs: int, moved: Moved | None, make: Make[Found]) -> list[Found]:
    """Make all runs in `jobs` processes. Returns the results in the order of `runs`.

    Without `moved`, progress is written as lines. Raises LabError if a process dies.
    """
    if moved is None:
        with progress_lines(runs) as moved:
            return spread(runs, jobs, moved, make)
    order = sorted(range(len(runs)), key=lambda place: -runs[place].size)
    ordered = [runs[place] for place in order]
    if jobs == 1 or len(runs) == 1:
        found = list(_here(ordered, moved, make))
    else:
        found = _in_processes(ordered, min(jobs, len(runs)), moved, make)
    return [each for _, each in sorted(zip(order, found, strict=True), key=itemgetter(0))]


def execute(runs: Sequence[Run], jobs: int, moved: Moved | None = None) -> list[PolicyReport]:
    return spread(runs, jobs, moved, one)


def one(run: Run, progress: Progress | None = None) -> PolicyReport:
    return simulate(run.scenario, run.choice, load=run.load, progress=progress)


def _here(runs: Sequence[Run], moved: Moved, make: Make[Found]) -> Iterator[Found]:
    before = 0.0
    for number, run in enumerate(runs):

        def report(done: float, number: int = number, run: Run = run, before: float = before) -> None:
            moved(before + done * run.size, number)

        yield make(run, report)
        before += run.size
        moved(before, number + 1)


def _in_processes(runs: Sequence[Run], jobs: int, moved: Moved, make: Make[Found]) -> list[Found]:
    context = multiprocessing.get_context("spawn")  # a fork would copy the progress bar's thread
    shares = ShareableList([0.0] * len(runs))
    try:
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=_die_quietly) as pool:
            futures = [pool.submit(_there, make, run, shares, place) for place, run in enumerate(runs)]
            try:
                _follow(futures, lambda: sum(shares[place] * run.size for place, run in enumerate(runs)), moved)
                return [future.result() for future in futures]
            except BrokenProcessPool:
                raise LabError("A simulating process died: most likely it ran out of memory. Try --jobs 1.") from None
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for child in multiprocessing.active_children():
                    child.terminate()
                raise
    finally:
        shares.shm.close()
        shares.shm.unlink()


def _follow(futures: Sequence[Future[Found]], done: Callable[[], float], moved: Moved) -> None:
    """Wait until all are done. Raises the exception of the first that fails."""
    waiting: set[Future[Found]] = set(futures)
    while waiting:
        ready, waiting = wait(waiting, timeout=LOOK_EVERY_S, return_when=FIRST_EXCEPTION)
        moved(done(), len(futures) - len(waiting))
        for future in ready:
            future.result()


def _there(make: Make[Found], run: Run, shares: ShareableList[float], place: int) -> Found:
    """Runs in another process, and writes its progress into `shares[place]`."""

    def report(done: float) -> None:
        shares[place] = done

    try:
        found = make(run, report)
        report(1.0)
        return found
    finally:
        shares.shm.close()


def _die_quietly() -> None:
    """Ctrl-C reaches every process of the terminal; only the parent reports it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
