"""ROUTER_PROCESSES=2: one port, one page of metrics; a killed process is replaced; signals reach both; no request is
lost while they are replaced one after the other."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import psutil

from loadtests.cluster.processes import child_environment, free_ports, get
from loadtests.cluster.several import Several, several
from loadtests.cluster.stand import Shape
from loadtests.load.closed import LoopResults, connect
from loadtests.load.keepalive import Load
from loadtests.paths import ROOT
from tests.processes import is_alive

SHAPE = Shape(workers=1, slots=32, step_ms=5.0, answer_tokens=4)
RESTARTS = 10
"""Of both processes: twenty processes are replaced."""


def samples(page: str, name: str) -> dict[str, float]:
    lines = [line.rsplit(" ", 1) for line in page.splitlines() if line.startswith((name + "{", name + " "))]
    return {series[len(name) :]: float(value) for series, value in lines}


def served(made: Several) -> float:
    return sum(value for labels, value in samples(made.page(), "weir_requests_total").items() if '"served"' in labels)


def lives(pid: int) -> bool:
    try:
        return is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


async def none_lives(pids: list[int]) -> None:
    """No process outlives its parent."""
    async with asyncio.timeout(20):
        while any(map(lives, pids)):
            await asyncio.sleep(0.02)


async def answered(made: Several, times: int, *, connections: int = 8) -> None:
    load = Load(made.url, connections=connections)
    await load.ask(times)
    assert load.lost == Counter(), load.lost
    assert load.answered == times


def test_two_processes_answer_on_one_port_and_their_metrics_are_sums() -> None:
    async def main() -> None:
        async with several(SHAPE) as made:
            await answered(made, 200, connections=32)
            page = made.page()
            assert served(made) == 200
            by_process = [one["router"]["scheduler"]["finished_twice"] for one in made.state()]
            assert by_process == [0, 0]
            assert samples(page, "weir_router_process_ready") == {'{process="0"}': 1.0, '{process="1"}': 1.0}
            each = [
                samples(get(f"http://127.0.0.1:{one['metrics_port']}/metrics").decode(), "weir_requests_total")
                for one in made.state()
            ]
            assert all(sum(one.values()) > 0 for one in each), "the kernel has spread the connections over both"
            assert {line.get("process") for line in made.logged("listening")} == {0, 1}

    asyncio.run(main())


def test_a_killed_process_is_replaced_while_the_other_serves_and_no_sum_falls() -> None:
    async def main() -> None:
        async with several(SHAPE) as made:
            await answered(made, 100)
            before, pids = served(made), made.pids()
            os.kill(pids[0], signal.SIGKILL)
            await answered(made, 100)
            await made.until(made.all_ready, "replaced")
            first, second = made.pids()
            assert (first != pids[0], second == pids[1]) == (True, True)
            assert served(made) >= before + 100
            (ended,) = made.logged("a router process ended")
            assert (ended["process"], ended["status"]) == (0, "SIGKILL")
            await answered(made, 50)

    asyncio.run(main())


def test_sigterm_drains_both_and_exits_with_0() -> None:
    async def main() -> None:
        async with several(SHAPE) as made:
            load = Load(made.url, connections=8)
            asking = asyncio.create_task(load.ask(10_000))
            await made.until(lambda: load.answered > 50, "load")
            pids = made.pids()
            status = await made.parent.leave(30.0)
            asking.cancel()
            assert status == 0
            assert not any(map(lives, pids))
            assert {line.get("process") for line in made.logged("stopped")} == {0, 1, None}

    asyncio.run(main())


def tenants(*names: str) -> str:
    """A tenants file; the keys are nobody's."""
    rows = [f'  - {{id: {name}, keys: ["sha256:{str(number) * 64}"]}}' for number, name in enumerate(names)]
    return "\n".join(["tenants:", *rows, ""])


