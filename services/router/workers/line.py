"""The workers of a model, sorted by availability, so that a choice looks only at those with room."""

from __future__ import annotations

from collections.abc import Sequence

from services.router.parsing.fields import Servers
from services.router.workers.worker import AHEAD, DOWN, FREE, Availability, Worker


class IndexedSet:
    """An indexed set: adding, removing and drawing at random take constant time."""

    __slots__ = ("_at", "workers")

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self._at: dict[Worker, int] = {}

    def add(self, worker: Worker) -> None:
        self._at[worker] = len(self.workers)
        self.workers.append(worker)

    def discard(self, worker: Worker) -> None:
        """Remove a worker, if it is in the set; the last one takes its index."""
        place = self._at.pop(worker, None)
        if place is None:
            return
        last = self.workers.pop()
        if last is not worker:
            self.workers[place] = last
            self._at[last] = place


class CandidateSet:
    """The workers of one model, or of several models with the same workers, by availability.

    `bounded`: at least one live worker has reported its memory. `servers`: what kinds there are, live or not.
    """

    __slots__ = ("ahead", "bounded", "free", "largest_kv_tokens", "live", "members", "servers")

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.members = len(workers)
        self.servers = _servers(workers)
        self.free = IndexedSet()
        self.ahead = IndexedSet()
        self.live: set[Worker] = set()
        self.bounded = False
        self.largest_kv_tokens: int | None = None
        for worker in workers:
            self._join(worker)
        self.measure()

    def _join(self, worker: Worker) -> None:
        if worker.availability is not DOWN:
            self.live.add(worker)
        if worker.availability is FREE:
            self.free.add(worker)
        elif worker.availability is AHEAD:
            self.ahead.add(worker)

    def move(self, worker: Worker, current_availability: Availability) -> None:
        """Move a worker from its old availability to the current one."""
        (self.free if worker.availability is FREE else self.ahead).discard(worker)
        if current_availability is FREE:
            self.free.add(worker)
        elif current_availability is AHEAD:
            self.ahead.add(worker)
        if current_availability is DOWN:
            self.live.discard(worker)
        else:
            self.live.add(worker)

    def measure(self) -> None:
        """Update the memory sizes of the live workers."""
        sizes = [worker.kv_tokens for worker in self.live]
        known = [size for size in sizes if size is not None]
        self.bounded = bool(known)
        self.largest_kv_tokens = max(known) if known and len(known) == len(sizes) else None

    def needed(self, asked_tokens: int, kv_tokens: int) -> int:
        """The memory to require of a worker: 0 for a request above every worker's memory, which the engine refuses."""
        largest = self.largest_kv_tokens
        return 0 if largest is not None and asked_tokens > largest else kv_tokens

    def __repr__(self) -> str:
        free, ahead = len(self.free.workers), len(self.ahead.workers)
        return f"<CandidateSet {free} with a free slot, {ahead} with a look-ahead place, of {len(self.live)}>"


def _servers(workers: Sequence[Worker]) -> Servers:
    lists = [frozenset(worker.spec.allow) for worker in workers if worker.kind == "openai"]
    return Servers(len(lists) < len(workers), frozenset.intersection(*lists) if lists else None)
