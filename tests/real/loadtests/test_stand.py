"""The stand's processes: they start, answer, and leave nothing behind, however the run ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadtests.cluster import readings
from loadtests.cluster.meters import Meter
from loadtests.cluster.processes import Process, StandError, free_ports, freeze, get, python, until_ready
from loadtests.cluster.stand import Shape, Stand, key_of, stand
from loadtests.load import capacity
from loadtests.load.client import Client
from loadtests.load.ledger import ON_TIME
from loadtests.load.plan import Plan, Step, Tenant
from loadtests.paths import ROOT
from loadtests.scenarios.distributions import constant

SLEEPER = "import time; time.sleep(60)"


def alive(pid: int) -> bool:
    """Whether it still runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def until(condition, what: str) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def test_ports_differ_and_are_free() -> None:
    assert len(set(free_ports(20))) == 20


def test_no_setting_of_the_caller_reaches_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_QUEUE_SIZE", "1")
    child = Process("child", python("-c", "import os; print(sorted(os.environ))"), {"MINE": "1"}, tmp_path)
    child.start()
    until(lambda: not child.running, "the child did not end")
    said = child.last_words()
    assert "MINE" in said
    assert "MAX_QUEUE_SIZE" not in said


def test_a_child_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    child = Process("child", python("-c", "raise SystemExit('no port is free')"), {}, tmp_path)
    child.start()
    with pytest.raises(StandError, match="no port is free"):
        asyncio.run(until_ready(child, f"http://127.0.0.1:{free_ports(1)[0]}/"))


def test_a_frozen_child_can_be_stopped(tmp_path: Path) -> None:
    child = Process("child", python("-c", SLEEPER), {}, tmp_path)
    child.start()
    freeze(child.pid)
    asyncio.run(child.stop())
    assert not child.running


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_a_killed_run_takes_its_children_with_it(tmp_path: Path) -> None:
    program = (
        "import pathlib, time\n"
        "from loadtests.cluster.processes import Process, python\n"
        f"child = Process('child', python('-c', {SLEEPER!r}), {{}}, pathlib.Path({str(tmp_path)!r}))\n"
        "child.start(); print(child.pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.send_signal(signal.SIGKILL)
    until(lambda: not alive(pid), "the child outlived its parent")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_stops_what_it_started(tmp_path: Path, number: signal.Signals) -> None:
    program = (
        "import asyncio, pathlib, signal\n"
        "from loadtests.cluster.processes import Process, python, run\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "async def work():\n"
        f"    child = Process('child', python('-c', {SLEEPER!r}), {{}}, pathlib.Path({str(tmp_path)!r}))\n"
        "    child.start()\n"
        "    try:\n"
        "        print(child.pid, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "    finally:\n"
        "        await child.stop()\n"
        "        print('stopped', flush=True)\n"
        "run(work())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(number)
        assert parent.stdout.readline() == "stopped\n"
        assert parent.wait(30) == 130
    assert not alive(pid)


def one_tenant(load_per_s: float) -> Plan:
    tenant = Tenant(
        "a", (Step(0, load_per_s),), answer_tokens=constant(2), deadline_ms=20_000, key=key_of("a"), arrivals="paced"
    )  # fmt: skip
    return Plan(seconds=1, tenants=(tenant,), warmup_s=0, cooldown_s=0)


async def read_at_rest(made: Stand) -> readings.Readings:
    """Once its worker has noticed the end of all that it had been asked."""
    (worker,) = made.workers
    while b"weir_worker_inflight 0.0" not in await asyncio.to_thread(get, worker.metrics_url):
        await asyncio.sleep(0.02)
    return await readings.read(made)


def test_a_stand_measures_answers_counts_and_leaves_nothing_behind() -> None:
    async def played() -> tuple[list[int], Path]:
        async with stand(Shape(workers=1, slots=2, step_ms=5, answer_tokens=2), ["a", "b"]) as made:
            measured = await capacity.measure(made, seconds=1.5, warm_up_s=0.2)
            assert 0 < measured.per_s <= 2 / 0.009  # two slots; a step lasts 4.5 ms at least
            assert measured.tokens_per_s == pytest.approx(2 * measured.per_s)
            before = await read_at_rest(made)
            ledger = await Client(one_tenant(30), made.url).run()
            assert {row.ending for row in ledger.rows} == {ON_TIME}
            used = readings.between(before, await read_at_rest(made), Meter(), ledger.tries)
            assert used.meter.requests == len(ledger.rows)
            assert used.miscounted == {}
            assert used.cpu.wall_s > 0.9
            return [server.process.pid for server in made.servers], made.folder

    pids, folder = asyncio.run(played())
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)
    assert not folder.exists()


def test_the_capacity_of_workers_that_do_not_answer_is_an_error_and_no_number() -> None:
    async def played() -> None:
        async with stand(Shape(workers=1, slots=2), ["a"], router=False) as made:
            made.workers[0].process.kill()
            with pytest.raises(RuntimeError, match="capacity"):
                await capacity.measure(made, seconds=0.2, warm_up_s=0.2)

    asyncio.run(played())


def test_a_worker_can_be_killed_and_started_again(tmp_path: Path) -> None:
    child = Process("child", python("-c", SLEEPER), {}, tmp_path)
    child.start()
    first = child.pid
    child.kill()
    assert not child.running
    child.start()
    assert child.running
    assert child.pid != first
    asyncio.run(child.stop())


def test_a_process_that_was_never_started_has_no_pid(tmp_path: Path) -> None:
    with pytest.raises(StandError, match="not been started"):
        _ = Process("child", [os.devnull], {}, tmp_path).pid
