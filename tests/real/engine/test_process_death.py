"""However the process of an engine ends, stands still or lies, the worker knows, and has a new one if it wants."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from loadtests.cluster.processes import freeze
from services.runtime.serve import FineClockLoop
from services.worker.engine_executor import EngineDied, EngineUnusable
from services.worker.engine_wire import MAX_FRAME_BYTES, Simulated
from services.worker.process import EngineProcess
from tests.real.engine.process_rig import (
    START_WITHIN_S,
    admitted,
    asking,
    is_buried,
    is_gone,
    odd,
    odd_host,
    run,
    serves,
    until,
)  # fmt: skip

LOOPS = [asyncio.new_event_loop, FineClockLoop]


def test_killed_before_it_is_ready(tmp_path):
    async def scenario():
        folder = tmp_path / "held"
        folder.mkdir()
        executor = odd_host(folder)
        starting = asyncio.create_task(executor.start())
        await until((folder / "held").exists)
        pid = executor.pid
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineUnusable, match="ended while it was being created: its process was killed by SIGKILL"):
            await starting
        assert is_buried(pid)
        (folder / "open").touch()
        await executor.restart()
        assert await serves(executor)
        await executor.stop()

    run(scenario)


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_killed_while_it_rests(loop_factory, tmp_path):
    async def scenario():
        async with odd(tmp_path) as executor:
            left_over, told = await executor.prepare(asking("left-over")), []
            executor.on_death = lambda: told.append(executor.died)
            assert executor.died == ""
            os.kill(executor.pid, signal.SIGKILL)
            await until(lambda: told)
            assert told == ["its process was killed by SIGKILL"]
            for attempt in (executor.prepare(asking("a")), executor.step()):
                with pytest.raises(EngineDied, match="killed by SIGKILL"):
                    await attempt
            executor.rest()
            executor.drop(left_over)
            await executor.restart()
            assert executor.died == ""
            assert await serves(executor)
            with pytest.raises(RuntimeError, match="has not prepared it"):
                executor.admit(left_over)  # of the old process
            await executor.restart()
            await executor.stop()
            assert len(told) == 1  # these ends were asked for

    run(scenario, loop_factory)


def test_killed_while_it_prepares(tmp_path):
    async def scenario():
        async with odd(tmp_path) as executor:
            preparing = [asyncio.create_task(executor.prepare(asking("hold-in-prepare"))) for _ in range(3)]
            await until((tmp_path / "held").exists)
            os.kill(executor.pid, signal.SIGKILL)
            for each in preparing:
                with pytest.raises(EngineDied, match="killed by SIGKILL"):
                    await each
            await executor.restart()
            assert await serves(executor)

    run(scenario)


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_killed_while_it_computes(loop_factory, tmp_path):
    async def scenario():
        async with odd(tmp_path, slots=1) as executor:
            await admitted(executor, "hold-in-step")
            step = asyncio.create_task(executor.step())
            await until((tmp_path / "held").exists)
            pid = executor.pid
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(EngineDied, match="killed by SIGKILL"):
                await step
            assert is_buried(pid)
            await executor.restart()
            assert executor.running == 0
            assert await serves(executor)

    run(scenario, loop_factory)


@pytest.mark.parametrize(("how", "status"), [("exit-in-step", 3), ("die-in-step", os.EX_SOFTWARE)])
def test_one_that_ends_itself_tells_its_status(how, status, tmp_path):
    async def scenario():
        async with odd(tmp_path) as executor:
            await admitted(executor, how)
            with pytest.raises(EngineDied, match=f"ended with status {status}"):
                await executor.step()

    run(scenario)


def test_a_process_that_stands_still_is_replaced(tmp_path):
    async def scenario():
        async with odd(tmp_path) as executor:
            await admitted(executor, "a")
            pid = executor.pid
            freeze(pid)
            step, preparing = asyncio.create_task(executor.step()), asyncio.create_task(executor.prepare(asking("b")))
            _, pending = await asyncio.wait([step, preparing], timeout=0.1)
            assert pending == {step, preparing}
            step.cancel()  # as a loop does that has waited long enough
            await executor.restart()
            assert is_buried(pid)
            assert executor.pid != pid
            with pytest.raises(EngineDied):
                await preparing
            assert await serves(executor)

    run(scenario)


def test_a_late_answer_of_the_old_process_is_not_taken_for_the_new_ones(tmp_path):
    async def scenario():
        async with odd(tmp_path) as executor:
            old = [await admitted(executor, f"old-{number}") for number in range(3)]
            step = asyncio.create_task(executor.step())
            await asyncio.sleep(0)
            step.cancel()
            await until(lambda: executor._pending.done())  # the answer is here, and nobody waited for it
            await executor.restart()
            new = await admitted(executor, "new")
            taken = await executor.step()
            assert (taken.batch_size, [owner for owner, _ in taken.tokens]) == (1, [new])
            assert [each.completion_tokens for each in old] == [0, 0, 0]

    run(scenario)


def test_a_step_that_nobody_waited_for_is_the_next_ones_answer(tmp_path):
    async def scenario():
        async with odd(tmp_path) as executor:
            sequence = await admitted(executor, "hold-in-step")
            step = asyncio.create_task(executor.step())
            await until((tmp_path / "held").exists)
            step.cancel()
            await asyncio.wait([step])
            (tmp_path / "open").touch()
            taken = [await executor.step(), await executor.step()]
            assert [[owner for owner, _ in each.tokens] for each in taken] == [[sequence], [sequence]]
            assert sequence.completion_tokens == 2

    run(scenario)


def test_restarting_twice_and_a_start_that_fails_leave_one_process_or_none(tmp_path):
    async def scenario():
        executor = odd_host(tmp_path)
        await executor.start()
        pids = [executor.pid]
        for _ in range(2):
            await executor.restart()
            pids.append(executor.pid)
        assert [is_buried(pid) for pid in pids] == [True, True, False]
        (tmp_path / "ledger").unlink()
        tmp_path.joinpath("ledger").mkdir()  # it cannot be made any more
        with pytest.raises(EngineUnusable, match="IsADirectoryError"):
            await executor.restart()
        assert executor.pid is None
        assert is_buried(pids[-1])
        with pytest.raises(EngineDied, match="there is no engine"):
            await executor.step()
        await executor.stop()

    run(scenario)


def test_a_start_that_is_cancelled_leaves_nothing_once_stopped(tmp_path):
    async def scenario():
        folder = tmp_path / "held"
        folder.mkdir()
        executor = odd_host(folder)
        starting = asyncio.create_task(executor.start())
        await until((folder / "held").exists)
        pid = executor.pid
        starting.cancel()
        await asyncio.wait([starting])
        await executor.stop()
        assert is_buried(pid)

    run(scenario)


LIAR = """
import os, socket, subprocess, sys
from services.worker import engine_wire as wire
from services.worker.engine import Expected
import msgspec
connection = socket.socket(fileno=int(sys.argv[2]))
decoder, frames = msgspec.msgpack.Decoder(wire.Question), wire.Frames()
state = wire.EngineState(0, 0.0, 2, 1000)
lies = {
    "bytes": b"\\xff\\xff\\xff\\xff what",
    "giant": (2**24 + 1).to_bytes(4, "big"),
    "text": (5).to_bytes(4, "big") + b"hello",
    "half": (100).to_bytes(4, "big") + b"half of it",
    "nothing": b"",
}
while True:
    for body in frames.feed(connection.recv(65536)):
        match wire.unpack(decoder, body):
            case wire.Start() as start:
                if sys.argv[1] == "at-once":
                    connection.sendall(lies["text"])
                    continue
                ready = wire.Ready(start.number, "liar", "m", 1000, Expected(), state, "honest")
                if sys.argv[1] == "slowly":
                    for byte in wire.frame(ready):
                        connection.sendall(bytes([byte]))
                else:
                    connection.sendall(wire.frame(ready))
            case wire.Prepare() as prepare:
                if sys.argv[1] == "wrong-kind":
                    connection.sendall(wire.frame(wire.Freed(prepare.number, state)))
                connection.sendall(wire.frame(wire.Prepared(prepare.number, 3, 3, 4)))
            case wire.StepRequest() as request if sys.argv[1] == "stranger":
                result = wire.StepResult(request.number, 0.1, 1, 0, [(4711, "x", 1)], [], [], [], state)
                connection.sendall(wire.frame(result))
            case wire.StepRequest() as request if sys.argv[1] == "old-number":
                result = wire.StepResult(request.number - 1, 0.1, 1, 0, [], [], [], [], state)
                connection.sendall(wire.frame(result))
                os._exit(5)
            case wire.StepRequest() as request if sys.argv[1] == "heir":
                subprocess.Popen(["cat"], stdin=connection, stdout=subprocess.DEVNULL)  # it holds the socket open
                os._exit(6)
            case wire.StepRequest():
                connection.sendall(lies[sys.argv[1]])
                if sys.argv[1] in ("half", "nothing"):
                    os._exit(4)
