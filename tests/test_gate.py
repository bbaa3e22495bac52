"""The gate asks for logic: no process, no socket that is not asked for, nothing tried twice. Decision 051."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import multiprocessing
import os
import re
import socket
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from services.runtime.log import Log
from tests.kernel import ALL, NOTHING, SOCKETS, AskedTheKernel, Watch, log_writers, logs

ROOT = Path(__file__).parent.parent
HERE = ("127.0.0.1", "127.1.2.3", "::1", "localhost", "", "0.0.0.0", "/run/a.sock", b"\0unnamed")
ELSEWHERE = ("192.0.2.1", "2001:db8::1", "example.org")


@pytest.fixture
def refusing(kernel: Watch) -> Iterator[Watch]:
    """The rules of the gate, of which this test breaks some and forgets that it did."""
    with kernel.during(NOTHING):
        yield kernel
    kernel.refused.clear()


def by_subprocess() -> None:
    subprocess.run(["true"], check=True)


def by_shell() -> None:
    os.system("true")


def by_fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def by_multiprocessing() -> None:
    multiprocessing.get_context("spawn").Process(target=print).start()


def by_asyncio() -> None:
    asyncio.run(asyncio.create_subprocess_exec("true"))


def by_uvloop() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.create_subprocess_exec("true"))


@pytest.mark.parametrize("start", [by_subprocess, by_shell, by_fork, by_multiprocessing, by_asyncio, by_uvloop])
def test_a_test_of_the_gate_that_starts_a_process_is_refused(start, refusing: Watch) -> None:
    with pytest.raises(AskedTheKernel, match="tests/real"):
        start()
    assert "starts a process" in refusing.refused[0]


def connects() -> None:
    with socket.socket() as one:
        one.connect(("127.0.0.1", 9))


def listens() -> None:
    with socket.socket(socket.AF_INET6) as one:
        one.bind(("::1", 0))


def sends() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as one:
        one.sendto(b"", ("127.0.0.1", 9))


def by_a_path() -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect("/nowhere.sock")


def connects_by_asyncio() -> None:
    asyncio.run(asyncio.wait_for(asyncio.open_connection("127.0.0.1", 9), 5))


def connects_by_uvloop() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(asyncio.open_connection("127.0.0.1", 9), 5))


@pytest.mark.parametrize(
    "opens",
    [connects, listens, sends, by_a_path, connects_by_asyncio, connects_by_uvloop],
    ids=lambda way: way.__name__,
)
def test_a_test_of_the_gate_that_opens_a_socket_is_refused(opens, refusing: Watch) -> None:
    with pytest.raises(AskedTheKernel, match="mark the test `sockets`"):
        opens()


def test_an_event_loop_of_its_own_and_a_pair_of_sockets_are_no_network(refusing: Watch) -> None:
    asyncio.run(asyncio.sleep(0))
    for one in socket.socketpair():
        one.close()
    assert refusing.refused == []


@pytest.mark.parametrize("host", HERE)
def test_a_test_with_leave_for_sockets_reaches_this_machine(host, kernel: Watch) -> None:
    with kernel.during(SOCKETS):
        kernel.connects(host)


@pytest.mark.parametrize("host", ELSEWHERE)
def test_a_test_with_leave_for_sockets_reaches_no_other_machine(host: str, refusing: Watch) -> None:
    with refusing.during(SOCKETS), pytest.raises(AskedTheKernel, match="not this machine"):
        refusing.connects(host)
    with refusing.during(ALL):
        refusing.connects(host)


def test_a_refusal_that_is_swallowed_fails_the_test_all_the_same(
    refusing: Watch, request: pytest.FixtureRequest
) -> None:
    ends = request.config.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py")).pytest_runtest_teardown()
    with contextlib.suppress(Exception):
        by_subprocess()
    next(ends)
    with pytest.raises(pytest.fail.Exception, match="starts a process"):
        next(ends)


def test_a_log_of_the_gate_has_no_thread_unless_a_test_wants_one() -> None:
    log = Log("test", stream=io.BytesIO())
    assert log_writers() == 0
    log.close()
    wanted = Log("test", stream=io.BytesIO(), threaded=True)
    assert log_writers() == 1
    wanted.close()
    with logs(threaded=True):
        production = Log("test", stream=io.BytesIO())
        assert log_writers() == 1
        production.close()
    assert log_writers() == 0


def test_a_test_that_leaves_the_thread_of_a_log_behind_fails(request: pytest.FixtureRequest) -> None:
    ends = request.config.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py")).pytest_runtest_teardown()
    log = Log("test", stream=io.BytesIO(), threaded=True)
    next(ends)
    with pytest.raises(pytest.fail.Exception, match="left a log with its thread"):
        next(ends)
    log.close()


def test_a_test_that_unfreezes_what_the_collector_need_not_see_fails(request: pytest.FixtureRequest) -> None:
    ends = request.config.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py")).pytest_runtest_teardown()
    gc.unfreeze()
    next(ends)
    with pytest.raises(pytest.fail.Exception, match="each collection after it"):
        next(ends)
    assert gc.get_freeze_count() > 0


def test_nothing_is_tried_twice(request: pytest.FixtureRequest) -> None:
    """No plugin for it is locked, none that may be installed besides is asked to act, and no test asks for it."""
    again = re.compile(r"rerun|flaky|retry", re.IGNORECASE)
    assert not request.config.getoption("reruns", default=0)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert not again.search(project["tool"]["pytest"]["ini_options"]["addopts"])
    locked = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8")
    assert not re.search(r"^pytest[\w-]*(rerun|flaky|retry)|^flaky", locked, re.MULTILINE)
    (run,) = re.findall(r"^test:.*\n(.*)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert not again.search(run)
    mark = re.compile(r"mark\.(flaky|alone|stack)\b")
    sources = [path for path in (ROOT / "tests").rglob("*.py") if mark.search(path.read_text(encoding="utf-8"))]
    assert [path for path in sources if path != Path(__file__)] == []


def test_processes_of_one_run_of_the_tests_take_ports_of_their_own(request: pytest.FixtureRequest) -> None:
    part = request.config.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py")).part
    ports = range(10_000, 20_000)
    parts = [part(ports, number, 3) for number in range(3)]
    assert len(set().union(*parts)) == sum(map(len, parts)) == 9_999
    assert set().union(*parts) < set(ports)
    assert part(ports, 0, 1) == ports


def test_each_file_of_tests_is_in_exactly_one_of_the_two_sets() -> None:
    """The one leaves out the folder that the other is; and whoever is in the one knows nothing of the other."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (gate,) = re.findall(r"^test:.*\n(.*)", makefile, re.MULTILINE)
    (real,) = re.findall(r"^test-real:.*\n(.*)", makefile, re.MULTILINE)
    assert "--ignore=tests/real " in gate
    assert re.findall(r"pytest (\S+)", real) == ["$(REAL)"]
    assert "\nREAL ?= tests/real\n" in makefile
    for path in (ROOT / "tests").rglob("*.py"):
        if not path.is_relative_to(ROOT / "tests" / "real") and path != Path(__file__):
            assert "tests.real" not in path.read_text(encoding="utf-8"), path
