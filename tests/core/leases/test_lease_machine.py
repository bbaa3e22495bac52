"""Whatever is lost, late, repeated, out of order, broken, restarted or resized: no slot is promised twice.

After every step:
    I1   what a worker has promised is at most its slots; after it has shrunk it only falls
    I1'  what a router believes, less the ends that it does not know yet, is at most what the worker has promised to it
    I2   a router starts only within a lease that lives, and at most as many run at a worker as it has slots
    P    a request that was sent within a lease is never refused, unless the lease was cut short: by a broken
         connection, a crash, a worker's restart, a partition
Then everything is healed, and z holds: no slot is idle while a router waits for it, and all work is done.
"""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.core.leases.book import LeaseBook
from services.core.leases.times import DRIFT, LINGER_S, MAX_TTL_S, WANT_TTL_S
from tests.core.leases.network import CLASSES, Network, Router

STEP_S = 0.05
RATES = (1.0, 1.0 + 0.8 * DRIFT, 1.0 - 0.8 * DRIFT)
picks = st.integers(0, 10**6)


class Leases(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.net = Network(1, 1, 1)
        self.fragile = False
        self.ceiling: dict[str, int] = {}

    @initialize(
        routers=st.integers(1, 3),
        workers=st.integers(1, 2),
        slots=st.integers(1, 4),
        skewed=st.booleans(),
        fragile=st.booleans(),
    )
    def open(self, routers: int, workers: int, slots: int, skewed: bool, fragile: bool) -> None:
        """`fragile`: connections break and processes die, so that some ends stay unknown."""
        self.fragile = fragile
        self.net = Network(routers, workers, slots, RATES if skewed else (1.0,))

    def a_router(self, pick: int) -> Router:
        alive = [router for router in self.net.routers if router.alive]
        return alive[pick % len(alive)]

    def excuse(self, router: str | None, worker: str | None, *, unknown: bool = False) -> None:
        """From now on a request of these may be refused. `unknown`: nobody knows what became of one, so that their
        router may believe in a slot that it occupies.
        """
        for name in {each.name for each in self.net.routers} if router is None else {router}:
            for place in self.net.books if worker is None else [worker]:
                self.net.excused.add((name, place))
                if unknown:
                    self.net.unknown.add((name, place))

    # ---- what happens

    @rule(
        seed=st.integers(0, 10**9),
        steps=st.integers(1, 80),
        lossy=st.booleans(),
        busy=st.sampled_from([0.02, 0.2]),
        refreshed=st.sampled_from([1.0, 0.5, 0.0]),
    )
    def traffic(self, seed: int, steps: int, lossy: bool, busy: float, refreshed: float) -> None:
        """Many small events in a random order: work, messages, ends, and time. `refreshed`: how often routers do what
        they do now and then.
        """
        chance = Random(seed)
        net = self.net
        for _ in range(steps):
            draw, pick = chance.random(), chance.randrange(10**6)
            if draw < busy:
                net.arrive(self.a_router(pick), chance.choice(list(CLASSES)), chance.randint(1, 3), pick % 4 == 0)
            elif draw < 0.7 and net.under_way:
                message = net.under_way[
                    min(pick % 3, len(net.under_way) - 1) if draw < 0.6 else pick % len(net.under_way)
                ]
                if lossy and draw > 0.67 and message.kind in ("ask", "grant"):
                    net.under_way.remove(message)
                elif lossy and draw > 0.64 and message.kind in ("ask", "grant"):
                    net.send(message.kind, message.router, message.worker, message.body)
                else:
                    net.deliver(message)
            elif 0.7 <= draw < 0.72:
                self.requests_without_an_ask_arrive(pick, 1)
            elif 0.72 <= draw < 0.75:
                self.a_request_without_an_ask_ends(pick)
            elif draw < 0.85:
                self.requests_end(pick, 1)
            else:
                self.time_passes(chance.uniform(0.0, 0.06), chance.random() < refreshed)
            self.promises_hold()
            self.no_router_believes_more_than_it_was_promised()
            self.what_was_sent_within_a_lease_is_not_refused()

    @rule(pick=picks, n=st.integers(1, 6), name=st.sampled_from(list(CLASSES)), light=st.booleans())
    def work_arrives(self, pick: int, n: int, name: str, light: bool) -> None:
        self.net.arrive(self.a_router(pick), name, n, light)

    @rule(pick=picks, times=st.integers(1, 5))
    def messages_arrive_in_any_order(self, pick: int, times: int) -> None:
        for turn in range(times):
            if self.net.under_way:
                self.net.deliver(self.net.under_way[(pick >> turn) % len(self.net.under_way)])
                self.promises_hold()

    @rule()
    def all_messages_arrive(self) -> None:
        self.net.deliver_all()

    @precondition(lambda self: self.net.under_way)
    @rule(pick=picks)
    def a_message_is_repeated(self, pick: int) -> None:
        repeatable = [message for message in self.net.under_way if message.kind in ("ask", "grant")]
        if repeatable:
            message = repeatable[pick % len(repeatable)]
            self.net.send(message.kind, message.router, message.worker, message.body)

    @precondition(lambda self: self.net.under_way)
    @rule(pick=picks)
    def a_message_is_lost(self, pick: int) -> None:
        message = self.net.under_way[pick % len(self.net.under_way)]
        if (
            message.kind == "fin"
            or (message.work is not None and not self.fragile)
            or (message.kind == "done" and message.body is None)
        ):
            return  # the kernel finds out in the end
        self.net.under_way.remove(message)
        if message.work is not None:  # a request or its answer: the router sees a broken connection
            self.excuse(message.router.name, message.worker, unknown=True)
            self.net.send("done", message.router, message.worker, None, message.work)

    @rule(pick=picks, times=st.integers(1, 4))
    def requests_end(self, pick: int, times: int) -> None:
        for turn in range(times):
            running = [work for work in self.net.work if work.runs]
            if running:
                self.net.end(running[(pick >> turn) % len(running)])

    @rule(pick=picks, times=st.integers(1, 3))
    def requests_without_an_ask_arrive(self, pick: int, times: int) -> None:
        """They are refused while a router has a lease and no slot is free, and only then."""
        worker = list(self.net.books)[pick % len(self.net.books)]
        book = self.net.books[worker]
        for _ in range(times):
            book.lapse(self.net.now)
            is_bounded, free = book.has_leases, book.free
            assert self.net.start_plain(worker) == (free > 0 or not is_bounded)
            if not is_bounded:
                self.ceiling[worker] = max(self.ceiling.get(worker, 0), book.promised)

    @rule(pick=picks)
    def a_request_without_an_ask_ends(self, pick: int) -> None:
        worker = list(self.net.books)[pick % len(self.net.books)]
        if self.net.plain[worker]:
            self.net.end_plain(worker)

    @precondition(lambda self: self.fragile)
    @rule(pick=picks)
    def a_connection_breaks(self, pick: int) -> None:
        running = [work for work in self.net.work if work.runs and work.known]
        if running:
            work = running[pick % len(running)]
            self.excuse(work.router.name, work.worker, unknown=True)
            self.net.send("done", work.router, work.worker, None, work)
            self.net.send("fin", work.router, work.worker, None, work)

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.1, 0.3, 0.7, 1.0, 4.0]), refreshed=st.booleans())
    def time_passes(self, seconds: float, refreshed: bool) -> None:
        self.net.now += seconds
        for worker, book in self.net.books.items():
            for lease in book.leases():
                if lease.lapses_at < self.net.now:
                    self.excuse(lease.router, worker)
            if refreshed:
                self.net.send_grants(worker, book.expire(self.net.now))
        for router in self.net.routers:
            if router.alive and refreshed:
                self.net.refresh(router)
                self.net.pump(router)

    @rule(pick=picks)
    def a_stream_ends(self, pick: int) -> None:
        router = self.a_router(pick)
        worker = list(self.net.books)[pick % len(self.net.books)]
        self.excuse(router.name, worker)
        self.net.send("fin", router, worker, router.borrower.holdings[worker].epoch)
        router.borrower.disconnect(self.net.clock(router), worker)

    @precondition(lambda self: self.fragile)
    @rule(pick=picks, quietly=st.booleans())
    def a_router_dies_and_another_starts(self, pick: int, quietly: bool) -> None:
        """Quietly: as when its host is gone. Else each of its connections is closed."""
        router = self.a_router(pick)
        router.alive = False
        self.excuse(router.name, None, unknown=True)
        for worker in self.net.books:
            if not quietly:
                self.net.send("fin", router, worker, router.borrower.holdings[worker].epoch)
        for work in self.net.work:
            if work.router is router and work.runs and not quietly:
                self.net.send("fin", router, work.worker, None, work)
        self.net.begin(router.name, router.rate)

    @precondition(lambda self: self.fragile)
    @rule(pick=picks)
    def two_routers_have_one_name(self, pick: int) -> None:
        router = self.a_router(pick)
        if len(self.net.routers) < 8:
            self.excuse(router.name, None, unknown=True)
            self.net.begin(router.name, router.rate)

    @rule(pick=picks, slots=st.integers(0, 4))
    def a_worker_restarts(self, pick: int, slots: int) -> None:
        worker = list(self.net.books)[pick % len(self.net.books)]
        self.excuse(None, worker)
        for work in self.net.running(worker):
            work.runs = False
            self.net.send("done", work.router, worker, None, work)
        self.net.plain[worker] = 0
        self.net.books[worker] = LeaseBook(next(self.net.epochs), slots)
        for router in self.net.routers:
            router.borrower.disconnect(self.net.clock(router), worker)
        self.ceiling.pop(worker, None)

    @rule(pick=picks, slots=st.integers(0, 5))
    def a_worker_is_resized(self, pick: int, slots: int) -> None:
        worker = list(self.net.books)[pick % len(self.net.books)]
        book = self.net.books[worker]
        self.ceiling[worker] = max(book.promised, slots)
        self.net.send_grants(worker, book.resize(self.net.now, slots))

    # ---- what holds

    @invariant()
    def promises_hold(self) -> None:
        for worker, book in self.net.books.items():
            ceiling = self.ceiling[worker] = max(book.slots, min(self.ceiling.get(worker, 0), book.promised))
            assert book.promised <= ceiling, "I1"
            assert len(self.net.running(worker)) + self.net.plain[worker] == book.running <= book.promised, "I2"

    @invariant()
    def no_router_believes_more_than_it_was_promised(self) -> None:
        for router in self.net.routers:
            for worker, book in self.net.books.items():
                if not router.alive or (router.name, worker) in self.net.unknown:
                    continue
                holding = router.borrower.holdings[worker]
                unknown = sum(
                    message.kind == "done" and message.router is router and message.worker == worker
                    for message in self.net.under_way
                )
                lease = next((lease for lease in book.leases() if lease.router == router.name), None)
                promised = lease.promised if lease is not None else 0
                assert holding.may(self.net.clock(router)) - unknown <= promised, (
                    f"I1': {holding!r} at {self.net.clock(router):g}, {unknown} ends unknown, {book!r}"
                )

    @invariant()
    def what_was_sent_within_a_lease_is_not_refused(self) -> None:
        refused = [(work.router.name, work.worker) for work in self.net.refused]
        assert set(refused) <= self.net.excused, "P"

    # ---- healing

    def teardown(self) -> None:
        net = self.net
        for book in net.books.values():
            if not book.slots:
                book.resize(net.now, 1)
        for router in net.routers:
            if router.alive and router is not net.latest(router.name):
                router.alive = False
        for work in net.work:
            if work.runs and not work.router.alive:
                net.send("fin", work.router, work.worker, None, work)
        calm_s = MAX_TTL_S * 1.1 + WANT_TTL_S
        began = net.now
        while net.now - began < calm_s + LINGER_S:
            self.step(judged=net.now - began > calm_s)
        steps = 0
        while any(router.alive and router.waits for router in net.routers):
            self.step(judged=True)
            steps += 1
            assert steps < 5000, "all work is done in the end"

    def step(self, *, judged: bool) -> None:
        """All messages arrive at once, and each request ends at the end of its step."""
        net = self.net
        net.deliver_all()
        for worker, book in net.books.items():
            net.send_grants(worker, book.expire(net.now))
        for router in net.routers:
            if router.alive:
                net.refresh(router)
                net.pump(router)
        net.deliver_all()
        self.promises_hold()
        waits = any(router.alive and router.waits for router in net.routers)
        for book in net.books.values():
            assert not (judged and waits and book.running < book.slots), f"z: {book!r} has an idle slot: {net.routers}"
        for worker, count in net.plain.items():
            for _ in range(count):
                net.end_plain(worker)
        for work in [work for work in net.work if work.runs]:
            net.end(work)
        net.work = [work for work in net.work if work.runs or work.known]
        net.now += STEP_S


Leases.TestCase.settings = settings(max_examples=150, stateful_step_count=20, deadline=None)
TestLeases: Any = Leases.TestCase