"""


def liar(kind: str) -> EngineProcess:
    return EngineProcess(Simulated(), start_within_s=START_WITHIN_S, command=[sys.executable, "-c", LIAR, kind])


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("bytes", f"it sent a frame of 4294967295 bytes; at most {MAX_FRAME_BYTES}"),
        ("giant", f"it sent a frame of {MAX_FRAME_BYTES + 1} bytes; at most {MAX_FRAME_BYTES}"),
        ("text", "it sent 5 bytes that are no message"),
        ("half", "ended with status 4"),
        ("nothing", "ended with status 4"),
        ("old-number", "ended with status 5"),
        ("heir", "ended with status 6"),
        ("stranger", "it sent a StepResult that answers nothing"),
    ],
)
def test_one_that_does_not_speak_as_it_should_is_ended(kind, why):
    async def scenario():
        executor = liar(kind)
        await executor.start()
        assert executor.name == "liar"
        pid = executor.pid
        await admitted(executor, "a")
        with pytest.raises(EngineDied, match=why):
            await executor.step()
        await until(lambda: is_buried(pid))
        with pytest.raises(EngineDied, match=why):
            await executor.step()
        await executor.stop()

    run(scenario)


def test_an_answer_of_the_wrong_kind_is_the_end_of_it():
    async def scenario():
        executor = liar("wrong-kind")
        await executor.start()
        with pytest.raises(EngineDied, match="it sent a Freed that answers nothing"):
            await executor.prepare(asking("a"))
        await until(lambda: executor.pid is None)
        await executor.stop()

    run(scenario)


def test_garbage_instead_of_ready_is_an_engine_that_cannot_be_made():
    async def scenario():
        executor = liar("at-once")
        with pytest.raises(EngineUnusable, match="it sent 5 bytes that are no message"):
            await executor.start()
        assert executor.pid is None

    run(scenario)


def test_a_message_may_come_byte_by_byte():
    async def scenario():
        executor = liar("slowly")
        await executor.start()
        assert executor.description == "honest"
        await executor.stop()

    run(scenario)


PARENT = """
import asyncio, sys
from pathlib import Path
from services.worker.process import EngineProcess
from tests.real.engine.process_rig import admitted, odd_host