def test_sighup_reloads_the_files_of_both() -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "tenants.yaml"
            file.write_text(tenants("a"), encoding="utf-8")
            async with several(SHAPE, settings={"TENANTS_FILE": str(file)}) as made:
                file.write_text(tenants("a", "b"), encoding="utf-8")
                made.signal(signal.SIGHUP)
                await made.until(lambda: len(made.logged("tenants reloaded")) == 2, "reloaded")
                assert {(line["process"], line["joined"]) for line in made.logged("tenants reloaded")} == {
                    (0, 1),
                    (1, 1),
                }

    asyncio.run(main())


def test_a_second_signal_ends_all_at_once() -> None:
    async def main() -> None:
        async with several(SHAPE, settings={"DRAIN_DELAY_S": "600"}) as made:
            pids = made.pids()
            made.signal(signal.SIGTERM)
            await made.until(lambda: len(made.logged("draining")) == 2, "draining")
            assert await made.parent.leave(30.0) == 1
            await none_lives(pids)

    asyncio.run(main())


def test_no_process_outlives_a_killed_parent() -> None:
    async def main() -> None:
        async with several(SHAPE) as made:
            pids = made.pids()
            made.parent.kill()
            await none_lives(pids)

    asyncio.run(main())


def test_a_rolling_restart_loses_no_request() -> None:
    async def main() -> None:
        async with several(SHAPE) as made:
            load = Load(made.url, connections=8, again_every=20)
            over = asyncio.Event()
            asking = asyncio.create_task(load.until(over))
            seen = set(made.pids())
            for _ in range(RESTARTS):
                await made.replace_all()
                pids = made.pids()
                assert not seen & set(pids)
                seen |= set(pids)
            over.set()
            await asking
            assert load.lost == Counter(), load.lost
            assert load.answered > 0
            assert served(made) == load.answered, "the figures of those that ended are kept"

    asyncio.run(main())


def test_bad_settings_are_told_once_before_anything_starts() -> None:
    env = {"PYTHONPATH": str(ROOT), "ROUTER_PROCESSES": "2", "MAX_INFLIGHT": "0", "EXCHANGE_URL": "redis://127.0.0.1:1"}
    ended = subprocess.run(
        [sys.executable, "-m", "services.router"], env=child_environment(env), cwd="/", capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stderr.count(b"MAX_INFLIGHT") == 1


def test_a_port_in_use_is_told_as_by_one_process() -> None:
    async def main() -> None:
        async with several(SHAPE) as made:
            port = made.url.rpartition(":")[2]
            (metrics_port,) = free_ports(1)
            env = {
                "PYTHONPATH": str(ROOT), "ROUTER_PROCESSES": "2", "EXCHANGE_URL": "redis://127.0.0.1:1",
                "ROUTER_PORT": port, "METRICS_PORT": str(metrics_port),
            }  # fmt: skip
            ended = await asyncio.to_thread(
                subprocess.run, [sys.executable, "-m", "services.router"], env=child_environment(env), cwd="/",
                capture_output=True, timeout=60, check=False,
            )  # fmt: skip
            assert ended.returncode == 3
            assert b"ROUTER_PORT" in ended.stderr
            assert made.all_ready()

    asyncio.run(main())


def test_a_connection_that_waits_at_a_process_is_answered_by_another() -> None:
    """Frozen is not ended: what waits at a stopped process waits. Ended, its socket and all that waits in it stay."""

    async def main() -> None:
        async with several(SHAPE) as made:
            pid = made.pids()[0]
            os.kill(pid, signal.SIGSTOP)
            port = int(made.url.rpartition(":")[2])
            waiting = [asyncio.create_task(connect(port, LoopResults())) for _ in range(32)]
            opened = await asyncio.gather(*waiting)
            request = f"GET /health HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode()
            answers = [one.ask(request) for one in opened]
            await asyncio.sleep(0.5)
            assert 0 < sum(answer.done() for answer in answers) < 32
            os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(30):
                await asyncio.gather(*answers)
            for one in opened:
                one.transport.close()

    asyncio.run(main())
