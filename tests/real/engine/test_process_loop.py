"""The engine loop on an engine that really is another process, and really is killed."""

from __future__ import annotations

import os
import signal

from services.contracts.generate import Done
from services.core.outcome import Outcome
from services.worker.stream import Dropped
from tests.real.engine.process_rig import asking, is_buried, ledger, odd_host, run, until
from tests.worker.rig import read, turning


def test_requests_share_its_steps_and_each_gets_its_whole_answer(tmp_path):
    async def scenario():
        async with turning(executor=odd_host(tmp_path, slots=4), slots=4, queue_size=12) as loop:
            jobs = [await loop.submit(asking(f"r{number}", tokens=5 + number)) for number in range(16)]
            for number, job in enumerate(jobs):
                texts = []
                while pieces := await job.stream.take():
                    texts += pieces
                assert isinstance(job.stream.ending, Done)
                assert job.stream.ending.usage.completion_tokens == 5 + number
                assert ledger(tmp_path).count(f"token r{number}") == 5 + number
            assert max(job.batch_size for job in jobs) > 1
            assert (loop.running, loop.waiting) == (0, 0)

    run(scenario)


def test_one_that_leaves_frees_its_slot_while_the_step_still_runs(tmp_path):
    async def scenario():
        async with turning(executor=odd_host(tmp_path, slots=1), slots=1) as loop:
            leaver = await loop.submit(asking("hold-in-step", tokens=100))
            await until((tmp_path / "held").exists)
            follower = await loop.submit(asking("follower"))
            assert loop.cancel("hold-in-step")
            assert loop.running == 0
            (tmp_path / "open").touch()
            assert isinstance((await read(follower))[1], Done)
            assert leaver.ticket.outcome is Outcome.CLIENT_GONE
            assert ledger(tmp_path).count("token hold-in-step") == 1

    run(scenario)


def test_a_kill_fails_those_that_run_hands_back_those_that_wait_and_a_new_one_serves(tmp_path):
    async def scenario():
        executor = odd_host(tmp_path, slots=1)
        async with turning(executor=executor, slots=1) as loop:
            ran = await loop.submit(asking("hold-in-step"))
            await until((tmp_path / "held").exists)
            waited, pid = await loop.submit(asking("waits")), executor.pid
            os.kill(pid, signal.SIGKILL)
            ending = (await read(ran))[1]
            assert isinstance(ending, Dropped)
            assert (ending.outcome, ending.code) == (Outcome.INTERNAL, "engine_died")
            assert "killed by SIGKILL" in ending.message
            assert (await read(waited))[1].outcome is Outcome.NO_CAPACITY
            await until(lambda: loop.alive)
            assert is_buried(pid)
            (tmp_path / "open").touch()
            assert isinstance((await read(await loop.submit(asking("hold-in-step"))))[1], Done)  # the same id

    run(scenario)


def test_one_that_dies_while_nobody_asks_is_replaced_before_anybody_does(tmp_path):
    async def scenario():
        executor = odd_host(tmp_path)
        async with turning(executor=executor) as loop:
            assert isinstance((await read(await loop.submit(asking("a"))))[1], Done)
            pid = executor.pid
            os.kill(pid, signal.SIGKILL)
            await until(lambda: executor.pid not in (pid, None) and loop.alive)
            assert isinstance((await read(await loop.submit(asking("a"))))[1], Done)

    run(scenario)


def test_a_loop_that_stops_in_the_middle_of_a_step_leaves_no_process(tmp_path):
    async def scenario():
        executor = odd_host(tmp_path)
        async with turning(executor=executor) as loop:
            job = await loop.submit(asking("hold-in-step"))
            await until((tmp_path / "held").exists)
            pid = executor.pid
        assert is_buried(pid)
        assert job.ticket.outcome is Outcome.DRAINING

    run(scenario)