async def main(folder, moment):
    host = odd_host(folder)
    starting = asyncio.create_task(host.start())
    while host.pid is None:
        await asyncio.sleep(0.001)
    if moment != "making":
        await starting
    if moment == "step":
        await admitted(host, "hold-in-step")
        running = asyncio.create_task(host.step())
    if moment in ("step", "making"):
        while not (folder / "held").exists():
            await asyncio.sleep(0.001)
    print(host.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.parametrize("moment", ["making", "rest", "step"])
def test_a_worker_that_is_killed_leaves_no_engine_behind(moment, tmp_path):
    async def scenario():
        folder = tmp_path / "held" if moment == "making" else tmp_path
        folder.mkdir(exist_ok=True)
        words = [sys.executable, "-c", PARENT, str(folder), moment]
        parent = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
        assert parent.stdout is not None
        try:
            pid = int(await parent.stdout.readline())
            assert not is_gone(pid)
        finally:
            parent.kill()
            await parent.communicate()
        await until(lambda: is_gone(pid))

    run(scenario)


def test_an_engine_leaves_by_itself_in_the_middle_of_a_step_when_nobody_is_at_the_other_end(tmp_path):
    async def scenario():
        async with odd(tmp_path) as executor:
            await admitted(executor, "hold-in-step")
            step = asyncio.create_task(executor.step())
            await until((tmp_path / "held").exists)
            executor._link._transport.abort()
            with pytest.raises(EngineDied, match="ended with status 0"):  # not: killed
                await step

    run(scenario)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a process when its parent is gone")
def test_a_worker_that_is_killed_leaves_no_engine_behind_that_was_stopped(tmp_path):
    async def scenario():
        words = [sys.executable, "-c", PARENT, str(tmp_path), "rest"]
        parent = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
        assert parent.stdout is not None
        pid = int(await parent.stdout.readline())
        freeze(pid)
        parent.kill()
        await parent.communicate()
        await until(lambda: is_gone(pid))

    run(scenario)


def test_an_engine_whose_output_nobody_reads_leaves_all_the_same(tmp_path):
    """Its streams are the dead worker's: a pipe that is full and has no reader must not hold it."""

    async def scenario():
        words = [sys.executable, "-c", PARENT, str(tmp_path), "step"]
        parent = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert parent.stdout is not None
        pid = int(await parent.stdout.readline())
        os.set_blocking(parent_stderr := os.open(f"/proc/{pid}/fd/2", os.O_WRONLY), False)
        try:
            while True:
                os.write(parent_stderr, b"x" * 4096)
        except BlockingIOError:
            pass
        finally:
            os.close(parent_stderr)
            parent.kill()
        await until(lambda: is_gone(pid))
        await parent.communicate()

    run(scenario)
