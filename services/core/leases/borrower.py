"""Which workers a router asks for slots, for how many, and what it gives back: its leases in one pool.

    wants      only while work waits and no slot is free: told when that begins, when more of it is light, when the
               level is more than SENT_QUANTA above that in the last ask (in a small pool), and every WANT_EVERY_S
    split      all workers of a small pool are asked for all of it; of a larger one a few, drawn at random, each for a
               part: whole wants would bring many more slots than requests
    asks       at least ASKS_PER_TTL within the time of a lease, to each worker that it holds slots of
    returns    an idle slot at once if somebody else waits for it, else after LINGER_S

The caller sends what is returned. `wants` is what waits in each class and could start, without regard to free slots
(`PoolLevel.wants`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf

from services.core.leases.holding import Holding
from services.core.leases.messages import Ask, Grant, Want
from services.core.leases.times import ASKS_PER_TTL, LINGER_S, WANT_EVERY_S, ttl_s

SMALL_POOL = 8
"""Workers up to which all are asked."""
MIN_ASKED = 2
SENT_QUANTA = 3.0
"""A level that has risen by more than this is sent again."""

Asks = list[tuple[str, Ask]]
"""(worker, ask): what to send."""
Wants = tuple[Want, ...]


class Borrower:
    """One router's leases at the workers of a pool. `random` returns numbers from 0 to 1, `quantum` that of the pool's
    rings.

    Holdings are changed by these methods only, which keep the sums: each costs O(1), whatever the number of workers.
    """

    __slots__ = (
        "_counted", "_draw", "_epoch", "_free", "_held", "_lapses_at", "_levels_sent", "_light", "_may", "_place",
        "_quantum", "_random", "_wanted_at", "holdings", "pool_slots", "router", "uses",
    )  # fmt: skip

    def __init__(self, router: str, epoch: int, random: Callable[[], float], quantum: Callable[[], float]) -> None:
        self.router = router
        self.holdings: dict[str, Holding] = {}
        """By worker."""
        self.uses = 0
        """Slots that it uses."""
        self.pool_slots = 0
        """Slots of all workers that can be used, over all routers."""
        self._may = 0
        self._counted: dict[str, tuple[int, int, int]] = {}  # by worker, what is in the sums: may, uses, slots
        self._free: dict[str, None] = {}  # workers with a slot that is not used
        self._held: dict[str, None] = {}  # workers with a slot
        self._draw: list[str] = []  # usable workers, in any order
        self._place: dict[str, int] = {}  # of each in `_draw`
        self._lapses_at = inf  # no lease ends before
        self._epoch = epoch
        self._random = random
        self._quantum = quantum
        self._light = -1  # light requests in the last wants that were sent; -1: nothing waited
        self._wanted_at = 0.0
        self._levels_sent: dict[str, float] = {}  # by class: the level in the last wants that were sent

    @property
    def quantum(self) -> float:
        """Of the rings of this pool, in tokens per round and unit of weight."""
        return self._quantum()

    # ---- workers

    def join(self, now: float, worker: str, slots: int = 0) -> None:
        """A worker of the pool; `slots` as announced."""
        self.holdings[worker] = Holding(self.router, self._epoch, slots)
        self._counted[worker] = 0, 0, 0
        self._count(now, worker)

    def leave(self, now: float, worker: str) -> None:
        """The worker is not one of the pool any more. What runs there ends uncounted."""
        self.holdings[worker].usable = False
        self.disconnect(now, worker)
        _, uses, _ = self._counted.pop(worker)
        self.uses -= uses
        self._held.pop(worker, None)
        del self.holdings[worker]

    def disconnect(self, now: float, worker: str) -> None:
        """The stream from the worker ended: its lease has ended."""
        self.holdings[worker].disconnect()
        self._count(now, worker)

    def use(self, now: float, worker: str, *, usable: bool, slots: int | None = None) -> None:
        """Whether requests may be sent there, and how many slots it announces (None: as before)."""
        holding = self.holdings[worker]
        holding.usable = usable
        if slots is not None:
            holding.slots = slots
        self._count(now, worker)

    # ---- what may start

    def free(self, now: float) -> Collection[str]:
        """The workers where a request may start."""
        self._lapse(now)
        return self._free

    def may(self, now: float) -> int:
        """Slots that it may use now, over all workers."""
        self._lapse(now)
        return self._may

    # ---- events

    def receive(self, now: float, worker: str, grant: Grant) -> bool:
        """A grant, in any order. False: it is older than the last one, and changes nothing."""
        changes = self.holdings[worker].receive(now, grant)
        self._count(now, worker)
        return changes

    def start(self, now: float, worker: str) -> None:
        """A request starts there; `ask_with_request` goes with it."""
        self.holdings[worker].start(now)
        self._count(now, worker)

    def ask_with_request(self, now: float, worker: str, wants: Wants) -> Ask:
        """The ask that a request takes along. `wants` is what still waits, empty while a slot is free."""
        holding = self.holdings[worker]
        return holding.ask(now, self._split(wants), quantum=self.quantum, ttl_s=self._ttl_s(), alone=False)

    def end(self, now: float, worker: str, grant: Grant | None, *, wants: Wants = (), is_ahead: bool = False) -> Asks:
        """A request ended there. Without a grant its slot goes back, and the ask that says so says what waits: else the
        slot would be idle until the wants are repeated. In a large pool, where other workers are asked too, it wants
        one of each class.

        A router that is ahead of the others gives its slot back if somebody waits for it: only in a large pool, where
        each worker hears few routers; in a small one the worker has compared all levels.
        """
        holding = self.holdings[worker]
        holding.end(now, grant)
        self._count(now, worker)
        if grant is None:
            if self.is_large:
                wants = tuple([want._replace(requests=1, light=min(1, want.light)) for want in wants])
            return [(worker, self._ask(now, worker, wants))]
        if is_ahead and holding.recall and holding.free(now) and self.is_large:
            return [(worker, self._ask(now, worker, (), keep=holding.may(now) - 1))]
        return []

    def settle(self, now: float, wants: Wants) -> Asks:
        """After every event, when nothing more can start: give back idle slots that others wait for, and ask for more.
        A slot may be idle beside wants: what waits may not use it (a retry, at the worker that failed it).
        """
        recalled = [worker for worker in self.free(now) if self.holdings[worker].recall]
        asks = [(worker, self._ask(now, worker, (), keep=self.holdings[worker].uses)) for worker in recalled]
        if not wants:
            self._light = -1
            return asks
        light = sum([want.light for want in wants])
        if self._light < 0 or light > self._light or self._has_come_far(wants):
            return asks + self._ask_for(now, wants, light)
        self._light = light
        return asks

    def _has_come_far(self, wants: Wants) -> bool:
        """Whether all workers should hear that it is further than they know: each would give it the slot of whoever is
        behind it. In a large pool few of them know its level.
        """
        far = SENT_QUANTA * self.quantum
        return not self.is_large and any(
            want.level > self._levels_sent.get(want.class_name, inf) + far for want in wants
        )

    def refresh(self, now: float, wants: Wants) -> Asks:
        """Now and then: repeat the wants, prolong the leases, give back what lingers."""
        asks: Asks = []
        if wants and now - self._wanted_at >= WANT_EVERY_S:
            asks = self._ask_for(now, wants, sum([want.light for want in wants]))
        every_s = self._ttl_s() / ASKS_PER_TTL
        for worker in list(self._held):
            holding = self.holdings[worker]
            lingers = now - holding.idle_since >= (LINGER_S if holding.usable else 0.0)
            if (holding.may(now) or holding.uses) and (lingers or now - holding.asked_at >= every_s):
                keep = holding.uses if lingers else None
                asks.append((worker, self._ask(now, worker, self._split(wants), keep=keep)))
        return asks

    @property
    def is_large(self) -> bool:
        """Whether only some of the workers are asked at once."""
        return len(self.holdings) > SMALL_POOL

    # ---- inside

    def _count(self, now: float, worker: str) -> None:
        """Bring the sums up to date with the worker's holding."""
        holding = self.holdings[worker]
        may, uses, slots = holding.may(now), holding.uses, holding.slots if holding.usable else 0
        may_before, uses_before, slots_before = self._counted[worker]
        self._counted[worker] = may, uses, slots
        self._may += may - may_before
        self.uses += uses - uses_before
        self.pool_slots += slots - slots_before
        if may and holding.lapses_at < self._lapses_at:
            self._lapses_at = holding.lapses_at
        _keep(self._free, worker, may > uses and holding.usable)
        _keep(self._held, worker, may > 0 or uses > 0)
        if holding.usable != (worker in self._place):
            self._set_drawn(worker, holding.usable)

    def _lapse(self, now: float) -> None:
        """Leave out the leases that have ended. O(1) until the first may have."""
        if now < self._lapses_at:
            return
        self._lapses_at = inf
        for worker in [worker for worker in self._held if self._counted[worker][0]]:
            self._count(now, worker)

    def _set_drawn(self, worker: str, usable: bool) -> None:
        if usable:
            self._place[worker] = len(self._draw)
            self._draw.append(worker)
            return
        place, last = self._place.pop(worker), self._draw.pop()
        if last != worker:
            self._draw[place], self._place[last] = last, place

    def _ask_for(self, now: float, wants: Wants, light: int) -> Asks:
        self._light, self._wanted_at = light, now
        self._levels_sent = {want.class_name: want.level for want in wants}
        part = self._split(wants)
        return [(worker, self._ask(now, worker, part)) for worker in self._asked(wants)]

    def _asked(self, wants: Wants) -> Sequence[str]:
        """The workers to ask: all, or enough of them, drawn at random."""
        workers = self._draw
        if len(workers) <= SMALL_POOL:
            return list(workers)
        count = self._parts(wants)
        for place in range(count):
            other = place + int(self._random() * (len(workers) - place))
            workers[place], workers[other] = workers[other], workers[place]
            self._place[workers[place]], self._place[workers[other]] = place, other
        return workers[:count]

    def _split(self, wants: Wants) -> Wants:
        """One worker's part of what is wanted."""
        if not self.is_large or not wants:
            return wants
        parts = self._parts(wants)
        return tuple(
            [
                want._replace(requests=-(-want.requests // parts), light=-(-want.light // parts))
                for want in wants
            ]
        )  # fmt: skip

    @staticmethod
    def _parts(wants: Wants) -> int:
        return min(SMALL_POOL, max(MIN_ASKED, sum([want.requests for want in wants])))

    def _ask(self, now: float, worker: str, wants: Wants, keep: int | None = None) -> Ask:
        holding = self.holdings[worker]
        wanted = wants if holding.usable else ()
        ask = holding.ask(now, wanted, quantum=self.quantum, ttl_s=self._ttl_s(), keep=keep)
        if keep is not None:
            self._count(now, worker)
        return ask

    def _ttl_s(self) -> float:
        return ttl_s(len(self._held))

    def __repr__(self) -> str:
        return f"<Borrower {self.router}: {list(self.holdings.values())}>"


def _keep(members: dict[str, None], worker: str, is_member: bool) -> None:
    if is_member:
        members[worker] = None
    else:
        members.pop(worker, None)
