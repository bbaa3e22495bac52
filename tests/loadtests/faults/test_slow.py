"""What a worker is asked on the wire when it is made slow and well again, and what its asker hears of a refusal."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from loadtests.faults import slow as faults

pytestmark = pytest.mark.sockets

WITHIN_S = 20.0


class Listener(BaseHTTPRequestHandler):
    server: Worker

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.asked.append((self.command, self.path, json.loads(body) if body else None))
        self.send_response(self.server.status)
        self.end_headers()

    do_GET = do_DELETE = do_PUT

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class Worker(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Listener)
        self.asked: list[tuple[str, str, object]] = []
        self.status = 200
        self.url = f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_a_fault_goes_over_the_wire_with_the_time_that_it_lasts(worker: Worker) -> None:
    faults.check(worker.url, WITHIN_S)
    faults.put(worker.url, 8.0, 3.0, WITHIN_S)
    faults.repair(worker.url, WITHIN_S)
    put = {"slow_factor": 8.0, "for_s": 3.0}
    assert worker.asked == [("GET", "/faults", None), ("PUT", "/faults", put), ("DELETE", "/faults", None)]


def test_a_worker_that_refuses_is_an_error_with_a_reason(worker: Worker) -> None:
    worker.status = 404
    with pytest.raises(faults.NoFault, match=f"{worker.url}/faults answers with status 404: is it a simulated worker"):
        faults.put(worker.url, 8.0, 3.0, WITHIN_S)


def test_who_is_not_there_is_an_error_of_the_network_too() -> None:
    with pytest.raises(OSError, match="does not answer"):
        faults.put("http://127.0.0.1:1", 8.0, 3.0, WITHIN_S)
