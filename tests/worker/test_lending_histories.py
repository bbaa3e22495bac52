"""Random histories of a worker that lends, in virtual time: asks, requests with and without one, every kind of end,
streams that open, are replaced and break, an engine that shrinks, fails and dies, and a drain.

After every step the book counts exactly the requests that are here, by process of a router; a stream is sent grants of
its own process only, in order. In the end everything has been given back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from services.runtime.errors import WeirError
from services.runtime.grantstreams import PushedGrants
from services.worker.job import Job
from services.worker.lending import Loan
from tests.virtual import run
from tests.worker.leaserig import AskingRouter
from tests.worker.rig import asking, turning
from tests.worker.test_leased_requests import SlowExecutor

STEPS = 60
SLOTS = 3


class History:
    """One random history."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.executor = SlowExecutor(SLOTS)
        self.epoch = 0
        self.routers = [self.a_process(name) for name in "abc"]
        self.streams: dict[PushedGrants, tuple[int, int]] = {}
        """The open streams, and the stamp of the grant that each was sent last."""
        self.tasks: list[asyncio.Task[None]] = []
        self.jobs: list[Job] = []
        self.ids = 0
        self.borrowed: list[Loan] = []
        self.given_back: list[Loan] = []

    def a_process(self, name: str) -> AskingRouter:
        self.epoch += 1000  # so that a process that goes on with higher epochs does not meet its successor's
        return AskingRouter(name, self.epoch)

    async def play(self) -> None:
        async with turning(slots=SLOTS, queue_size=2, executor=self.executor) as loop:
            self.loop, self.lending = loop, loop.lending
            self.watch_loans()
            for _ in range(STEPS):
                await self.a_step()
                self.check()
            await self.ends()

    def watch_loans(self) -> None:
        borrow, give_back = self.lending.borrow, self.lending.give_back

        def borrowed(sent):  # type: ignore[no-untyped-def]
            loan = borrow(sent)
            if loan is not None:
                self.borrowed.append(loan)
            return loan

        def given_back(loan: Loan) -> None:
            assert loan not in self.given_back, "a slot is given back once"
            self.given_back.append(loan)
            give_back(loan)

        self.lending.borrow = borrowed  # type: ignore[method-assign]
        self.lending.give_back = given_back  # type: ignore[method-assign]

    async def a_step(self) -> None:
        kinds = (
            self.asks, self.asks, self.sends, self.sends, self.sends_without_an_ask, self.is_cancelled, self.leaves,
            self.opens, self.breaks, self.starts_anew, self.passes, self.passes, self.passes, self.engine_changes,
        )  # fmt: skip
        step = self.chance.choice(kinds)
        await step()

    def a_router(self) -> AskingRouter:
        return self.chance.choice(self.routers)

    async def asks(self) -> None:
        keep = self.chance.choice((None, None, None, 0, 1))
        self.a_router().asks(self.lending, self.chance.randint(0, 3), keep=keep, level=self.chance.uniform(0, 40))

    async def sends(self) -> None:
        self.submit(lease=self.a_router().ask(self.chance.randint(0, 2)))

    async def sends_without_an_ask(self) -> None:
        self.submit()

    def submit(self, **fields: object) -> None:
        self.ids += 1
        id = f"r{self.chance.randint(max(0, self.ids - 4), self.ids)}"  # now and then one that is here already
        request = asking(
            id, self.chance.randint(1, 20), deadline_s=self.chance.choice((0.08, 0.4, 60.0)),
            stream=self.chance.random() < 0.5, **fields,
        )  # fmt: skip
        self.tasks.append(asyncio.ensure_future(self.submitted(request)))

    async def submitted(self, request) -> None:  # type: ignore[no-untyped-def]
        try:
            job = await self.loop.submit(request)
        except WeirError:
            return
        self.jobs.append(job)
        await job.stream.take()

    async def is_cancelled(self) -> None:
        """A handler is cancelled, while its prompt is tokenized or later, or another request asks for it."""
        running = [task for task in self.tasks if not task.done()]
        if running and self.chance.random() < 0.5:
            self.chance.choice(running).cancel()
        elif self.jobs:
            self.loop.cancel(self.chance.choice(self.jobs).id)

    async def leaves(self) -> None:
        if self.jobs:
            job = self.chance.choice(self.jobs)
            self.loop.abandon(job)
            self.lending.push_rest(job.loan)

    async def opens(self) -> None:
        try:
            self.streams[self.a_router().opens(self.lending)] = (0, 0)
        except WeirError:
            assert self.loop.draining or self.epoch > 1000 * len("abc")

    async def breaks(self) -> None:
        if self.streams:
            stream = self.chance.choice(list(self.streams))
            self.lending.close(stream)
            del self.streams[stream]

    async def starts_anew(self) -> None:
        """A process takes the place of another; the older one may be there still."""
        if self.chance.random() < 0.3:
            place = self.chance.randrange(len(self.routers))
            newer = self.a_process(self.routers[place].name)
            if self.chance.random() < 0.5 or len(self.routers) > 6:
                self.routers[place] = newer
            else:
                self.routers.append(newer)

    async def passes(self) -> None:
        await asyncio.sleep(self.chance.choice((0.0, 0.01, 0.06, 0.3, 0.8)))

    async def engine_changes(self) -> None:
        draw = self.chance.random()
        if draw < 0.3:
            self.executor.engine.slots = self.chance.randint(1, SLOTS)
        elif draw < 0.5:
            self.executor.engine.fail_next = self.chance.choice(("step", "admit"))
        elif draw < 0.7:
            self.executor.dies = True
        elif draw < 0.8:
            self.loop.drain(grace_s=0.2)

    # ---- what holds

    def check(self) -> None:
        book, loop = self.lending.book, self.loop
        assert book.running == len(loop._jobs) + loop._preparing
        held = [loan for loan in self.borrowed if loan not in self.given_back]
        assert book.running == len(held)
        counts = Counter((loan.router, loan.epoch) for loan in held)
        for lease in book.leases():
            assert lease.running == counts[lease.router, lease.epoch]
        for stream, last in list(self.streams.items()):
            if stream.is_over:
                self.lending.close(stream)
                del self.streams[stream]
            elif stream._pending is not None and self.chance.random() < 0.7:
                grant = stream.take()
                assert grant.stamp > last, "in order, and once"
                assert grant.echo[0] == stream.epoch, "for its process"
                self.streams[stream] = grant.stamp

    async def ends(self) -> None:
        await asyncio.sleep(70)
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.check()
        assert len(self.given_back) == len(self.borrowed)
        book = self.lending.book
        assert (book.running, book.promised, book.has_leases) == (0, 0, False)
        assert book.slots == (0 if self.loop.draining else self.loop._scheduler.slots)
        assert self.executor.engine.running == self.loop.running == self.loop.waiting == 0


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_the_book_counts_exactly_what_is_here_and_everything_is_given_back(seed: int) -> None:
    run(History(seed).play())
