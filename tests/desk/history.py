"""Routers, a desk and its server on a clock that the test moves, with every kind of fault: no I/O, one seed.

A router is the real `Borrower`, with the rules of `LeaseLink` (one ask at a time, the newest of those that wait; an ask
without an answer ends the stream; each end gives its slot back with an ask) written again in a few lines.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random

from services.contracts.lease import EndedRequest
from services.core.leases.borrower import Asks, Borrower
from services.core.leases.holding import Holding
from services.core.leases.messages import Ask, Grant, Want
from services.core.leases.times import MIN_TTL_S
from services.desk.book import LEARN_S, DeskBook
from services.desk.learned import LearnedSlots

HOLD_S = 10.0
LONGEST_S = 8.0
"""Of a request: shorter than the desk holds slots for it, longer than one that starts learns."""
TICK_S = 0.05


Told = tuple[int, int, tuple[EndedRequest, ...]]
"""What a desk is told with an ask: its number, requests in flight, and those that have ended."""


class Router:
    """One process. `waiting` requests want a slot; `running` have one, as far as it knows."""

    def __init__(self, play: History, name: str, epoch: int) -> None:
        self.play = play
        self.name = name
        self.borrower = Borrower(name, epoch, play.chance.random, lambda: 0.0)
        self.borrower.join(play.now, "s")
        self.borrower.use(play.now, "s", usable=False)
        self.waiting = 0
        self.running: set[int] = set()
        self.is_alive = True
        self.stream = 0
        """The number of its stream; 0: it has none."""
        self.pending: Ask | None = None
        self.counts = 0
        self.under_way = 0  # the number of the ask under way; 0: none
        self.last_wants: tuple[Want, ...] = ()
        self.untold: list[EndedRequest] = []
        play.after(0.01, self.open)
        self.tick()

    @property
    def holding(self) -> Holding:
        return self.borrower.holdings["s"]

    # ---- the link

    def open(self) -> None:
        if not self.is_alive:
            return
        if self.play.is_cut(self):
            self.play.after(self.play.chance.uniform(0.05, 1.5), self.open)
            return
        self.stream = next(self.play.numbers)
        self.play.desk_opens(self)
        self.borrower.use(self.play.now, "s", usable=True)
        self.send(self.holding.ask(self.play.now, (), quantum=1.0, ttl_s=MIN_TTL_S))

    def send(self, ask: Ask) -> None:
        if self.stream:
            self.pending = ask
            if not self.under_way:
                self.post()

    def post(self) -> None:
        ask, self.pending = self.pending, None
        assert ask is not None
        self.counts += 1
        self.under_way = next(self.play.numbers)
        self.play.post(self, ask, (self.counts, self.holding.uses, tuple(self.untold)))
        self.untold = []
        self.play.after(MIN_TTL_S, self.give_up, self.under_way)

    def give_up(self, ask: int) -> None:
        if self.under_way == ask and self.is_alive:
            self.end_stream()

    def end_stream(self) -> None:
        """It ends its stream, or finds it ended."""
        if not self.stream:
            return
        self.play.desk_will_see_the_end(self)
        self.stream = self.under_way = 0
        self.pending = None
        self.borrower.disconnect(self.play.now, "s")
        self.borrower.use(self.play.now, "s", usable=False)
        self.play.after(self.play.chance.uniform(0.02, 1.5), self.open)

    def answered(self, ask: int, stream: int, grant: Grant) -> None:
        if self.is_alive and ask == self.under_way:
            self.under_way = 0
            self.granted(stream, grant)
            if self.pending is not None:
                self.post()

    def granted(self, stream: int, grant: Grant) -> None:
        if self.is_alive and stream == self.stream:
            self.borrower.receive(self.play.now, "s", grant)
            self.pump()

    # ---- work

    def wants(self) -> tuple[Want, ...]:
        if not self.waiting or self.borrower.free(self.play.now):
            self.last_wants = ()
        else:
            self.last_wants = (Want("default", self.waiting, 0, float(self.play.served[self.name]), 0.0),)
        return self.last_wants

    def pump(self) -> None:
        now, started = self.play.now, 0
        while self.waiting and self.holding.free(now):
            self.waiting, started = self.waiting - 1, started + 1
            self.borrower.start(now, "s")
            self.running.add(self.play.starts(self))
        self.sends(self.borrower.settle(now, self.wants()))
        for _ in range(started):
            self.send(self.borrower.ask_with_request(now, "s", self.last_wants))

    def ended(self, request: int, ended: EndedRequest) -> None:
        self.running.discard(request)
        self.untold.append(ended)
        now = self.play.now
        self.sends(self.borrower.end(now, "s", None, wants=self.last_wants))
        self.pump()

    def tick(self) -> None:
        if self.is_alive:
            self.pump()
            self.sends(self.borrower.refresh(self.play.now, self.wants()))
            self.play.after(TICK_S, self.tick)

    def sends(self, asks: Asks) -> None:
        for _, ask in asks:
            self.send(ask)


class History:
    """One random history. `at_server`: the requests that run there, by number, with their router's name. `slots`: of
    the server, or the most that the desk may find, if it `learns` them.
    """

    def __init__(
        self, seed: int, *, routers: int = 3, slots: int = 4, learns: Callable[[int], LearnedSlots] | None = None
    ) -> None:
        self.chance = Random(seed)
        self.slots = slots
        self.learns = learns
        self.bound = slots
        """The most requests that may be at the server now."""
        self.pace: Callable[[int], float] | None = None
        """Seconds for a token, by the number of requests at the server."""
        self.now = 100.0
        self.numbers = count(1)
        self.events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self.at_server: dict[int, str] = {}
        self.served: dict[str, int] = {}
        self.highest = 0
        self.is_calm = False
        self.cut_until: dict[str, float] = {}
        self.epochs = count(1000, 1000)
        self.streams: dict[str, tuple[int, int]] = {}  # as the desk sees them: router -> (its number, epoch)
        self.desk_up = False
        self.start_desk()
        self.routers: dict[str, Router] = {}
        for name in "abc"[:routers]:
            self.start_router(name)

    # ---- time

    def after(self, seconds: float, call: Callable[..., None], *values: object) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.numbers), call, values))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.events and self.events[0][0] <= until:
            self.now, _, call, values = heapq.heappop(self.events)
            call(*values)
            if self.now >= self.lends_from:
                self.bound = max(self.desk.slots, min(self.bound, self.desk.promised))
            assert len(self.at_server) <= self.bound <= self.slots, (
                f"{len(self.at_server)} of {self.bound} at {self.now}: {self.desk}"
            )
        self.now = until

    def trip(self) -> float:
        return self.chance.choice([0.0005, 0.0005, 0.002, 0.05])

    # ---- the server

    def starts(self, router: Router) -> int:
        request = next(self.numbers)
        self.at_server[request] = router.name
        self.highest = max(self.highest, len(self.at_server))
        self.served[router.name] += 1
        if self.pace is None:
            tokens = 10
            takes_s = self.chance.choice([0.05, 0.3, 2.0, self.chance.uniform(0.01, LONGEST_S)])
        else:
            tokens = 1 + int(self.chance.expovariate(1 / 20))
            takes_s = self.pace(len(self.at_server)) * self.chance.uniform(0.9, 1.1) * (1 + tokens)
        self.after(takes_s, self.ends, router, request, (takes_s, 0, tokens))
        return request

    def ends(self, router: Router, request: int, ended: EndedRequest) -> None:
        if self.at_server.pop(request, None) is not None and router.is_alive:
            router.ended(request, ended)

    # ---- the desk

    def start_desk(self) -> None:
        slots = self.slots if self.learns is None else self.learns(self.slots)
        self.desk = DeskBook(next(self.epochs), slots, HOLD_S)
        self.desk.begin(self.now)
        self.lends_from = self.now + LEARN_S
        self.streams, self.desk_up = {}, True
        self.wake(self.desk)

    def wake(self, desk: DeskBook) -> None:
        if desk is self.desk:
            self.push(desk.expire(self.now))
            self.after(0.01, self.wake, desk)

    def is_cut(self, router: Router) -> bool:
        return not self.desk_up or self.cut_until.get(router.name, 0.0) > self.now

    def desk_opens(self, router: Router) -> None:
        epoch = router.holding.epoch
        older = self.streams.get(router.name)
        self.streams[router.name] = router.stream, epoch
        if older is not None and older[1] != epoch:
            self.push(self.desk.disconnect(self.now, router.name, older[1]))
        self.desk.open(router.name, epoch)

    def desk_will_see_the_end(self, router: Router) -> None:
        """Soon, late, or by the lease's time only."""
        after = self.chance.choice([self.trip(), self.trip(), 1.0, 20.0])
        self.after(after, self.desk_sees_the_end, self.desk, router.name, router.stream, router.holding.epoch)

    def desk_sees_the_end(self, desk: DeskBook, name: str, stream: int, epoch: int) -> None:
        if desk is self.desk and self.streams.get(name) == (stream, epoch):
            del self.streams[name]
            self.push(desk.disconnect(self.now, name, epoch))

    def post(self, router: Router, ask: Ask, told: Told) -> None:
        if self.is_calm or (self.chance.random() > 0.02 and not self.is_cut(router)):
            self.after(self.trip(), self.receive, self.desk, router, router.under_way, router.stream, ask, told)
        if not self.is_calm and self.chance.random() < 0.05:  # a copy, late
            copy = self.chance.choice([0.001, 0.3, 2.0])
            self.after(copy, self.receive, self.desk, router, -1, router.stream, ask, told)

    def receive(self, desk: DeskBook, router: Router, number: int, stream: int, ask: Ask, told: Told) -> None:
        if desk is not self.desk or not self.desk_up:
            return
        grants = desk.receive(self.now, ask, *told)
        if grants is None:
            if number == router.under_way and router.is_alive:
                router.end_stream()
            return
        own = grants.pop(router.name)
        self.push(grants)
        if self.is_calm or (self.chance.random() > 0.02 and not self.is_cut(router)):
            self.after(self.trip(), router.answered, number, stream, own)

    def push(self, grants: dict[str, Grant]) -> None:
        for name, grant in grants.items():
            stream = self.streams.get(name)
            router = self.routers.get(name)
            lost = not self.is_calm and self.chance.random() < 0.02
            if stream is not None and router is not None and stream[1] == grant.echo[0] and not lost:
                self.after(self.trip(), router.granted, stream[0], grant)

    # ---- faults

    def start_router(self, name: str) -> None:
        self.served.setdefault(name, 0)
        self.routers[name] = Router(self, name, next(self.epochs))

    def kill(self, name: str) -> None:
        """The process dies, and its connections with it; its successor has its name."""
        router = self.routers[name]
        if not router.is_alive:
            return
        router.is_alive = False
        if router.stream:
            self.desk_will_see_the_end(router)
        for request in [request for request, of in self.at_server.items() if of == name]:
            del self.at_server[request]
        self.after(self.chance.uniform(0.1, 3.0), self.start_router, name)

    def lose_host(self, name: str) -> None:
        """The host vanishes: its requests run on at the server, and nobody sees an end. A new one has another name."""
        if not self.routers[name].is_alive:
            return
        self.routers.pop(name).is_alive = False
        self.start_router(f"{name[0]}{next(self.numbers)}")

    def cut(self, name: str) -> None:
        """For some seconds nothing passes between this router and the desk; the server is reached."""
        self.cut_until[name] = self.now + self.chance.choice([0.2, 1.0, 4.0])

    def restart_desk(self) -> None:
        """It is down for a while; routers see the end of their streams sooner or later."""
        self.desk_up = False
        for router in self.routers.values():
            self.after(self.chance.choice([0.001, 0.5]), self.lost_the_desk, router, router.stream)
        self.after(self.chance.choice([0.01, 1.0, 4.0]), self.start_desk)

    def lost_the_desk(self, router: Router, stream: int) -> None:
        if router.is_alive and router.stream == stream:
            router.end_stream()

    def step(self, *, restarts: bool) -> None:
        """Work arrives, time passes, and now and then something breaks."""
        draw, name = self.chance.random(), self.chance.choice(list(self.routers))
        if draw < 0.7:
            self.routers[name].waiting += self.chance.randint(1, 4)
        elif draw < 0.74:
            self.kill(name)
        elif draw < 0.77 and not restarts:
            self.lose_host(name)
        elif draw < 0.85 and not restarts:
            self.cut(name)
        elif draw < 0.88 and restarts and self.desk_up:
            self.restart_desk()
        self.run(self.chance.choice([0.001, 0.05, 0.3, 1.0]))

    def heal(self) -> None:
        """Nothing breaks any more."""
        self.is_calm = True
        self.cut_until = {}
        self.run(HOLD_S + LEARN_S)
        for _ in range(300):
            if self.at_server or any(router.waiting for router in self.routers.values()):
                self.run(1.0)
