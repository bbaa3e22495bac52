"""Locust itself, against a server that keeps its own books: both must have counted the same."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from services.cli.ports import free_port

ROOT = Path(__file__).parents[3]
LOCUST = shutil.which("locust", path=str(Path(sys.executable).parent)) or shutil.which("locust")
ENOUGH = 24

pytestmark = [
    pytest.mark.skipif(LOCUST is None, reason="Locust is not installed (make load installs it)"),
]


class Fickle(BaseHTTPRequestHandler):
    """Answers every other request of a surface, and refuses the others with a hint."""

    protocol_version = "HTTP/1.1"
    server: Books

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.server.broken:
            self.server.enter("broken", self.headers)
            self.reply(500, {"oh": "no"}, {})
            return
        surface = "/ask" if self.path == "/ask" else "chat stream" if body.get("stream") else "chat"
        served = self.server.enter(surface, self.headers)
        if not served:
            error = {"error": {"code": "yield", "message": "full", "type": "rate_limit_error"}}
            self.reply(429, error, {"x-should-retry": "true", "retry-after-ms": str(self.server.hint_ms)})
        elif surface == "/ask":
            self.reply(200, {"text": "So.", "source": "tier1"}, {})
        elif surface == "chat":
            usage = {"completion_tokens": 1}
            self.reply(200, {"choices": [{"message": {"content": "So."}}], "usage": usage}, {})
        else:
            self.stream()

    def do_GET(self) -> None:
        if self.path == "/metrics":
            waiting = 'weir_queue_depth{tenant="demo"} 3.0'
            refused = f'weir_admission_total{{decision="yield"}} {self.server.counts["chat", "refused: yield"]}'
            self.text(f"weir_inflight 1.0\n{waiting}\n{refused}\n")
            return
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.faults.append((self.command, json.loads(body) if body else None))
        if self.command == "PUT":
            self.server.broken_by_us.set()
        self.reply(200, {}, {})

    do_PUT = do_DELETE = do_GET

    def reply(self, status: int, body: dict[str, Any], headers: dict[str, str]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def text(self, said: str) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said.encode())

    def stream(self) -> None:
        self.send_response(200)
        self.send_header("connection", "close")
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        chunk = json.dumps({"choices": [{"delta": {"content": "So."}}]})
        self.wfile.write(f"data: {chunk}\n\ndata: [DONE]\n\n".encode())
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class Books(ThreadingHTTPServer):
    """The server's own ledger; it stands for a router, and for a worker that is told of faults."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, broken: bool, hint_ms: int) -> None:
        super().__init__(("127.0.0.1", 0), Fickle)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.broken = broken
        self.hint_ms = hint_ms
        self.broken_by_us = threading.Event()
        self.faults: list[tuple[str, Any]] = []
        self.counts: Counter[tuple[str, str]] = Counter()
        self.tenants: Counter[str] = Counter()
        self.keys: set[tuple[str, str | None]] = set()
        self.came_back: set[str] = set()
        self.deadlines: set[str] = set()
        self.busy = threading.Event()
        self._lock = threading.Lock()

    def enter(self, surface: str, headers: Message) -> bool:
        with self._lock:
            served = self.counts[surface, "served"] <= self.counts[surface, "refused: yield"]
            self.counts[surface, "served" if served else "refused: yield"] += 1
            self.deadlines.add(headers["x-weir-deadline-ms"])
            self.tenants[headers["x-tenant"]] += 1
            self.keys.add((headers["x-tenant"], headers["authorization"]))
            if headers["x-stainless-retry-count"] != "0":
                self.came_back.add(headers["x-tenant"])
            if self.counts.total() >= ENOUGH:
                self.busy.set()
            return served


@contextmanager
def serving(*, broken: bool = False, hint_ms: int = 50) -> Iterator[Books]:
    with Books(broken, hint_ms) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def locust(host: str, scenario: str = "baseline", *more: str, fault_urls: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            str(LOCUST), "-f", "loadtests/locustfile.py", "--headless", "--only-summary", "--loglevel", "WARNING",
            "--host", host, "--scenario", scenario, *more,
        ],
        cwd=ROOT, env={**os.environ, "FAULT_URLS": fault_urls}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip


