"""What the benches measure stands for as long as its block, on its own core, and is gone afterwards."""

from __future__ import annotations

import asyncio
import os

import psutil

from loadtests.bench.bare import bare
from loadtests.bench.stand import FULL, HELD, HOLD_S, chat, standing
from loadtests.cluster.usage import cores, cpu_s, rss_mb
from loadtests.load.closed import closed_number, hold


def test_a_yardstick_answers_every_line_on_the_core_of_what_is_measured() -> None:
    async def asked() -> int:
        async with bare("lines") as (port, process):
            assert os.sched_getaffinity(process.pid) == cores()[0]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"one\ntwo\n")
            assert [(await reader.readline())[-1:] for _ in range(2)] == [b"\n", b"\n"]
            writer.close()
            return process.pid

    assert not psutil.pid_exists(asyncio.run(asked()))


def test_a_router_before_a_stub_answers_and_refuses_once_it_is_full() -> None:
    async def loaded() -> int:
        async with standing(FULL) as router:
            before_s = cpu_s(router.pid)
            answers = await closed_number(router.port, [chat(router.port)], 1, 5)
            answers.only(200)
            held = await hold(router.port, [chat(router.port, "hang")] * HELD, HOLD_S)
            refusals = await closed_number(router.port, [chat(router.port)], 1, 5)
            refusals.only(429)
            assert len(held) == HELD
            assert cpu_s(router.pid) > before_s
            assert rss_mb(router.pid) > 1
            return router.pid

    affinity = os.sched_getaffinity(0)
    assert not psutil.pid_exists(asyncio.run(loaded()))
    assert os.sched_getaffinity(0) == affinity
