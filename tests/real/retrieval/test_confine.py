"""What a child that reads strangers' bytes can no longer do: tried by the child itself."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.retrieval import parseprocess
from services.retrieval.confine import ENVIRONMENT, FILES, NETWORK, ROOT, TCP_ONLY, command
from tests.processes import is_alive

PROBES = Path(__file__).parent / "confined"
SUPERVISOR = """
import subprocess, sys, time
sys.path.insert(0, {probes!r})
from pathlib import Path
from services.retrieval.confine import command
subprocess.Popen(command("probe", ["sleep", "600"], reads=Path({probes!r}), limits={{}}))
time.sleep(600)
"""


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A confined child that tries one thing and says what became of it."""
    monkeypatch.syspath_prepend(str(PROBES))

    def run(*words: str, limits: Mapping[str, int] = parseprocess.LIMITS) -> dict[str, Any]:
        done = subprocess.run(
            command("probe", words, reads=PROBES, limits=limits),
            env=ENVIRONMENT, cwd="/", capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        return json.loads(done.stdout)

    return run


def needs(answer: dict[str, Any], *held: str) -> None:
    for name in held:
        if name not in answer["held"]:
            pytest.skip(f"this kernel does not let a process give up: {name}")


def test_its_environment_holds_no_secret(probe: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTGRES_URL", "postgresql://weir:secret@127.0.0.1/weir")
    assert set(probe("limit", "CORE")["environment"]) <= {*ENVIRONMENT, "LC_CTYPE"}


def test_it_reaches_no_server_of_this_machine(probe: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        answer = probe("connect", "127.0.0.1", str(server.getsockname()[1]))
    if NETWORK not in answer["held"]:
        needs(answer, TCP_ONLY)
    assert answer["said"] in ("EACCES", "ENETUNREACH", "EPERM")


def test_it_sends_no_datagram_either(probe: Callable[..., Any]) -> None:
    """Which Landlock alone would let pass: only a network namespace keeps it in."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        answer = probe("datagram", "127.0.0.1", str(server.getsockname()[1]))
    needs(answer, NETWORK)
    assert answer["said"] == "ENETUNREACH"


def test_it_reads_nothing_but_its_program_and_its_model(probe: Callable[..., Any], tmp_path: Path) -> None:
    secret = tmp_path / ".env"
    secret.write_text("ADMIN_TOKEN=x", encoding="ascii")
    answer = probe("read", str(secret))
    needs(answer, FILES)
    assert answer["said"] == "EACCES"
    for path in ("/etc/passwd", f"/proc/{os.getpid()}/environ", str(ROOT / "pyproject.toml")):
        assert probe("read", path)["said"] == "EACCES"
    assert probe("read", str(PROBES / "probe.py"))["said"] != "EACCES"


def test_it_writes_no_file(probe: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "written"
    assert probe("write", str(file))["said"] in ("EACCES", "EFBIG")
    assert not file.exists() or file.read_bytes() == b""


def test_it_starts_no_program_and_no_process(probe: Callable[..., Any]) -> None:
    forked = probe("fork")
    needs(forked, FILES)
    assert probe("execute", sys.executable)["said"] == "EACCES"
    if os.geteuid() != 0:  # the kernel does not hold root to a number of processes
        assert forked["said"] == "EAGAIN"


@pytest.mark.parametrize(("name", "value"), sorted(parseprocess.LIMITS.items()))
def test_a_limit_cannot_be_raised_again(probe: Callable[..., Any], name: str, value: int) -> None:
    assert probe("limit", name)["said"] == f"({value}, {value})"


def test_it_is_killed_with_the_service_that_started_it(wait_until: Callable[..., None]) -> None:
    """Also by kill -9, which leaves the service no time to do it."""
    code = SUPERVISOR.format(probes=str(PROBES))
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        try:
            process = psutil.Process(int(service.stdout.readline()))
            assert is_alive(process)
        finally:
            service.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_alive(process))
