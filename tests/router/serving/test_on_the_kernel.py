"""The proof that the network in memory tells the truth: the same rig on uvloop and sockets of the kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from loadtests.cluster.loop import SimLoop
from services.runtime.serve import FineClockLoop
from tests.router.leaver import Client, Way, answered_whole, asking
from tests.router.rig import WORDS, FakeWorker, answer, error_of, events_of, hang, standing
from tests.runtime.rig import until
from tests.virtual import new_loop, run

pytestmark = pytest.mark.sockets
on_both = pytest.mark.parametrize("loop", [FineClockLoop, new_loop], ids=["kernel", "memory"])
Loop = Callable[[], asyncio.AbstractEventLoop]


def played(main: Callable[[], Awaitable[None]], loop: Loop) -> None:
    async def on_its_loop() -> None:
        assert isinstance(asyncio.get_running_loop(), SimLoop) == (loop is new_loop)
        await main()

    run(on_its_loop, loop)


@on_both
def test_a_whole_answer_a_stream_and_a_refusal_are_the_same_on_both(loop: Loop) -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            whole = await stand.chat()
            assert whole.json()["choices"][0]["message"]["content"] == "".join(WORDS)
            streamed = await stand.chat(stream=True)
            assert streamed.headers["content-type"].startswith("text/event-stream")
            assert events_of(streamed)[-1] == "[DONE]"
            refused = await stand.chat(model="nobody's")
            assert (refused.status_code, error_of(refused)["code"]) == (404, "model_not_found")
            assert await stand.counted() == {"served": 2, "model_not_found": 1}

    played(main, loop)


@on_both
@pytest.mark.parametrize("way", list(Way), ids=lambda way: way.value)
def test_a_client_that_leaves_is_missed_on_both(way: Way, loop: Loop) -> None:
    async def main() -> None:
        async with standing(FakeWorker(hang)) as stand:
            client = Client("leaves", way)
            await client.connect(stand.router.bound_port)
            await client.send(asking("leaves"))
            await until(lambda: stand.workers[0].running == 1, "its request at the worker")
            client.leave()
            await until(lambda: stand.workers[0].left == 1, "the worker let go")
            if way is Way.HALF:
                assert await client.read_to_end() == b""
            assert await stand.counted() == {"client_gone": 1}
            client.close()

    played(main, loop)


@on_both
def test_requests_behind_each_other_on_one_connection_are_answered_in_order_on_both(loop: Loop) -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            client = Client("pipeline", Way.FIN)
            await client.connect(stand.router.bound_port)
            await client.send(asking("one") + asking("two"))
            seen = await client.read_until(lambda seen: seen.count(b"HTTP/1.1") == 2 and answered_whole(seen))
            assert seen.index(b"x-request-id: one") < seen.index(b"x-request-id: two")
            client.close()

    played(main, loop)
