"""`python -m loadtests.openloop`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from loadtests.openloop.ledger import ON_TIME
from tests.loadtests.openloop.scripted import (
    Server,
    answer,
    serving,
)

ROOT = Path(__file__).parents[3]


def command(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loadtests.openloop", *args],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_command_runs_a_plan_and_writes_figures_and_rows(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(
        "seconds = 1\nwarmup_s = 0.2\ncooldown_s = 0.2\nlate_ms = 5000\n[[tenants]]\nname = 'a'\nper_s = 40\n"
    )

    async def commanded() -> tuple[subprocess.CompletedProcess[str], Server]:
        async with serving(answer) as (server, url):
            args = (str(path), "--url", url, "--json", str(tmp_path / "f.json"), "--rows", str(tmp_path / "rows"))
            return await asyncio.to_thread(command, *args), server

    done, server = asyncio.run(commanded())
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "f.json").read_text())["figures"]
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert found["requests"] == len(rows) == len(server.heard) > 10
    assert {row["ending"] for row in rows} == {ON_TIME}
    assert f"{len(rows)} requests" in done.stdout


def test_the_command_refuses_a_plan_that_is_none_and_a_host_that_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("seconds = 1\n")
    assert command(str(path)).returncode == 2
    good = ROOT / "loadtests" / "openloop" / "plans" / "overload.toml"
    refused = command(str(good), "--url", "http://example.com")
    assert refused.returncode == 2
    assert "neither this machine" in refused.stderr
