"""An ingest as a process: killed in the middle, and followed by a program."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.retrieval.corpus import BREAD, RIVER, ingested, outcome, settings_for, write
from tests.retrieval.test_ingest import killed_at_the_fifth, query


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
