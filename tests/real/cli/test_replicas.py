"""`weir worker run`: workers on ports that follow each other, stopped together, and told when they cannot start."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from services.cli.config import METRICS_OFFSET, LabSettings
from services.cli.ports import Port, free_port, is_free
from services.cli.replicas import another_way
from tests.processes import is_alive

ROOT = Path(__file__).parents[3]
WITHIN_S = 60.0
WaitUntil = Callable[..., None]


def free_ports(count: int) -> int:
    """The first of so many free ports that follow each other, their metrics ports free as well."""
    while True:
        first = free_port()
        wanted = [first + index + offset for index in range(count) for offset in (0, METRICS_OFFSET)]
        if all(is_free("127.0.0.1", port) for port in wanted):
            return first


class Run:
    """One `weir worker run` without a terminal."""

    def __init__(self, folder: Path, port: int, *words: str, **settings: str) -> None:
        self.port = port
        self.output = folder / "output.txt"
        inherited = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(folder), "DATA_DIR": "data"}
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services.cli", "worker", "run", "--port", str(port), *words],
                cwd=folder,  # a developer's .env is not read
                env={**inherited, **settings},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def url(self, index: int, offset: int = 0) -> str:
        return f"http://127.0.0.1:{self.port + index + offset}"

    def said(self) -> str:
        return self.output.read_text()

    def until_said(self, words: str, wait_until: WaitUntil) -> None:
        wait_until(lambda: words in self.said() or self.process.poll() is not None, WITHIN_S)
        assert words in self.said(), self.said()

    def ctrl_c(self) -> int:
        """As the terminal does it: to the whole process group. The exit code."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(WITHIN_S)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(WITHIN_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(port: int, *words: str, **settings: str) -> Run:
        runs.append(Run(tmp_path, port, *words, **settings))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


def test_three_replicas_answer_on_three_ports_and_ctrl_c_lets_them_finish(
    start: Callable[..., Run], wait_until: WaitUntil
) -> None:
    run = start(free_ports(3), "--replicas", "3", "--name", "gpu-box", SIM_STEP_MS="100")
    run.until_said("WORKERS=", wait_until)
    (line,) = re.findall(r"^WORKERS=(.*)$", run.said(), re.MULTILINE)
    assert line.split(",") == [run.url(index) for index in range(3)]
    members = psutil.Process(run.process.pid).children(recursive=True)
    with httpx2.Client(timeout=WITHIN_S, trust_env=False) as client:
        printed = [client.get(f"{run.url(index)}/status").json()["name"] for index in range(3)]
        assert printed == ["gpu-box-0", "gpu-box-1", "gpu-box-2"]
        assert all("weir_worker_slots" in client.get(f"{run.url(i, METRICS_OFFSET)}/metrics").text for i in range(3))
        with ThreadPoolExecutor(3) as pool:
            asked = {"prompt": "What is a weir?", "max_tokens": 30}
            answers = [pool.submit(client.post, f"{run.url(index)}/infer", json=asked) for index in range(3)]
            wait_until(lambda: all(client.get(f"{run.url(i)}/status").json()["running"] == 1 for i in range(3)))
            assert run.ctrl_c() == 0
            assert [answer.result().status_code for answer in answers] == [200, 200, 200]
    assert "Nothing is left running" in run.said()
    wait_until(lambda: not any(is_alive(member) for member in members))


def test_a_replica_that_dies_is_named_and_the_others_are_stopped(
    start: Callable[..., Run], wait_until: WaitUntil
) -> None:
    run = start(free_ports(2), "--replicas", "2")
    run.until_said("WORKERS=", wait_until)
    first = next(
        member
        for member in psutil.Process(run.process.pid).children()
        if member.environ().get("WORKER_NAME") == "worker-1"
    )
    first.kill()
    assert run.process.wait(WITHIN_S) == 1
    assert "worker-1 ended (killed by SIGKILL)" in run.said()
    assert is_free("127.0.0.1", run.port)


def test_a_port_that_is_taken_is_told_before_anything_starts(start: Callable[..., Run]) -> None:
    port = free_ports(3)
    with socket.create_server(("127.0.0.1", port + 1)):
        run = start(port, "--replicas", "3")
        assert run.process.wait(WITHIN_S) == 1
    assert f"{port + 1} (worker-1): held by" in run.said()
    assert "nothing was started" in run.said()
    assert f"weir worker run --replicas 3 --port {port + 100}" in run.said()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--name", "a b"), "--name 'a b'"),
        (("--port", "64535", "--replicas", "2"), "choose a lower --port"),
        (("--replicas", "0"), "--replicas"),
    ],
)
def test_what_cannot_be_is_one_sentence(start: Callable[..., Run], words: tuple[str, ...], says: str) -> None:
    run = start(free_ports(1), *words)
    assert run.process.wait(WITHIN_S) != 0
    assert says in run.said()
    assert "Traceback" not in run.said()


@pytest.mark.parametrize(("taken", "moved"), [(8011, 8110), (9010, 8110), (8115, 8210)])
def test_the_command_that_is_offered_avoids_what_is_in_the_way(tmp_path: Path, taken: int, moved: int) -> None:
    values: dict[str, Any] = {"data_dir": tmp_path, "worker_port": 8010, "workers_count": 2}
    chosen = LabSettings(_env_file=None, **values)
    name = "worker-0's metrics" if taken > 9000 else "worker-0"
    offered = another_way(chosen, [Port(name, "WORKER_PORT", "127.0.0.1", taken)])
    assert offered.endswith(f"--port {moved}")
