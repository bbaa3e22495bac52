"""The first corpus: what the ingester's process tells becomes progress and a few words."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from services.cli import seed
from services.cli.child import Child
from services.cli.seed import SeedStep


def printed(tmp_path: Path, script: str) -> tuple[list[SeedStep], tuple[bool, str]]:
    child = Child("ingest", [sys.executable, "-c", script], env=dict(os.environ), log=tmp_path / "ingest.log")
    child.spawn()

    async def collect() -> list[SeedStep]:
        return [step async for step in seed.steps(child)]

    steps = asyncio.run(collect())
    finished = steps[-1] if steps and steps[-1].name == seed.FINISHED else None
    return steps, seed.summary(finished, child)


def test_each_line_is_a_step_and_noise_is_passed_over(tmp_path: Path) -> None:
    script = """if True:
        print('{"step": "embed", "done": 3, "total": 9}')
        print('a library has something to say')
        print('[1, 2]')
        print('{"step": "finished", "done": 4, "total": 5, "added": 3, "completed": 2, "removed": 1, "skipped": [{}]}')
    """
    steps, (there, words) = printed(tmp_path, script)
    assert [(step.name, step.done, step.total) for step in steps] == [("embed", 3, 9), ("finished", 4, 5)]
    assert there
    assert words == "4 documents: 3 added, 2 embedded again, 1 removed, 1 skipped, see ingest.log"


@pytest.mark.parametrize(
    ("finished", "there", "words"),
    [
        ('{"step": "finished", "done": 2, "total": 2, "added": 0}', True, "2 documents: nothing has changed"),
        ('{"step": "finished", "done": 0, "total": 0}', False, "no documents there"),
        ('{"step": "finished", "done": 0, "total": 3}', False, "none of 3 files could be read"),
        ("ingest: the database was lost", False, "not ingested: ingest: the database was lost"),
    ],
)
def test_the_end_is_told_in_a_few_words(tmp_path: Path, finished: str, there: bool, words: str) -> None:
    _, summary = printed(tmp_path, f"print({finished!r})")
    assert summary == (there, words)
