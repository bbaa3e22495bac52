"""The embedded servers: real ones, killed and brought back."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import asyncpg
import psutil
import pytest

from services.cli.errors import LabError
from services.cli.ports import free_port, is_free
from services.cli.postgres import PASSWORD_FILE, EmbeddedPostgres
from services.cli.valkey import EmbeddedValkey
from tests.processes import is_alive


def query(url: str, *statements: str) -> list[list[asyncpg.Record]]:
    async def run() -> list[list[asyncpg.Record]]:
        connection = await asyncpg.connect(url, timeout=10)
        try:
            return [await connection.fetch(statement) for statement in statements]
        finally:
            await connection.close()

    return asyncio.run(run())


def test_a_fresh_database_has_pgvector(empty_url: str) -> None:
    *_, nearest = query(
        empty_url,
        "CREATE EXTENSION vector",
        "CREATE TABLE points (name text, place vector(2))",
        "INSERT INTO points VALUES ('near', '[1,1]'), ('far', '[9,9]')",
        "SELECT name FROM points ORDER BY place <-> '[0,0]' LIMIT 1",
    )
    assert nearest[0]["name"] == "near"


def test_rows_outlive_kill_9_and_the_server_comes_back(postgres: EmbeddedPostgres, postgres_url: str) -> None:
    query(postgres_url, "CREATE TABLE kept (x int)", "INSERT INTO kept SELECT generate_series(1, 1000)")
    before = postgres.pid
    postgres.kill()
    postgres.start()
    assert postgres.pid != before
    assert query(postgres_url, "SELECT count(*) AS n FROM kept")[0][0]["n"] == 1000


def test_a_stale_pid_file_whose_number_was_given_to_another_process_is_cleared(postgres: EmbeddedPostgres) -> None:
    postgres.stop()
    (postgres.data / "postmaster.pid").write_text(f"{os.getpid()}\n{postgres.data}\n0\n")
    postgres.start()
    assert postgres.running


def test_a_second_server_on_the_same_folder_is_refused_by_name(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    if not postgres.running:
        postgres.start()
    second = EmbeddedPostgres(postgres.data.parent, free_port(), log=tmp_path / "second.log")
    with pytest.raises(LabError, match=f"pid {postgres.pid}"):
        second.start()


def test_the_password_is_asked_for_and_readable_by_its_owner_only(
    postgres: EmbeddedPostgres, postgres_url: str
) -> None:
    assert stat.S_IMODE((postgres.data / PASSWORD_FILE).stat().st_mode) == 0o600
    with pytest.raises(asyncpg.InvalidPasswordError):
        query(f"postgresql://weir:guess@127.0.0.1:{postgres.port}/weir", "SELECT 1")


def test_the_cache_asks_for_its_password_and_bounds_its_memory(redis: EmbeddedValkey, redis_url: str) -> None:
    assert redis.command("PING") == "+PONG"
    stranger = EmbeddedValkey(redis._folder, redis.port, log=redis._log)
    with pytest.raises(LabError, match="another server"):
        stranger.command("PING")
    assert "maxmemory 64mb" in (redis._folder / "valkey.conf").read_text()
    assert redis_url == redis.url


def test_the_cache_comes_back_after_kill_9(redis: EmbeddedValkey) -> None:
    redis.kill()
    redis.start()
    assert redis.command("PING") == "+PONG"


def test_kill_9_of_the_supervisor_leaves_no_process_and_no_port(
    tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    ports = free_port(), free_port()
    script = textwrap.dedent(f"""
        import sys, time
        from pathlib import Path
        from services.cli.postgres import EmbeddedPostgres
        from services.cli.valkey import EmbeddedValkey
        here = Path({str(tmp_path)!r})
        database = EmbeddedPostgres(here / "postgres", {ports[0]}, log=here / "postgres.log", durable=False)
        cache = EmbeddedValkey(here / "valkey", {ports[1]}, log=here / "valkey.log")
        database.start(), cache.start()
        print(database.pid, cache.pid, flush=True)
        time.sleep(600)
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        servers = [psutil.Process(int(word)) for word in supervisor.stdout.readline().split()]
        assert len(servers) == 2
        supervisor.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(is_alive(server) for server in servers))
    wait_until(lambda: all(is_free("127.0.0.1", port) for port in ports))
