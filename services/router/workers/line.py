"""Those who serve one model, sorted by what they have to offer, so that a choice looks only at those with a place."""

from __future__ import annotations

from collections.abc import Sequence

from services.router.workers.worker import AHEAD, DOWN, FREE, Availability, Worker


class Bag:
    """A set that can be indexed: adding, taking out and drawing at random cost the same whatever its size."""

    __slots__ = ("_at", "workers")

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self._at: dict[Worker, int] = {}

    def add(self, worker: Worker) -> None:
        """One more."""
        self._at[worker] = len(self.workers)
        self.workers.append(worker)

    def discard(self, worker: Worker) -> None:
        """One less: the last one moves into its place."""
        place = self._at.pop(worker, None)
        if place is None:
            return
        last = self.workers.pop()
        if last is not worker:
            self.workers[place] = last
            self._at[last] = place


class Line:
    """Those who serve one model, or several that the same workers serve, each where it stands.

    `bounded`: at least one that is alive has announced its memory. `allowed`: fields of a client's own that each of
    them may get, alive or not; None where they are all Weir workers, which get none.
    """

    __slots__ = ("ahead", "allowed", "bounded", "free", "largest_kv_tokens", "live", "members")

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.members = len(workers)
        self.allowed = _allowed_by_all(workers)
        self.free = Bag()
        self.ahead = Bag()
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
        """From where it stood to where it stands now."""
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
        """Look again at the memory of those who are alive."""
        sizes = [worker.kv_tokens for worker in self.live]
        known = [size for size in sizes if size is not None]
        self.bounded = bool(known)
        self.largest_kv_tokens = max(known) if known and len(known) == len(sizes) else None

    def needed(self, asked_tokens: int, kv_tokens: int) -> int:
        """What to ask of a worker's memory: nothing, for a request that asked for more than any could ever hold.

        It is sent all the same: the engine counts exactly, and says why in its own words.
        """
        largest = self.largest_kv_tokens
        return 0 if largest is not None and asked_tokens > largest else kv_tokens

    def __repr__(self) -> str:
        free, ahead = len(self.free.workers), len(self.ahead.workers)
        return f"<Line {free} with a free slot, {ahead} with a look-ahead place, of {len(self.live)}>"


def _allowed_by_all(workers: Sequence[Worker]) -> frozenset[str] | None:
    lists = [frozenset(worker.spec.allow) for worker in workers if worker.kind == "openai"]
    return frozenset.intersection(*lists) if lists else None
