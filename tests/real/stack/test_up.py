"""`weir up`, whole: real processes, real stores, a real question, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import psutil
import pytest

from services.cli.ports import is_free
from tests.ports import metrics_of, stack_ports
from tests.processes import is_alive, runs

pytestmark = [pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[3]
STARTS_WITHIN_S = 90.0
LOCK = """# The lock of Greenfield

The lock-keeper of Greenfield opens the upper gate at half past six in the morning, and never on a Sunday.
"""
WaitUntil = Callable[..., None]


class Lab:
    """One `weir up` without a terminal, on ports of its own, in a folder of its own."""

    def __init__(self, folder: Path, wait_until: WaitUntil) -> None:
        self.folder = folder
        self.wait_until = wait_until
        self.output = folder / "output.txt"
        corpus = folder / "corpus"
        corpus.mkdir()
        (corpus / "lock.md").write_text(LOCK)
        ports = stack_ports()
        own = {name.upper(): port for name, port in ports.items()}
        self.ports = [*ports.values(), *metrics_of(ports)]
        self.router_url = f"http://127.0.0.1:{own['ROUTER_PORT']}"
        settings = {
            "DATA_DIR": "data",
            "SEED_CORPUS": "corpus",
            "WORKERS_COUNT": "1",
            "SIM_TIME_SCALE": "0.1",
            "RETRIEVAL_BUDGET_MS": "10000",  # this tests what is found, not how fast a busy machine finds it
        }
        inherited = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(folder)}
        self.env = {**inherited, **settings, **{name: str(port) for name, port in own.items()}}
        self.process: subprocess.Popen[bytes] | None = None
        self.members: list[psutil.Process] = []

    def start(self) -> None:
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services.cli", "up"],
                cwd=self.folder,
                env=self.env,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.wait_until(lambda: "weir is up" in self.said() or not self.runs(), STARTS_WITHIN_S)
        assert self.runs(), self.said()
        self.members = psutil.Process(self.process.pid).children(recursive=True)

    def said(self) -> str:
        return self.output.read_text()

    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal_group(self, number: signal.Signals) -> None:
        """As the terminal does for Ctrl-C: to the whole process group."""
        assert self.process is not None
        os.killpg(self.process.pid, number)

    def exit_code(self) -> int:
        assert self.process is not None
        return self.process.wait(60)

    def has_left_nothing(self) -> None:
        self.wait_until(lambda: not any(is_alive(member) for member in self.members))
        self.wait_until(lambda: all(is_free("127.0.0.1", port) for port in self.ports))

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        words = (sys.executable, "-m", "services.cli", *words)
        return subprocess.run(words, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False)

    def ask(self) -> dict[str, object]:
        question = {"query": "When does the lock-keeper of Greenfield open the upper gate?"}
        reply = httpx2.post(f"{self.router_url}/ask", json=question, timeout=30, trust_env=False)
        assert reply.status_code == 200, reply.text
        answer: dict[str, object] = reply.json()
        return answer


@pytest.fixture
def lab(tmp_path: Path, wait_until: WaitUntil) -> Iterator[Lab]:
    lab = Lab(tmp_path, wait_until)
    yield lab
    if lab.runs():
        lab.signal_group(signal.SIGKILL)
        lab.exit_code()


def test_a_question_is_answered_from_the_corpus_and_ctrl_c_leaves_nothing(lab: Lab) -> None:
    lab.start()
    answer = lab.ask()
    assert answer["source"] == "tier1"
    assert "half past six" in str(answer["text"])
    assert "lock.md" in str(answer["citations"])
    assert "\x1b" not in lab.said()
    assert len(re.findall(r"^ready ", lab.said(), re.MULTILINE)) == 8

    asked = lab.command("ask", "When does the upper gate open?")
    assert asked.returncode == 0, asked.stderr
    assert "lock.md" in asked.stdout
    assert lab.command("status").returncode == 0
    second = lab.command("up")
    assert second.returncode == 1
    assert "already runs" in second.stderr
    examined = lab.command("doctor")
    assert examined.returncode == 0, examined.stdout
    assert "passages of 1 tenants" in examined.stdout

    (lab.folder / "job.json").write_text('{"prompt": "What is a weir?", "max_tokens": 5}')
    sent = lab.command("governor", "send", "job.json", "--quiet")
    assert (sent.returncode, sent.stderr) == (0, "")
    assert json.loads(sent.stdout)["usage"]["completion_tokens"] == 5
    assert lab.command("governor", "ping").returncode == 0

    lab.signal_group(signal.SIGINT)
    assert lab.exit_code() == 0
    lab.has_left_nothing()
    assert "Nothing is left running" in lab.said()


def test_a_second_start_finds_its_data_and_kill_9_leaves_nothing(lab: Lab) -> None:
    lab.start()
    first = lab.ask()
    assert first["citations"], first
    stopped = lab.command("down")
    assert stopped.returncode == 0, stopped.stderr
    assert lab.exit_code() == 0
    lab.has_left_nothing()

    lab.start()
    again = lab.ask()
    assert again["citations"] == first["citations"], again
    assert "nothing has changed" in lab.said()
    assert lab.process is not None
    lab.process.kill()
    lab.exit_code()
    lab.has_left_nothing()


def test_a_part_that_dies_is_named_and_the_rest_is_stopped_but_a_storm_bench_is_done_without(lab: Lab) -> None:
    lab.start()
    bench = f"{lab.router_url}/console/storm"
    told = httpx2.get(bench, timeout=30, trust_env=False).json()
    assert {one["name"]: one["why_not"] for one in told["scenarios"] if not one["available"]} == {}
    next(member for member in lab.members if runs(member, "loadtests.storm")).kill()
    lab.wait_until(lambda: httpx2.get(bench, timeout=30, trust_env=False).status_code == 503)
    lab.wait_until(lambda: "storm ended (killed by SIGKILL), and the others go on" in lab.said())
    assert lab.ask()["citations"]

    worker = next(member for member in lab.members if runs(member, "services.worker"))
    worker.kill()
    assert lab.exit_code() == 1
    assert "worker-0 ended (killed by SIGKILL)" in lab.said()
    assert "worker-0.log" in lab.said()
    lab.has_left_nothing()


def test_a_reader_that_leaves_stops_the_stack_without_a_traceback(lab: Lab) -> None:
    words = [sys.executable, "-m", "services.cli", "up"]
    with subprocess.Popen(words, cwd=lab.folder, env=lab.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as up:
        assert up.stdout is not None
        assert up.stderr is not None
        assert up.stdout.readline().startswith(b"starting")
        up.stdout.close()
        assert up.stderr.read() == b""
        assert up.wait(60) == 1
    lab.has_left_nothing()
