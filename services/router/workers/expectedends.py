"""When the workers of a pool are expected to have a free slot, for requests that are sent ahead of it.

A heap of expected ends. Entries of requests that have ended are dropped when they are met, and all of them when the
heap has doubled. An entry whose worker cannot take a request ahead now (it holds one, rests, or its engine is
strained) is put aside until one
of its requests ends. O(log n) for each request; no entry refers to a request.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf

from services.core.request import Request
from services.router.workers.worker import FULL, Worker

MIN_CLEANED = 64

Entry = tuple[float, int]
"""The expected end, and the number of the request in the order of its start."""


class ExpectedEnds:
    """The expected ends of the requests of one pool that are at a worker now."""

    __slots__ = ("_aside", "_clean_at", "_heap", "_last", "_numbers", "_workers")

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._numbers: dict[Request, int] = {}
        self._workers: dict[int, Worker] = {}  # by the request's number
        self._aside: dict[Worker, list[Entry]] = {}
        self._last = 0
        self._clean_at = MIN_CLEANED

    def add(self, request: Request, worker: Worker) -> None:
        """The worker holds this request, until about `request.ends_at`."""
        self._last = number = self._last + 1
        self._numbers[request] = number
        self._workers[number] = worker
        heappush(self._heap, (request.ends_at, number))
        if len(self._heap) >= self._clean_at:
            self._heap = [entry for entry in self._heap if entry[1] in self._workers]
            heapify(self._heap)
            self._clean_at = 2 * len(self._heap) + MIN_CLEANED

    def ended(self, request: Request, worker: Worker) -> None:
        """The worker does not hold it any more: the ends there that were put aside count again."""
        number = self._numbers.pop(request, None)
        if number is not None:
            del self._workers[number]
        for entry in self._aside.pop(worker, ()):
            heappush(self._heap, entry)

    def due(self, by: float) -> tuple[Worker, float] | None:
        """A full worker of which a slot is expected to be free by then, and when. Each expected end counts once."""
        heap = self._heap
        while heap:
            worker = self._workers.get(heap[0][1])
            if worker is not None and heap[0][0] > by:
                return None
            entry = heappop(heap)
            if worker is None:
                continue
            opens = worker.inflight == worker.slots and not (worker.resting or worker.strained)
            if opens and worker.availability is FULL:
                return worker, entry[0]
            self._aside.setdefault(worker, []).append(entry)
        return None

    def next_at(self) -> float:
        """The earliest expected end that has not counted yet, or earlier; infinity if there is none."""
        return self._heap[0][0] if self._heap else inf

    def __repr__(self) -> str:
        return f"<ExpectedEnds of {len(self._numbers)} requests, next {self.next_at():g}, {len(self._aside)} aside>"
