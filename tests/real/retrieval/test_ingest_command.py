"""The command `ingest` as a process: killed, and followed by a program."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg

from services.retrieval.database import connect
from tests.retrieval.corpus import BREAD, RIVER, ingested, outcome, settings_for, write


def query(url: str, sql: str, *arguments: object) -> list[Any]:
    async def ask() -> list[Any]:
        connection = await asyncpg.connect(url)
        try:
            return [tuple(row) for row in await connection.fetch(sql, *arguments)]
        finally:
            await connection.close()

    return asyncio.run(ask())


HELD_UP = """
CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NEW; END';
CREATE TRIGGER hold_up BEFORE INSERT ON documents FOR EACH ROW WHEN (NEW.doc_id = '04.txt') EXECUTE FUNCTION hold_up();
SELECT pg_advisory_lock(4711);
"""
WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
OF_INGEST = "FROM pg_stat_activity WHERE application_name = 'weir-ingest' AND datname = current_database()"


async def killed_at_the_fifth(url: str, folder: Path) -> None:
    """An ingest that ends by SIGKILL while its fifth document is being written."""
    await _schema(url)
    holder = await asyncpg.connect(url)
    await holder.execute(HELD_UP)
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.retrieval.ingest", str(folder), "--progress", "none",
        env={**os.environ, "POSTGRES_URL": url}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    async with asyncio.timeout(300):
        while not await holder.fetchval(WAITING):
            await asyncio.sleep(0.02)
        killed.kill()
        assert await killed.wait() == -signal.SIGKILL
        while await holder.fetchval(f"SELECT count(pg_terminate_backend(pid)) {OF_INGEST}"):
            await asyncio.sleep(0.02)
    await holder.execute("DROP FUNCTION hold_up CASCADE")
    await holder.close()


def test_an_ingest_that_is_killed_goes_on_where_it_was_and_embeds_nothing_twice(
    postgres_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    for number in range(10):
        (folder / f"{number:02}.txt").write_text("\n\n".join([f"{number} {BREAD}" * 8] * 4))
    asyncio.run(killed_at_the_fifth(postgres_url, folder))
    per_document = "SELECT doc_id, version, (SELECT count(*) FROM chunks c WHERE c.doc_id = d.doc_id) FROM documents d"
    before = {row[0]: row[1:] for row in query(postgres_url, per_document)}
    assert set(before) == {"00.txt", "01.txt", "02.txt", "03.txt"}
    summary = ingested(settings_for(postgres_url), folder)
    after = {row[0]: row[1:] for row in query(postgres_url, per_document)}
    assert outcome(summary) == (6, 0, 4, 0)
    assert summary.embedded == sum(chunks for doc_id, (_, chunks) in after.items() if doc_id not in before) > 6
    assert {doc_id: after[doc_id] for doc_id in before} == before


async def _schema(url: str) -> None:
    (await connect(url, timeout_s=20, application="test")).terminate()


def test_the_command_prints_json_lines_that_a_program_can_follow(postgres_url: str, tmp_path: Path) -> None:
    folder = write(tmp_path, a_md=RIVER, bad_txt=b"\0")
    ran = subprocess.run(
        [sys.executable, "-m", "services.retrieval.ingest", str(folder), "--progress", "json", "--tenant", "acme"],
        env={**os.environ, "POSTGRES_URL": postgres_url}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 3, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert lines[:2] == [{"step": "read", "done": 2, "total": 2}, {"step": "embed", "done": 1, "total": 1}]
    assert lines[-1]["step"] == "finished"
    assert lines[-1]["added"] == 1
    assert [Path(fault["path"]).name for fault in lines[-1]["skipped"]] == ["bad.txt"]
