"""Routers and workers of the tests: the product's classes, and a network that delivers when the test says so."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from services.core.leases.book import LeaseBook
from services.core.leases.borrower import Asks, Borrower
from services.core.leases.messages import Ask, Grant, Want

CLASSES = {"gold": 8.0, "tin": 1.0}
COST = 10.0
QUANTUM = 10.0
MAX_MESSAGES = 3000


@dataclass(eq=False)
class Work:
    """A request that was sent to a worker."""

    router: Router
    worker: str
    epoch: int
    class_name: str
    known: bool = True
    """Its router counts it as in flight."""
    runs: bool = False


@dataclass(eq=False)
class Router:
    """One process: what waits, and what it has borrowed. `rate`: of its clock."""

    name: str
    epoch: int
    borrower: Borrower
    rate: float = 1.0
    waiting: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    light: int = 0
    served: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    alive: bool = True

    def wants(self, now: float) -> tuple[Want, ...]:
        if self.borrower.free(now):
            return ()
        total = sum(self.served.values()) * COST
        return tuple(
            Want(name, n, min(n, self.light), total, self.served[name] * COST / CLASSES[name])
            for name, n in self.waiting.items()
            if n
        )

    @property
    def waits(self) -> int:
        return sum(self.waiting.values())


@dataclass(eq=False)
class Message:
    kind: str  # ask, grant, request, done, fin
    router: Router
    worker: str
    body: Any = None
    work: Work | None = None
    book: int = 0
    """The worker's epoch, for what goes to it or comes from it."""


