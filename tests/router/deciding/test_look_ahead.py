"""No slot idles between two answers: where ends are predictable, the next request is sent before the last one ends."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import msgspec

from services.contracts.generate import Done, Timings
from tests.router.rig import USAGE, FakeWorker, standing
from tests.virtual import run

ANSWER_S = 0.1


def timed(starts: list[float], ends: list[float], durations_s: Any) -> Any:
    """A worker with one slot whose queue is first come, first served. It notes when a request arrives, and its end."""
    slot = asyncio.Lock()

    async def play(exchange: Any, request: Any, worker: FakeWorker) -> None:
        now = asyncio.get_running_loop().time
        arrived_at = now()
        starts.append(arrived_at)
        async with slot:
            began_at, takes_s = now(), durations_s()
            await asyncio.sleep(takes_s)
            ends.append(now())
            first_ms = 1000 * (began_at - arrived_at + takes_s / USAGE.completion_tokens)
            timings = Timings(1000 * (began_at - arrived_at), first_ms, 1000 * (now() - arrived_at))
            done = Done("stop", USAGE, timings, 1, "A weir holds.")
            await exchange.reply(200, msgspec.json.encode(done) + b"\n", content_type=b"application/x-ndjson")

    return play


def gaps_of(durations_s: Any) -> list[float]:
    """Seconds from the end of each answer to the arrival of the next request; negative if it was sent ahead."""
    starts: list[float] = []
    ends: list[float] = []

    async def main() -> None:
        async with standing(FakeWorker(timed(starts, ends, durations_s), slots=1)) as stand:
            for _ in range(15):
                answers = await asyncio.gather(*(stand.chat(max_tokens=3) for _ in range(8)))
                assert {told.status_code for told in answers} == {200}

    run(main)
    in_a_row = [at for at in range(1, len(starts)) if at % 8]
    return [starts[at] - ends[at - 1] for at in in_a_row]


def test_once_ends_are_known_the_next_request_is_at_the_worker_before_its_slot_is_free() -> None:
    gaps = gaps_of(lambda: ANSWER_S)
    assert all(gap > 0 for gap in gaps[:7]), "nothing is known yet"
    assert all(-0.05 <= gap < 0 for gap in gaps[-20:])


def test_where_answers_end_at_any_time_nothing_is_sent_ahead() -> None:
    lengths = Random(1)
    gaps = gaps_of(lambda: lengths.choice((0.02, 0.02, 0.02, 0.5)))
    assert sum(gap < 0 for gap in gaps) <= len(gaps) // 10


def test_a_request_sent_ahead_is_the_only_one_that_waits_at_a_worker() -> None:
    most = 0

    async def main() -> None:
        nonlocal most
        async with standing(FakeWorker(timed([], [], lambda: ANSWER_S), slots=1)) as stand:
            for _ in range(15):
                asked = [asyncio.create_task(stand.chat(max_tokens=3)) for _ in range(8)]
                while not all(task.done() for task in asked):
                    most = max(most, stand.workers[0].running)
                    await asyncio.sleep(0.001)

    run(main)
    assert most == 2
