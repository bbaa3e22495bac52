"""`weir governor`: its client with the address of what runs here, its exit status, and a governor alone."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.cli.config import LabSettings
from services.cli.governor import answers, own
from services.cli.lease import Lease, StackNote
from services.cli.ports import free_port, is_free
from services.cli.status import readiness, services
from tests.governor.stand import Held, governor, until
from tests.governor.talk import upload

ROOT = Path(__file__).parents[3]


def words(*said: str) -> list[str]:
    return [sys.executable, "-m", "services.cli", "governor", *said]


def environment(folder: Path, **settings: Any) -> dict[str, str]:
    given = {name: str(value) for name, value in settings.items()}
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(folder), "DATA_DIR": "data", **given}


async def weir_governor(folder: Path, *said: str, **settings: Any) -> tuple[int, str, str]:
    """Status, standard output, standard error."""
    child = await asyncio.create_subprocess_exec(
        *words(*said), cwd=folder, env=environment(folder, **settings),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(child.communicate(), 60)
    assert child.returncode is not None
    return child.returncode, out.decode(), err.decode()


def settings(folder: Path, **chosen: Any) -> LabSettings:
    return LabSettings(_env_file=None, data_dir=folder / "data", **chosen)  # type: ignore[call-arg]


def published(folder: Path, address: str) -> Lease:
    """A stack that runs there, as far as others can tell."""
    lease = Lease(folder / "data")
    lease.__enter__()
    lease.publish(
        StackNote(os.getpid(), "http://127.0.0.1:8123", "http://s", [], "postgresql://d", "redis://h", address)
    )
    return lease


def test_a_ping_leaves_with_what_the_original_client_leaves_with(tmp_path: Path) -> None:
    async def main() -> None:
        backend = Held()
        async with governor(backend) as stand:
            port = stand.process.bound_port
            status, _, printed = await weir_governor(tmp_path, "ping", GOVERNOR_PORT=port)
            assert (status, printed.startswith("recv v=0 verb=confirm")) == (0, True)
            line = await stand.connect()
            await line.send(*upload(b"x"))
            await until(lambda: backend.running == 1)
            assert (await weir_governor(tmp_path, "ping", GOVERNOR_PORT=port))[0] == 2
            backend.release.release()
            await until(lambda: backend.running == 0)
        assert (await weir_governor(tmp_path, "ping", GOVERNOR_PORT=port))[0] == 1

    asyncio.run(main())


def test_a_file_is_sent_to_the_stack_that_runs_here_and_to_no_other_port(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "job.json").write_text("{}")
        backend = Held()
        backend.release.release()
        async with governor(backend) as stand:
            lease = published(tmp_path, f"127.0.0.1:{stand.process.bound_port}")
            try:
                status, _, printed = await weir_governor(tmp_path, "send", "job.json", GOVERNOR_PORT=free_port())
            finally:
                lease.__exit__(None, None, None)
        assert (status, backend.started) == (0, 1), printed

    asyncio.run(main())


def test_an_address_that_is_given_goes_before_all_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with governor(Held()) as stand:
            address = f"127.0.0.1:{stand.process.bound_port}"
            status, out, _ = await weir_governor(
                tmp_path, "ping", "--addr", address, "--csv", GOVERNOR_PORT=free_port()
            )
        assert status == 0
        assert out.startswith("ts_unix_ms,verb,")

    asyncio.run(main())


def test_help_tells_what_the_client_can_do(tmp_path: Path) -> None:
    async def main() -> None:
        status, out, _ = await weir_governor(tmp_path, "send", "--help")
        assert (status, "--deadline-s" in out) == (0, True)

    asyncio.run(main())


def test_a_governor_alone_runs_until_it_is_told_to_leave(tmp_path: Path) -> None:
    async def main() -> None:
        port = free_port()
        child = await asyncio.create_subprocess_exec(
            *words("run"), cwd=tmp_path, stdout=subprocess.PIPE,
            env=environment(tmp_path, GOVERNOR_PORT=port, METRICS_PORT=free_port(), GOVERNOR_BACKEND="stub"),
        )  # fmt: skip
        try:
            await until(lambda: not is_free("127.0.0.1", port))
            assert await asyncio.to_thread(answers, f"127.0.0.1:{port}", 30.0)
            (tmp_path / "job").write_bytes(b"\x00anything")
            assert (await weir_governor(tmp_path, "send", "job", GOVERNOR_PORT=port))[0] == 0
        finally:
            child.terminate()
            await child.communicate()
        assert child.returncode == 0

    asyncio.run(main())


def test_alone_it_posts_to_the_router_that_runs_here_and_keeps_its_metrics_where_up_would(tmp_path: Path) -> None:
    alone = own(settings(tmp_path, router_port=8100, governor_port=7877))
    assert alone["GOVERNOR_UPSTREAM_URL"] == "http://127.0.0.1:8100/v1/completions"
    assert (alone["GOVERNOR_PORT"], alone["METRICS_PORT"]) == ("7877", "9107")
    lease = published(tmp_path, "127.0.0.1:7")
    try:
        beside = own(settings(tmp_path, metrics_port=9999))
    finally:
        lease.__exit__(None, None, None)
    assert beside["GOVERNOR_UPSTREAM_URL"] == "http://127.0.0.1:8123/v1/completions"
    assert beside["METRICS_PORT"] == "9999"


def test_status_asks_the_governor_in_its_own_words_and_a_full_one_is_ready(tmp_path: Path) -> None:
    async def main() -> None:
        backend = Held()
        async with governor(backend) as stand:
            line = await stand.connect()
            await line.send(*upload(b"x"))
            await until(lambda: backend.running == 1)
            stack = StackNote(1, "http://r", "http://s", [], "", "", f"127.0.0.1:{stand.process.bound_port}")
            address = services(stack)["governor"]
            assert await asyncio.to_thread(readiness, address) == "ready"
            backend.release.release()
        assert await asyncio.to_thread(readiness, address) == "does not answer"

    asyncio.run(main())


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b'{"v":0,"verb":"confirm"}\n'])
def test_something_else_on_its_port_is_no_governor(said: bytes) -> None:
    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(said)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0, family=socket.AF_INET)
        async with server:
            port = server.sockets[0].getsockname()[1]
            assert not await asyncio.to_thread(answers, f"127.0.0.1:{port}", 30.0)

    asyncio.run(main())
