"""What a scenario breaks: put for a short time and renewed, mended afterwards, and only at workers of this lab."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from loadtests.scenarios.people import Stage
from loadtests.users.trouble import LEASE_S, NoFaults, Trouble, urls_of

pytestmark = pytest.mark.sockets

WELL = Stage("well", 5, {"people": 1}, 1)
ONE = Stage("one is slow", 5, {"people": 1}, 1, "one", 8)
ALL = Stage("all are slow", 5, {"people": 1}, 1, "all", 50)


class Listener(BaseHTTPRequestHandler):
    server: Worker

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.asked.append((self.command, json.loads(body) if body else None))
        self.send_response(self.server.status)
        self.end_headers()

    do_PUT = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class Worker(ThreadingHTTPServer):
    """A worker's metrics listener, as far as a fault knows it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Listener)
        self.asked: list[tuple[str, object]] = []
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    made = [Worker(), Worker()]
    threads = [threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01}) for one in made]
    for thread in threads:
        thread.start()
    yield made
    for one, thread in zip(made, threads, strict=True):
        one.shutdown()
        thread.join()
        one.server_close()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_fault_is_put_for_a_short_time_and_put_again_at_every_look(workers):
    trouble = Trouble([one.url for one in workers])
    for stage in (WELL, ALL, ALL, ALL):
        trouble.follow(stage)
    put = ("PUT", {"slow_factor": 50, "for_s": LEASE_S})
    assert [one.asked for one in workers] == [[put] * 3, [put] * 3]
    assert trouble.missed == 0


def test_one_slow_worker_is_the_first_and_the_other_is_left_alone(workers):
    trouble = Trouble([one.url for one in workers])
    trouble.follow(ONE)
    assert [len(one.asked) for one in workers] == [1, 0]


def test_what_the_last_stage_broke_is_mended_at_once(workers):
    trouble = Trouble([one.url for one in workers])
    for stage in (ALL, ONE, WELL, WELL):
        trouble.follow(stage)
    first, second = ([method for method, _ in one.asked] for one in workers)
    assert first == ["PUT", "PUT", "DELETE"]
    assert second == ["PUT", "DELETE"]


def test_a_run_that_ends_in_the_middle_mends_too(workers):
    trouble = Trouble([one.url for one in workers])
    trouble.follow(ALL)
    trouble.repair()
    assert [one.asked[-1][0] for one in workers] == ["DELETE", "DELETE"]


def test_a_request_felt_it_if_any_of_its_time_was_in_it(workers):
    clock = Clock()
    trouble = Trouble([workers[0].url], clock)
    trouble.follow(ALL)
    clock.now = 105.0
    trouble.follow(ALL)
    clock.now = 106.0
    trouble.follow(WELL)
    assert trouble.windows == [(100.0, 106.0)]
    spans = [(90, 99), (90, 101), (102, 103), (105, 120), (107, 120)]
    assert [trouble.felt(*span) for span in spans] == [False, True, True, True, False]


def test_a_fault_that_is_not_renewed_is_felt_until_its_time_is_up(workers):
    clock = Clock()
    trouble = Trouble([workers[0].url], clock)
    trouble.follow(ALL)
    clock.now = 110.0
    trouble.follow(WELL)
    assert trouble.windows == [(100.0, 100.0 + LEASE_S)]


def test_a_fault_that_could_not_be_renewed_is_counted(workers):
    trouble = Trouble([one.url for one in workers])
    trouble.follow(ALL)
    workers[1].status = 500
    trouble.follow(ALL)
    assert trouble.missed == 1


def test_workers_that_take_no_faults_are_found_out_before_any_load(workers):
    Trouble([one.url for one in workers]).check()
    workers[1].status = 404
    with pytest.raises(NoFaults, match="status 404: is it a simulated worker"):
        Trouble([one.url for one in workers]).check()
    with pytest.raises(NoFaults, match="set FAULT_URLS"):
        Trouble([]).check()
    with pytest.raises(NoFaults, match="does not answer"):
        Trouble(["http://127.0.0.1:1"]).check()


def test_workers_are_where_up_puts_them():
    usual = ["http://127.0.0.1:9010", "http://127.0.0.1:9011"]
    assert urls_of({}, "http://127.0.0.1:8000") == usual
    moved = {"WORKER_PORT": "8110", "WORKERS_COUNT": "3"}
    assert urls_of(moved, "http://127.0.0.1:8100") == [f"http://127.0.0.1:{port}" for port in (9110, 9111, 9112)]


def test_another_stacks_workers_are_not_slowed_by_mistake():
    """A router elsewhere, and nothing said about its workers: the usual ports may be somebody else's."""
    assert urls_of({}, "http://127.0.0.1:8100") == []
    assert urls_of({}, "http://example.org:8000") == []


def test_the_workers_of_compose_may_be_slowed_and_nobody_elses():
    compose = {"FAULT_URLS": "http://worker-0:9010,http://worker-1:9010"}
    assert urls_of(compose, "http://router:8000") == compose["FAULT_URLS"].split(",")
    for url in ("http://10.0.0.5:9010", "http://worker-0.example.org:9010", "https://gpu:9010"):
        with pytest.raises(NoFaults, match="neither on this machine nor a worker of the compose network"):
            urls_of({"FAULT_URLS": url}, "http://router:8000")
