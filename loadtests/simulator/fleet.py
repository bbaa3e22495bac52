"""All workers: choice of a worker, free places, planned failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from loadtests.scenarios.model import Failure, SlotWorkers, WorkerGroup, Workers
from loadtests.simulator.job import Job
from loadtests.simulator.slot_workers import SlotWorker
from loadtests.simulator.step_workers import StepWorker
from loadtests.simulator.workers import Reports, Worker


class Fleet:
    """`free` is updated by `take` and `give_back`, and recounted after a failure or recovery."""

    __slots__ = ("_changed", "_lost", "free", "workers")

    def __init__(
        self,
        groups: tuple[Workers, ...],
        reports: Reports,
        seed: int,
        *,
        changed: Callable[[float], None],
        lost: Callable[[float, Job], None],
    ) -> None:
        """`changed` is called when a worker fails or recovers, `lost` for each job on a failed worker."""
        self._changed = changed
        self._lost = lost
        self.workers: list[Worker] = []
        for group in groups:
            for place in range(group.count):
                self.workers.append(_worker(group, reports, Random(f"{seed}/worker/{len(self.workers)}")))
                for failure in _failures(group, place):
                    self._plan(reports, self.workers[-1], failure)
        self.free = 0
        self._count()

    def _plan(self, reports: Reports, worker: Worker, failure: Failure) -> None:
        if failure.kind == "down":
            reports.schedule(failure.from_s, self._fail, worker)
            reports.schedule(failure.until_s, self._recover, worker)
        else:
            reports.schedule(failure.from_s, lambda now, worker: worker.slow(now, failure.factor), worker)
            reports.schedule(failure.until_s, lambda now, worker: worker.slow(now, 1.0), worker)

    @property
    def up(self) -> list[Worker]:
        return [worker for worker in self.workers if not worker.down]

    @property
    def slots(self) -> int:
        return sum(worker.slots for worker in self.up)

    @property
    def places(self) -> int:
        """Slots and lookahead of the workers that are up."""
        return sum(worker.places for worker in self.up)

    @property
    def inflight(self) -> int:
        return sum(worker.inflight for worker in self.workers)

    def take(self, tokens: int) -> Worker:
        """Take a place on the least loaded worker (tokens per slot); workers with a free slot come first."""
        worker = self.workers[0] if len(self.workers) == 1 else self._lightest()
        self.take_on(worker, tokens)
        return worker

    def take_on(self, worker: Worker, tokens: int) -> None:
        """Take a place on this worker."""
        worker.inflight += 1
        worker.outstanding += tokens
        self.free -= 1

    def _lightest(self) -> Worker:
        free = [worker for worker in self.workers if not worker.down and worker.inflight < worker.places]
        return min(free, key=lambda worker: (worker.inflight >= worker.slots, worker.outstanding / worker.slots))

    def give_back(self, worker: Worker, tokens: int) -> None:
        worker.inflight -= 1
        worker.outstanding -= tokens
        self.free += not worker.down

    def _count(self) -> None:
        self.free = sum(worker.places - worker.inflight for worker in self.up)

    def _fail(self, now: float, worker: Worker) -> None:
        worker.down = True
        self._count()
        self._changed(now)
        for job in worker.fail(now):
            self._lost(now, job)

    def _recover(self, now: float, worker: Worker) -> None:
        worker.down = False
        self._count()
        self._changed(now)

    def __repr__(self) -> str:
        return f"<Fleet of {len(self.workers)} workers, {self.free} of {self.places} places free>"


def _worker(group: Workers, reports: Reports, chance: Random) -> Worker:
    return SlotWorker(group, reports, chance) if isinstance(group, SlotWorkers) else StepWorker(group, reports)


def _failures(group: WorkerGroup, place: int) -> Iterator[Failure]:
    return (failure for failure in group.failures if failure.workers is None or place < failure.workers)
