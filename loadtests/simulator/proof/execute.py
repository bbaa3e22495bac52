"""All runs that some lines need: each once, the biggest first, spread over the cores.

A case with one seed is a batch: its capacity is measured once, then every policy has its turn. Figures depend on case,
policy and seed alone, not on how many processes there are.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from loadtests.simulator.proof.cases import CHOICES, Case
from loadtests.simulator.proof.line import Runs
from loadtests.simulator.proof.observe import Seen, observe
from loadtests.simulator.runs import Run

Key = tuple[str, str, int]
Done = Callable[[float, int], None]
"""Is told the size of what has been done, and how many runs."""
STEPS = 0.1
"""How long a simulated second of the proof's continuous-batching worker takes, relative to one of its slots."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One case with one seed, and who is compared."""

    case: Case
    policies: tuple[str, ...]
    seed: int

    @property
    def size(self) -> float:
        """How long it takes, relative to others."""
        scenario = self.case.at(self.seed)
        each = Run(scenario, CHOICES[self.policies[0]], None).size
        return each * len(self.policies) * (STEPS if scenario.workers[0].kind == "steps" else 1.0)


def batches(cases: Iterable[Case], seeds: Sequence[int], policies: Sequence[str] = ()) -> list[Batch]:
    """With all policies of each case, or only with these."""
    found = [
        Batch(case, tuple(name for name in case.policies if not policies or name in policies), seed)
        for case in cases
        for seed in seeds
    ]
    return sorted((batch for batch in found if batch.policies), key=lambda batch: -batch.size)


def execute(wanted: Sequence[Batch], jobs: int, done: Done) -> Runs:
    """Make them all."""
    runs: dict[Key, Seen] = {}
    spent = 0.0
    for batch, seen in _here(wanted) if jobs == 1 else _in_processes(wanted, jobs):
        for policy, each in zip(batch.policies, seen, strict=True):
            runs[batch.case.name, policy, batch.seed] = each
        spent += batch.size
        done(spent, len(runs))
    return runs


def _run(batch: Batch) -> list[Seen]:
    return [observe(batch.case, policy, batch.seed) for policy in batch.policies]


def _here(wanted: Sequence[Batch]) -> Iterator[tuple[Batch, list[Seen]]]:
    for batch in wanted:
        yield batch, _run(batch)


def _in_processes(wanted: Sequence[Batch], jobs: int) -> Iterator[tuple[Batch, list[Seen]]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = {pool.submit(_run, batch): batch for batch in wanted}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise
