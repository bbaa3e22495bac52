"""`python -m loadtests.load`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from loadtests.load.ledger import ON_TIME
from tests.loadtests.load.scripted import (
    Server,
    answer,
    serving,
)

ROOT = Path(__file__).parents[3]


def command(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loadtests.load", *args],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_command_runs_a_plan_and_writes_figures_and_rows(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(
        "seconds = 1\nwarmup_s = 0.2\ncooldown_s = 0.2\nlate_ms = 5000\n[[tenants]]\nname = 'a'\nper_s = 40\n"
        "deadline_ms = 20000\n"
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
    assert json.loads((tmp_path / "f.json").read_text())["generator_cpu_s"] > 0
    assert "of a core" in done.stdout


def test_a_trace_is_replayed_with_its_times_its_lengths_and_its_clients(tmp_path: Path) -> None:
    trace, plan, rows = tmp_path / "trace.csv", tmp_path / "plan.toml", tmp_path / "rows"
    trace.write_text("req_time,client,prompt_len,output_len\n0,a,10,5\n1,b,30,7\n4,a,20,9\n")
    plan.write_text(
        "seconds = 1\nwarmup_s = 0\ncooldown_s = 0\nlate_ms = 5000\n[[tenants]]\nname = 't'\ndeadline_ms = 20000\n"
        "deadline_per_token_ms = 100\ntrace = { time_scale = 10, token_scale = 2, by_client = true, repeat = false }\n"
    )

    async def commanded() -> tuple[subprocess.CompletedProcess[str], Server]:
        async with serving(answer) as (server, url):
            args = (str(plan), "--url", url, "--trace", str(trace), "--rows", str(rows))
            return await asyncio.to_thread(command, *args), server

    done, server = asyncio.run(commanded())
    assert done.returncode == 0, done.stderr
    kept = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [row["intended_s"] for row in kept] == [0, 0.1, 0.4]
    assert {row["ending"] for row in kept} == {ON_TIME}
    heard = sorted((each.headers["x-tenant"], each.headers["x-weir-deadline-ms"], each.body) for each in server.heard)
    assert [
        (tenant, deadline, body["max_tokens"], len(body["prompt"].split())) for tenant, deadline, body in heard
    ] == [
        ("t-a", "21000", 10, 20),
        ("t-a", "21800", 18, 40),
        ("t-b", "21400", 14, 60),
    ]


def test_a_plan_is_described_without_a_server_and_with_the_trace_that_is_given(tmp_path: Path) -> None:
    trace, told = tmp_path / "trace.csv", tmp_path / "f.json"
    trace.write_text("req_time,client,prompt_len,output_len\n0,a,100,50\n2,b,300,70\n")
    plan = ROOT / "loadtests" / "load" / "plans" / "replay.toml"
    done = command(str(plan), "--trace", str(trace), "--describe", "--url", "http://example.com", "--json", str(told))
    assert done.returncode == 0, done.stderr
    assert "tenants: 2" in done.stdout
    assert json.loads(told.read_text())["description"]["requests"] == 480


def test_the_command_refuses_a_plan_that_is_none_and_a_host_that_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("seconds = 1\n")
    assert command(str(path)).returncode == 2
    good = ROOT / "loadtests" / "load" / "plans" / "overload.toml"
    refused = command(str(good), "--url", "http://example.com")
    assert refused.returncode == 2
    assert "neither this machine" in refused.stderr