@contextmanager
def on_page(host: str) -> Iterator[str]:
    """Locust with its page, on a port of its own."""
    port = free_port()
    running = subprocess.Popen(
        [
            str(LOCUST), "-f", "loadtests/locustfile.py", "--host", host, "--web-host", "127.0.0.1",
            "--web-port", str(port),
        ],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(lambda: running.poll() is None and answers(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait(60)


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def fetched(url: str, form: dict[str, str] | None = None) -> str:
    data = urllib.parse.urlencode(form).encode() if form else None
    with urllib.request.urlopen(url, data, timeout=30) as answer:
        return str(answer.read().decode())


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_locust_and_the_server_count_the_same_and_a_refusal_is_no_failure(tmp_path):
    with serving() as server:
        running = locust(
            server.url, "baseline", "--html", str(tmp_path / "report.html"), "--csv", str(tmp_path / "requests"),
            "--json-file", str(tmp_path / "locust"), "--out", str(tmp_path),
        )  # fmt: skip
        assert server.busy.wait(60)
        table = tmp_path / "requests_stats.csv"  # Locust writes it every few seconds, and not at its end
        until(lambda: table.exists() and "chat stream: first token" in table.read_text(encoding="utf-8"))
        running.send_signal(signal.SIGTERM)
        output, _ = running.communicate(timeout=60)
    assert running.returncode == 0, output
    told = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    counted = Counter[tuple[str, str]]()
    for row in told["outcomes"]:
        counted[row["surface"], f"{row['kind']}: {row['detail']}" if row["detail"] else row["kind"]] += row["count"]
    assert counted == server.counts, output
    assert server.deadlines == {"10000"}
    assert server.tenants.keys() == {"demo"}
    assert "demo: chat stream: first token" in (tmp_path / "requests_stats.csv").read_text(encoding="utf-8")
    assert "What does an answer cost" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert sum(len(list(tmp_path.glob(pattern))) for pattern in ("requests_*.csv", "locust.json")) == 5


def test_a_server_that_fails_gives_exit_status_1():
    with serving(broken=True) as server:
        running = locust(server.url)
        assert server.busy.wait(60)
        running.send_signal(signal.SIGTERM)
        output, _ = running.communicate(timeout=60)
    assert "failed: 500 without the error envelope" in output
    assert running.returncode == 1


def test_locust_sends_nothing_to_another_machine():
    running = locust("http://192.0.2.1")
    output, _ = running.communicate(timeout=60)
    assert "no load is sent there without --beyond-this-machine" in output
    assert running.returncode == 2


def test_each_group_asks_as_its_tenant_and_the_crowd_comes_and_goes_and_takes_no_hint(tmp_path):
    """Those who obey do not come back at all: they are told to wait for a minute."""
    keys = tmp_path / "keys"
    keys.write_text("anna: weir_a\nben: weir_b\ncrowd: weir_c\n", encoding="utf-8")
    with serving(hint_ms=60_000) as server:
        running = locust(server.url, "noisy_neighbour", "--share", "0.01", "--keys", str(keys))
        output, _ = running.communicate(timeout=120)
    assert running.returncode == 0, output
    assert server.tenants.keys() == {"anna", "ben", "crowd"}
    assert server.tenants["crowd"] > 3 * server.tenants["anna"]
    assert server.keys == {("anna", "Bearer weir_a"), ("ben", "Bearer weir_b"), ("crowd", "Bearer weir_c")}
    assert server.came_back == {"crowd"}
    stages = {tuple(words[:2]) for line in output.splitlines() if len(words := re.split(r"  +", line)) > 3}
    assert {("the crowd", "crowd"), ("quiet", "anna"), ("quiet again", "ben")} <= stages
    assert ("quiet", "crowd") not in stages


def test_a_scenario_that_cannot_be_made_is_not_begun():
    with serving() as server:
        running = locust(server.url, "slow_worker")
        output, _ = running.communicate(timeout=60)
        assert not server.counts
    assert "slow_worker slows simulated workers, and here it cannot" in output
    assert running.returncode == 2


def test_a_worker_is_slowed_in_its_stage_alone_and_the_summary_says_when():
    with serving() as server, serving() as slowed, serving() as well:
        running = locust(server.url, "slow_worker", "--share", "0.01", fault_urls=f"{slowed.url},{well.url}")
        output, _ = running.communicate(timeout=120)
    assert running.returncode == 0, output
    methods = [method for method, _ in slowed.faults]
    assert methods[0] == "GET"
    assert methods[-1] == "DELETE"
    puts = [body for method, body in slowed.faults if method == "PUT"]
    assert puts
    assert all(body == {"slow_factor": 8, "for_s": 3.0} for body in puts)
    assert {method for method, _ in well.faults} == {"GET"}
    assert "Workers were slowed from" in output


def test_a_slowed_worker_heals_though_locust_is_killed():
    """What is put lasts three seconds, whoever put it: nothing needs to be taken back."""
    with serving() as server, serving() as slowed:
        running = locust(server.url, "slow_worker", "--share", "0.01", fault_urls=slowed.url)
        assert slowed.broken_by_us.wait(60)
        running.kill()
        running.communicate(timeout=60)
        assert slowed.faults[-1][0] == "PUT"
        assert all(body["for_s"] <= 3 for _, body in slowed.faults if body)


def published(server: Books, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "loadtests.runs.people",
        "--host",
        server.url,
        "--metrics",
        f"{server.url}/metrics",
    ]
    wanted = [*command, "--only", "baseline", "--share", "0.05", "--out", str(folder), *more]
    return subprocess.run(wanted, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_what_was_played_is_published_beside_the_routers_own_word_and_not_played_again(tmp_path):
    pytest.importorskip("matplotlib")
    with serving() as server:
        first = published(server, tmp_path)
        assert first.returncode == 0, first.stdout + first.stderr
        page = (tmp_path / "locust.md").read_text(encoding="utf-8")
        assert "| `baseline` | 8 |" in page
        assert "| 3 | 3 |" in page
        assert "1 of 1 targets held." in page
        assert (tmp_path / "locust-dark.svg").exists()
        asked = server.counts.total()
        again = published(server, tmp_path)
        assert again.returncode == 0
        assert "1 of 1 are kept from an earlier run" in again.stdout
        assert server.counts.total() == asked


def test_on_locusts_page_a_scenario_is_chosen_anew_for_each_run_and_its_summary_is_there():
    with serving() as server, on_page(server.url) as page:
        assert "No scenario has been played yet." in fetched(f"{page}/summary")
        for scenario, tenant in (("baseline", "demo"), ("noisy_neighbour", "anna")):
            fetched(f"{page}/swarm", {"scenario": scenario, "share": "0.01"})
            until(lambda tenant=tenant: server.tenants[tenant] > 3)
            fetched(f"{page}/stop", {"now": "yes"})
            until(lambda: '"state": "stopped"' in fetched(f"{page}/stats/requests"))
            assert fetched(f"{page}/summary").startswith(f"{scenario}: ")