class Network:
    """Everything that is there, and every message that is under way."""

    def __init__(self, routers: int, workers: int, slots: int, rates: tuple[float, ...] = (1.0,)) -> None:
        self.now = 100.0
        self.epochs = count(1)
        self.under_way: list[Message] = []
        self.work: list[Work] = []
        self.plain: dict[str, int] = defaultdict(int)
        """Requests that came without an ask and run, by worker."""
        self.books = {f"w{n}": LeaseBook(next(self.epochs), slots) for n in range(workers)}
        self.routers: list[Router] = []
        self.rates = rates
        self.refused: list[Work] = []
        self.excused: set[tuple[str, str]] = set()
        """(router, worker) whose leases were cut short: by a broken connection, a crash, a partition."""
        self.unknown: set[tuple[str, str]] = set()
        """(router, worker) of which nobody knows whether a request still runs."""
        for n in range(routers):
            self.begin(f"r{n}", rates[n % len(rates)])

    def begin(self, name: str, rate: float = 1.0) -> Router:
        """A process of this name starts."""
        epoch = next(self.epochs)
        router = Router(name, epoch, Borrower(name, epoch, lambda: 0.0, lambda: QUANTUM), rate)
        for worker, book in self.books.items():
            router.borrower.join(rate * self.now, worker, book.slots)
        self.routers.append(router)
        return router

    def clock(self, router: Router) -> float:
        return self.now * router.rate

    # ---- routers

    def arrive(self, router: Router, class_name: str = "gold", n: int = 1, light: bool = False) -> None:
        router.waiting[class_name] += n
        router.light += n * light
        self.pump(router)

    def pump(self, router: Router, *, start: bool = True) -> None:
        """Start what can start, then ask for what cannot."""
        now = self.clock(router)
        while start and router.waits and (free := router.borrower.free(now)):
            self.start(router, next(iter(free)))
        self.send_asks(router, router.borrower.settle(now, router.wants(now)))

    def start(self, router: Router, worker: str) -> None:
        name = min((n for n, waits in router.waiting.items() if waits), key=lambda n: router.served[n] / CLASSES[n])
        router.waiting[name] -= 1
        router.light = max(0, router.light - 1)
        router.served[name] += 1
        now = self.clock(router)
        router.borrower.start(now, worker)
        ask = router.borrower.ask_with_request(now, worker, router.wants(now))
        work = Work(router, worker, ask.stamp[0], name)
        self.work.append(work)
        self.send("request", router, worker, ask, work)

    def refresh(self, router: Router) -> None:
        now = self.clock(router)
        self.send_asks(router, router.borrower.refresh(now, router.wants(now)))

    def send_asks(self, router: Router, asks: Asks) -> None:
        for worker, ask in asks:
            self.send("ask", router, worker, ask)

    # ---- messages

    def send(self, kind: str, router: Router, worker: str, body: Any = None, work: Work | None = None) -> None:
        self.under_way.append(Message(kind, router, worker, body, work, self.books[worker].epoch))

    def send_grants(self, worker: str, grants: dict[str, Grant], *, but: Router | None = None) -> None:
        for name, grant in grants.items():
            for router in self.routers:  # a stream to each process of this name; an old one has its own stamps
                if router.name == name and router is not but and router.alive and router is self.latest(name):
                    self.send("grant", router, worker, grant)

    def latest(self, name: str) -> Router:
        return [router for router in self.routers if router.name == name][-1]

    def deliver(self, message: Message) -> None:
        self.under_way.remove(message)
        getattr(self, f"_{message.kind}")(message)

    def deliver_all(self) -> None:
        """Every message, in the order of sending, and those that it causes."""
        for _ in range(MAX_MESSAGES):
            if not self.under_way:
                return
            self.deliver(self.under_way[0])
        raise AssertionError(f"messages without end, such as {self.under_way[:6]}")

    def _ask(self, message: Message) -> None:
        book, ask = self.books[message.worker], message.body
        assert isinstance(ask, Ask)
        if book.is_over(ask):  # 409: the router opens another stream
            router = message.router
            if router.alive and router.borrower.holdings[message.worker].epoch == ask.stamp[0]:
                router.borrower.disconnect(self.clock(router), message.worker)
            return
        self.answer(message, book.receive(self.now, ask))

    def answer(self, message: Message, grants: dict[str, Grant]) -> None:
        """The asker's own grant goes to the process that asked; the others are pushed."""
        own = grants.pop(message.router.name, None)
        if own is not None and message.router.alive:
            self.send("grant", message.router, message.worker, own)
        self.send_grants(message.worker, grants)

    def _request(self, message: Message) -> None:
        book, work = self.books[message.worker], message.work
        assert work is not None
        self.answer(message, book.receive(self.now, message.body))
        grants = book.start(self.now, work.router.name, work.epoch)
        if grants is not None:
            work.runs = True
            self.send_grants(message.worker, grants)
        else:
            self.refused.append(work)
            self.send("done", work.router, work.worker, None, work)

    def _grant(self, message: Message) -> None:
        router = message.router
        if router.alive:
            router.borrower.receive(self.clock(router), message.worker, message.body)
            self.pump(router)

    def _done(self, message: Message) -> None:
        router, work = message.router, message.work
        assert work is not None
        if router.alive and work.known:
            work.known = False
            self.send_asks(router, router.borrower.end(self.clock(router), message.worker, message.body))
            self.pump(router)

    def _fin(self, message: Message) -> None:
        """The worker sees that a connection of a process has ended: that of one request, or of its stream."""
        if message.work is not None:
            if message.work.runs:
                self.end(message.work, answers=False)
        elif self.books[message.worker].epoch == message.book:
            grants = self.books[message.worker].disconnect(self.now, message.router.name, message.body)
            self.send_grants(message.worker, grants)

    # ---- workers

    def end(self, work: Work, *, answers: bool = True) -> None:
        """A request ends at its worker."""
        work.runs = False
        grants = self.books[work.worker].end(self.now, work.router.name, work.epoch)
        own = grants.pop(work.router.name, None)
        if answers:
            self.send("done", work.router, work.worker, own, work)
        self.send_grants(work.worker, grants)

    def running(self, worker: str) -> list[Work]:
        return [work for work in self.work if work.runs and work.worker == worker]

    def start_plain(self, worker: str) -> bool:
        """A request without an ask arrives. False: it is refused."""
        grants = self.books[worker].start_without_lease(self.now)
        if grants is None:
            return False
        self.plain[worker] += 1
        self.send_grants(worker, grants)
        return True

    def end_plain(self, worker: str) -> None:
        self.plain[worker] -= 1
        self.send_grants(worker, self.books[worker].end_without_lease(self.now))
