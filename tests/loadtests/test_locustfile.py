"""Locust itself, against a server that keeps its own books: both must have counted the same."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LOCUST = shutil.which("locust", path=str(Path(sys.executable).parent)) or shutil.which("locust")
ENOUGH = 24
ROW = re.compile(r"^(/ask|chat stream|chat) +(\S.*?) {2,}(\d+) ", re.MULTILINE)

pytestmark = [
    pytest.mark.stack,
    pytest.mark.skipif(LOCUST is None, reason="Locust is not installed (make load installs it)"),
]


class Fickle(BaseHTTPRequestHandler):
    """Answers every other request of a surface, and refuses the others with a hint."""

    protocol_version = "HTTP/1.1"
    server: Books

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        surface = "/ask" if self.path == "/ask" else "chat stream" if body.get("stream") else "chat"
        served = self.server.enter(surface, self.headers["x-weir-deadline-ms"])
        if not served:
            error = {"error": {"code": "yield", "message": "full", "type": "rate_limit_error"}}
            self.reply(429, error, {"x-should-retry": "true", "retry-after-ms": "50"})
        elif surface == "/ask":
            self.reply(200, {"text": "So.", "source": "tier1"}, {})
        elif surface == "chat":
            usage = {"completion_tokens": 1}
            self.reply(200, {"choices": [{"message": {"content": "So."}}], "usage": usage}, {})
        else:
            self.stream()

    def reply(self, status: int, body: dict[str, Any], headers: dict[str, str]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def stream(self) -> None:
        self.send_response(200)
        self.send_header("connection", "close")
        self.end_headers()
        chunk = json.dumps({"choices": [{"delta": {"content": "So."}}]})
        self.wfile.write(f"data: {chunk}\n\ndata: [DONE]\n\n".encode())
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class Books(ThreadingHTTPServer):
    """The server's own ledger."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Fickle)
        self.counts: Counter[tuple[str, str]] = Counter()
        self.deadlines: set[str] = set()
        self.busy = threading.Event()
        self._lock = threading.Lock()

    def enter(self, surface: str, deadline_ms: str) -> bool:
        with self._lock:
            served = self.counts[surface, "served"] <= self.counts[surface, "refused: yield"]
            self.counts[surface, "served" if served else "refused: yield"] += 1
            self.deadlines.add(deadline_ms)
            if self.counts.total() >= ENOUGH:
                self.busy.set()
            return served


@contextmanager
def serving() -> Iterator[Books]:
    with Books() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def locust(host: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(LOCUST), "-f", "loadtests/locustfile.py", "--headless", "--host", host],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def test_locust_and_the_server_count_the_same_and_a_refusal_is_no_failure():
    with serving() as server:
        running = locust(f"http://127.0.0.1:{server.server_port}")
        assert server.busy.wait(60)
        running.send_signal(signal.SIGTERM)
        output, _ = running.communicate(timeout=60)
    counted = {(surface, outcome): int(count) for surface, outcome, count in ROW.findall(output)}
    assert counted == dict(server.counts), output
    assert server.deadlines == {"10000"}
    assert "chat stream: first token" in output
    assert running.returncode == 0


def test_locust_sends_nothing_to_another_machine():
    running = locust("http://192.0.2.1")
    output, _ = running.communicate(timeout=60)
    assert "no load is sent there" in output
    assert running.returncode == 1
