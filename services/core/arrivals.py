"""The order of arrival: what most queues go by, kept only while fairness is off.

One line over all tenants of a pool. It looks at neither cost nor weight nor deadline, so whoever asks most gets most,
and everybody waits for all who came before. Whoever could not start now is passed over and keeps its place: no slot
waits for one whose retrieval still runs.

Cost: O(1) to come and to go; to choose, O(n) in those who are passed over. Bound: the scheduler's, which puts in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from services.core.request import Request


class Arrivals:
    """All who wait in one pool, first come first."""

    __slots__ = ("_waiting",)

    def __init__(self, waiting: Iterable[Request] = ()) -> None:
        in_order = sorted(waiting, key=lambda request: request.sequence)
        # OrderedDict, not dict: taking the first key of a dict again and again walks over its dead entries.
        self._waiting: OrderedDict[Request, None] = OrderedDict.fromkeys(in_order)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting)

    def add(self, request: Request) -> None:
        """The last to come."""
        self._waiting[request] = None

    def discard(self, request: Request) -> None:
        """It has started, or left. One that is not here raises KeyError."""
        del self._waiting[request]

    def first(self, fits: Callable[[Request], bool] | None = None) -> Request | None:
        """The first of those that could start now."""
        return next((each for each in self._waiting if each.ready and (fits is None or fits(each))), None)

    def __repr__(self) -> str:
        return f"<Arrivals {len(self._waiting)}>"
