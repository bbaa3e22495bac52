"""Which workers a router asks for slots, for how many, and what it gives back: its leases in one pool.

    wants      only while work waits and no slot is free: told when that begins, when more of it is light, and then
               every WANT_EVERY_S
    split      all workers of a small pool are asked for all of it; of a larger one a few, drawn at random, each for a
               part: whole wants would bring many more slots than requests
    asks       at least ASKS_PER_TTL within the time of a lease, to each worker that it holds slots of
    returns    an idle slot at once if somebody else waits for it, else after LINGER_S

The caller sends what is returned. `wants` is what waits in each class and could start, without regard to free slots
(`PoolLevel.wants`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from services.core.leases.holding import Holding
from services.core.leases.messages import Ask, Grant, Want
from services.core.leases.times import ASKS_PER_TTL, LINGER_S, WANT_EVERY_S, ttl_s

SMALL_POOL = 8
"""Workers up to which all are asked."""
MIN_ASKED = 2

Asks = list[tuple[str, Ask]]
"""(worker, ask): what to send."""
Wants = tuple[Want, ...]


class Borrower:
    """One router's leases at the workers of a pool. `random` returns numbers from 0 to 1."""

    __slots__ = ("_epoch", "_light", "_random", "_wanted_at", "holdings", "quantum", "router")

    def __init__(self, router: str, epoch: int, random: Callable[[], float]) -> None:
        self.router = router
        self.holdings: dict[str, Holding] = {}
        """By worker."""
        self.quantum = 0.0
        """Of the rings of this pool; the caller sets it."""
        self._epoch = epoch
        self._random = random
        self._light = -1  # light requests in the last wants that were sent; -1: nothing waited
        self._wanted_at = 0.0

    # ---- workers

    def join(self, worker: str, slots: int = 0) -> None:
        """A worker of the pool; `slots` as announced."""
        self.holdings[worker] = Holding(self.router, self._epoch, slots)

    def disconnect(self, worker: str) -> None:
        """The stream from the worker ended: its lease has ended."""
        self.holdings[worker].disconnect()

    def leave(self, worker: str) -> None:
        """The worker is not one of the pool any more, and nothing runs there."""
        del self.holdings[worker]

    def free(self, now: float) -> list[str]:
        """The workers where a request may start."""
        return [worker for worker, holding in self.holdings.items() if holding.free(now)]

    def may(self, now: float) -> int:
        """Slots that it may use now, over all workers."""
        return sum([holding.may(now) for holding in self.holdings.values()])

    @property
    def uses(self) -> int:
        """Slots that it uses."""
        return sum([holding.uses for holding in self.holdings.values()])

    @property
    def pool_slots(self) -> int:
        """Slots of all workers that can be used, over all routers."""
        return sum([holding.slots for holding in self.holdings.values() if holding.usable])

    # ---- events

    def start(self, now: float, worker: str) -> None:
        """A request starts there; `ask_with_request` goes with it."""
        self.holdings[worker].start(now)

    def ask_with_request(self, now: float, worker: str, wants: Wants) -> Ask:
        """The ask that a request takes along. `wants` is what still waits, empty while a slot is free."""
        holding = self.holdings[worker]
        return holding.ask(now, self._split(wants), quantum=self.quantum, ttl_s=self._ttl_s(), alone=False)

    def end(self, now: float, worker: str, grant: Grant | None, *, is_ahead: bool = False) -> Asks:
        """A request ended there. A router that is ahead of the others gives its slot back if somebody waits for it.

        Only in a large pool, where each worker hears few routers; in a small one the worker has compared all levels.
        """
        holding = self.holdings[worker]
        holding.end(now, grant)
        if grant is None:
            return [(worker, self._ask(now, holding, ()))]
        if is_ahead and holding.recall and holding.free(now) and len(self.holdings) > SMALL_POOL:
            return [(worker, self._ask(now, holding, (), keep=holding.may(now) - 1))]
        return []

    def settle(self, now: float, wants: Wants) -> Asks:
        """After every event, when nothing more can start: ask for slots, or give back idle ones."""
        if not wants:
            self._light = -1
            return [
                (worker, self._ask(now, holding, (), keep=holding.uses))
                for worker, holding in self.holdings.items()
                if holding.recall and holding.free(now)
            ]
        light = sum([want.light for want in wants])
        if self._light < 0 or light > self._light:
            return self._ask_for(now, wants, light)
        self._light = light
        return []

    def refresh(self, now: float, wants: Wants) -> Asks:
        """Now and then: repeat the wants, prolong the leases, give back what lingers."""
        asks: Asks = []
        if wants and now - self._wanted_at >= WANT_EVERY_S:
            asks = self._ask_for(now, wants, sum([want.light for want in wants]))
        every_s = self._ttl_s() / ASKS_PER_TTL
        for worker, holding in self.holdings.items():
            lingers = now - holding.idle_since >= (LINGER_S if holding.usable else 0.0)
            if (holding.may(now) or holding.uses) and (lingers or now - holding.asked_at >= every_s):
                keep = holding.uses if lingers else None
                asks.append((worker, self._ask(now, holding, self._split(wants), keep=keep)))
        return asks

    # ---- inside

    def _ask_for(self, now: float, wants: Wants, light: int) -> Asks:
        self._light, self._wanted_at = light, now
        part = self._split(wants)
        return [(worker, self._ask(now, self.holdings[worker], part)) for worker in self._asked(wants)]

    def _asked(self, wants: Wants) -> Iterable[str]:
        """The workers to ask: all, or enough of them, drawn at random."""
        workers = [worker for worker, holding in self.holdings.items() if holding.usable]
        if len(workers) <= SMALL_POOL:
            return workers
        count = self._count(wants)
        for place in range(count):
            other = place + int(self._random() * (len(workers) - place))
            workers[place], workers[other] = workers[other], workers[place]
        return workers[:count]

    def _split(self, wants: Wants) -> Wants:
        """One worker's part of what is wanted."""
        if len(self.holdings) <= SMALL_POOL or not wants:
            return wants
        parts = self._count(wants)
        return tuple(
            [
                want._replace(requests=-(-want.requests // parts), light=-(-want.light // parts))
                for want in wants
            ]
        )  # fmt: skip

    @staticmethod
    def _count(wants: Wants) -> int:
        return min(SMALL_POOL, max(MIN_ASKED, sum([want.requests for want in wants])))

    def _ask(self, now: float, holding: Holding, wants: Wants, keep: int | None = None) -> Ask:
        wanted = wants if holding.usable else ()
        return holding.ask(now, wanted, quantum=self.quantum, ttl_s=self._ttl_s(), keep=keep)

    def _ttl_s(self) -> float:
        return ttl_s(sum([holding.uses > 0 or holding.idle_since < float("inf") for holding in self.holdings.values()]))

    def __repr__(self) -> str:
        return f"<Borrower {self.router}: {list(self.holdings.values())}>"
