"""The times at which queued requests expire, earliest first: a heap whose entries may be stale.

An entry is stale once its request is no longer queued, or expires at another time. The queues tell it by `drop`, and
the stale entries are removed together when they are the majority. A new request joins the heap only when the heap is
needed: most start before. So an operation costs O(log n), amortized, and what is kept is within twice what is queued.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf

from services.core.request import WAITING, Request

MIN_STALE = 32
"""Fewer stale entries are left alone."""


class Expiries:
    """`fresh` holds requests that are queued, or were, and are not in the heap yet: the queues append to it."""

    __slots__ = ("_heap", "_stale", "fresh")

    def __init__(self) -> None:
        self.fresh: list[Request] = []
        self._heap: list[tuple[float, int, Request]] = []
        self._stale = 0

    def move(self, request: Request, expires_at: float, sequence: int) -> None:
        """Change the expiry of a queued request. `sequence` orders equal times."""
        self._push_fresh()
        request.expires_at = expires_at
        heappush(self._heap, (expires_at, sequence, request))
        self.drop()  # last: it may remove the stale entries, and the old one must be one of them

    def drop(self) -> None:
        """A request has left the queues other than by `pop`, so its entry is stale."""
        self._stale = stale = self._stale + 1
        if stale > MIN_STALE and 2 * (stale - MIN_STALE) > len(self):
            self._push_fresh()
            self._heap = [entry for entry in self._heap if _is_current(entry)]
            heapify(self._heap)
            self._stale = 0

    def earliest(self) -> float:
        """When the next request expires; infinity if none is queued."""
        if self.fresh:
            self._push_fresh()
        heap = self._heap
        while heap and not _is_current(heap[0]):
            heappop(heap)
            self._stale -= 1
            assert self._stale >= 0, f"more entries are stale than were dropped: {self!r}"
        return heap[0][0] if heap else inf

    def pop(self, now: float) -> Request | None:
        """Take out the request that expires first, if it has expired; the caller removes it from its queue."""
        if self.earliest() > now:
            return None
        at, _, request = heappop(self._heap)
        assert at == request.expires_at <= now, f"{request!r} is taken out at {now:g}, noted for {at:g}"
        return request

    def _push_fresh(self) -> None:
        """Move the requests that are still queued to the heap."""
        for request in self.fresh:
            if request.stage is WAITING:
                heappush(self._heap, (request.expires_at, request.sequence, request))
            else:
                self._stale -= 1
        self.fresh.clear()

    def __len__(self) -> int:
        """The entries, stale ones included."""
        return len(self._heap) + len(self.fresh)

    def __repr__(self) -> str:
        return f"<Expiries {len(self)} entries, {self._stale} stale>"


def _is_current(entry: tuple[float, int, Request]) -> bool:
    """Whether the request of an entry is queued and expires at the time of the entry."""
    return entry[2].stage is WAITING and entry[2].expires_at == entry[0]
