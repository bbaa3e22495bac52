"""What walks a collection and acts on its members acts in the order in which they came, at every start."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from loadtests.cluster.loop import SimLoop
from services.runtime.drain import let_end
from services.runtime.keepalive import Pool
from services.runtime.ordered import OrderedSet
from services.runtime.upstream import UpstreamError
from tests.virtual import run as run_in_virtual_time

MANY = 200  # so that an order by address would hardly ever be this one


def test_an_ordered_set_is_walked_in_the_order_in_which_its_members_came() -> None:
    names = [f"name {number}" for number in range(MANY)]
    Random(1).shuffle(names)
    members: OrderedSet[str] = OrderedSet()
    for name in names:
        members.add(name)
    members.add(names[0])  # keeps its place
    members.discard(names[1])
    members.discard("nobody")
    assert list(members) == [names[0], *names[2:]]


def test_what_is_cut_at_the_end_of_the_grace_is_cut_in_the_order_in_which_it_began() -> None:
    cut: list[int] = []

    async def last_for_ever(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cut.append(number)

    async def main() -> None:
        tasks = [asyncio.create_task(last_for_ever(number)) for number in range(MANY)]
        quick = asyncio.create_task(asyncio.sleep(0))
        await let_end([*tasks[:50], quick, *tasks[50:]], 1.0)
        assert not quick.cancelled()

    run_in_virtual_time(main())
    assert cut == list(range(MANY))


class _Wire:
    """A transport to nowhere."""

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        pass


class _WiredLoop(SimLoop):
    async def create_connection(self, factory: Any, *args: Any, **kwargs: Any) -> Any:
        protocol = factory()
        protocol.connection_made(_Wire())
        return None, protocol


def test_requests_to_a_server_that_is_lost_fail_in_the_order_in_which_they_were_sent() -> None:
    failed: list[int] = []

    async def main() -> None:
        pool = Pool("http://nowhere:1", max_connections=MANY)

        async def ask(number: int) -> None:
            try:
                await pool.request(b"GET", b"/")
            except UpstreamError:
                failed.append(number)

        asking = [asyncio.create_task(ask(number)) for number in range(MANY)]
        await asyncio.sleep(1.0)
        pool.fail_unanswered("it has gone")
        await asyncio.gather(*asking)

    with asyncio.Runner(loop_factory=_WiredLoop) as runner:
        runner.run(main())
    assert failed == list(range(MANY))
