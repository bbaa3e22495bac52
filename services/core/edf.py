"""A queue in order of earliest deadline that knows how much work is queued before any time.

Earliest deadline first is optimal while everything fits (Liu and Layland 1973) and fails otherwise, since it prefers
what is about to expire. So it orders only one tenant's queue, behind admission.

`work_before` is a sum over sorted blocks: O(1) for the latest deadline, the common case, else O(n / BLOCK + BLOCK)
steps of C code. Up to tens of thousands of requests that is faster than an O(log n) tree in CPython. The queue itself
has no bound; bounds are in `account.py`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from services.core.request import Request

BLOCK = 64
"""A block splits in two at twice this many requests."""

Entry = tuple[float, int, Request]


class DeadlineQueue:
    """Requests sorted by (due_at, sequence), with the sum of their charges."""

    __slots__ = ("_blocks", "_count", "_sums", "work")

    def __init__(self) -> None:
        self._blocks: list[list[Entry]] = []
        self._sums: list[float] = []
        self._count = 0
        self.work = 0.0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        return (entry[2] for block in self._blocks for entry in block)

    @property
    def first(self) -> Request | None:
        """The request that is due first."""
        return self._blocks[0][0][2] if self._count else None

    def add(self, request: Request) -> None:
        """Insert a request. Its `due_at`, sequence and charge must not change while it is queued."""
        entry, charge_tokens = (request.due_at, request.sequence, request), request.charge_tokens
        self._count += 1
        self.work += charge_tokens
        if self._count == 1:
            self._blocks.append([entry])
            self._sums.append(charge_tokens)
            return
        at = self._block_of(entry)
        block = self._blocks[at]
        if entry > block[-1]:
            block.append(entry)
        else:
            block.insert(bisect_left(block, entry), entry)
        self._sums[at] += charge_tokens
        if len(block) >= 2 * BLOCK:
            self._split(at)

    def discard(self, request: Request) -> None:
        """Remove a request. Raises KeyError if it is not queued."""
        blocks = self._blocks
        if self._count == 1 and blocks[0][0][2] is request:
            self._count, self.work = 0, 0.0
            blocks.clear()
            self._sums.clear()
            return
        at, index = self._place_of(request)
        block = blocks[at]
        del block[index]
        self._count -= 1
        self._sums[at] -= request.charge_tokens
        self.work -= request.charge_tokens
        if not block:
            del self._blocks[at], self._sums[at]
        if not self._count:
            self.work = 0.0  # sums of floats drift

    def work_before(self, due_at: float) -> float:
        """The work before a new request that is due at `due_at`: charges of all that are due by then."""
        blocks = self._blocks
        if not blocks or due_at >= blocks[-1][-1][0]:
            return self.work
        total = 0.0
        for block, work in zip(blocks, self._sums, strict=True):
            if block[-1][0] <= due_at:
                total += work
                continue
            for entry in block:
                if entry[0] > due_at:
                    break
                total += entry[2].charge_tokens
            break
        return total

    def _place_of(self, request: Request) -> tuple[int, int]:
        """The (block, index) of a request. Most that leave are the first, because they start."""
        blocks = self._blocks
        if blocks and blocks[0][0][2] is request:
            return 0, 0
        entry = (request.due_at, request.sequence, request)
        at = self._block_of(entry) if blocks else 0
        index = bisect_left(blocks[at], entry) if blocks else 0
        if not blocks or index == len(blocks[at]) or blocks[at][index][2] is not request:
            raise KeyError(request.id)
        return at, index

    def _block_of(self, entry: Entry) -> int:
        """The index of the block that holds `entry`, or would."""
        return max(0, bisect_right(self._blocks, entry, key=_first_of) - 1) if len(self._blocks) > 1 else 0

    def _split(self, at: int) -> None:
        block = self._blocks[at]
        tail = block[BLOCK:]
        del block[BLOCK:]
        moved = sum((entry[2].charge_tokens for entry in tail), 0.0)
        self._blocks.insert(at + 1, tail)
        self._sums.insert(at + 1, moved)
        self._sums[at] -= moved

    def __repr__(self) -> str:
        span = f", due {self._blocks[0][0][0]:g} to {self._blocks[-1][-1][0]:g}" if self._count else ""
        return f"<DeadlineQueue {self._count} requests, {self.work:g} tokens of work{span}>"


def _first_of(block: list[Entry]) -> Entry:
    return block[0]
