"""A line of requests by what is due first that knows how much work stands before any moment.

Earliest deadline first is optimal while everything fits (Liu and Layland 1973) and collapses when it does not, since it
prefers what is about to fail. It is used here only inside one tenant's line, behind the test at the door that keeps out
what does not fit.

Admission asks one question of it: how much work has an earlier deadline than mine? A sorted list of short blocks, each
with its sum, answers it. A newcomer with the latest deadline, the common case, costs O(1). Any other costs a walk over
the blocks and within one: O(n / BLOCK + BLOCK) steps of C code, which up to tens of thousands of requests beats the
pointers of an O(log n) tree in CPython.

What is due is the deadline, or the first token where one is promised before it (`Request.due_at`).

Bound: holds what its owner puts in; the owner's bounds are the scheduler's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from services.core.request import Request

BLOCK = 64
"""A block splits in two when it reaches twice this many requests."""

Entry = tuple[float, int, Request]


class DeadlineLine:
    """Requests sorted by (what is due, sequence), with the sum of their charges."""

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
        """The one that is due first."""
        return self._blocks[0][0][2] if self._count else None

    def add(self, request: Request) -> None:
        """Put a request in its place. What is due, its sequence and its charge must not change while it is here."""
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
        """Take a request out. One that is not here raises KeyError."""
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
            self.work = 0.0  # sums of floats drift; an empty line holds nothing

    def work_before(self, due_at: float) -> float:
        """Charges of those that are due at or before then: a newcomer that is due then would stand behind them."""
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
        """Block and index. Whoever starts is the first, and mostly it is one who starts that leaves."""
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
        """The block that holds `entry`, or would."""
        return max(0, bisect_right(self._blocks, entry, key=_first_of) - 1) if len(self._blocks) > 1 else 0

    def _split(self, at: int) -> None:
        block = self._blocks[at]
        tail = block[BLOCK:]
        del block[BLOCK:]
        moved = sum(entry[2].charge_tokens for entry in tail)
        self._blocks.insert(at + 1, tail)
        self._sums.insert(at + 1, moved)
        self._sums[at] -= moved

    def __repr__(self) -> str:
        span = f", due {self._blocks[0][0][0]:g} to {self._blocks[-1][-1][0]:g}" if self._count else ""
        return f"<DeadlineLine {self._count} requests, {self.work:g} tokens of work{span}>"


def _first_of(block: list[Entry]) -> Entry:
    return block[0]
