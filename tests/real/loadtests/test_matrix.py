"""The machinery of the matrix on real processes: subjects stand and go, workers fail and heal, results are kept."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from loadtests.cluster.processes import free_ports, get
from loadtests.cluster.stand import Stand, start_router
from loadtests.paths import ROOT
from loadtests.runs.matrix import playing
from loadtests.runs.matrix.cases import BESIDE, SERIES, case
from loadtests.runs.matrix.cell import Cell, Series
from loadtests.runs.matrix.kept import Kept
from loadtests.runs.matrix.play import Played, make_slow, play
from loadtests.runs.matrix.playing import Playing, workers_of
from loadtests.runs.matrix.setup import Setup
from loadtests.runs.matrix.subjects import (
    SUBJECTS,
    WEIR,
    Command,
    Deadlines,
    Subject,
    admin_url,
    at_rest,
    haproxy,
    values,
)
from tests.loadtests.runs.matrix.made import a_stand
from tests.processes import is_alive

DEADLINES = Deadlines(1000, 1000)
PACE = 0.12
HEALS_WITHIN_S = 20.0
BY_NAME = {subject.name: subject for subject in SUBJECTS}
PROXIES = [subject for subject in SUBJECTS if subject.name.startswith("haproxy")]
installed = pytest.mark.skipif(haproxy() is None, reason="haproxy is not installed")


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "loadtests.runs.matrix", *arguments]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_scenarios_and_subjects_can_be_listed() -> None:
    listed = command("--list")
    assert listed.returncode == 0
    names = [line.split()[0] for line in listed.stdout.splitlines() if line]
    assert names == [*SERIES, *BESIDE, *BY_NAME]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--url", "http://example.com"), "--url"),
        (("no_such_scenario",), "no_such_scenario"),
        (("outage", "--set", "tenants.0.retries.attempts=99"), "real processes try 10 times more at most"),
        (("baseline", "--against", "weir,nginx"), "--against: there is no nginx"),
    ],
)
def test_what_cannot_be_played_is_said_before_anything_starts(arguments: tuple[str, ...], told: str) -> None:
    refused = command(*arguments)
    assert refused.returncode == 2
    assert told in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_stack_that_does_not_answer_is_a_fault_of_each_run(tmp_path: Path) -> None:
    away = f"http://127.0.0.1:{free_ports(1)[0]}"
    missed = command("baseline", "--url", away, "--workers", away, "--quick", "--out", str(tmp_path))
    assert missed.returncode == 1
    assert missed.stdout.count("could not be played") >= 1
    assert "Traceback" not in missed.stderr


def told(stand: Stand, path: str) -> Any:
    return json.loads(get(admin_url(stand) + path))


async def check_subjects(workers: Stand) -> None:
    """A subject stands before the workers while it is played, and afterwards nothing does."""
    async with BY_NAME["fifo"].standing(workers, ("a",), frozenset(), DEADLINES) as asked:
        assert set(told(asked, "/admin/policy").values()) == {False}
        router = asked.servers[-1].process
        assert router.running
    assert not router.running
    assert workers.router is None
    if haproxy() is not None:
        async with BY_NAME["haproxy"].standing(workers, ("a",), frozenset(), DEADLINES) as asked:
            assert asked.workers == workers.workers
            proxy = asked.servers[-1].process
            assert proxy.running
        assert not proxy.running


async def check_given(workers: Stand) -> None:
    """A router that was given is switched and whole again, and it is not stopped."""
    await start_router(workers, ("a",))
    assert workers.router is not None
    async with BY_NAME["no_admission"].standing(workers, ("a",), frozenset(), DEADLINES) as asked:
        assert asked is workers
        assert told(asked, "/admin/policy")["admission"] is False
    await at_rest(workers)
    assert set(told(workers, "/admin/policy").values()) == {True}
    await workers.router.process.stop()
    workers.router = None


def check_trouble(stand: Stand) -> None:
    """A worker that is made slow heals by itself, without us."""
    faults = stand.workers[0].metrics_url.removesuffix("/metrics") + "/faults"
    make_slow(stand.workers[:1], 8.0, 0.5)
    assert json.loads(get(faults))["slow_factor"] == 8
    end = time.monotonic() + HEALS_WITHIN_S
    while json.loads(get(faults))["slow_factor"] != 1:
        assert time.monotonic() < end, "the worker did not heal"
        time.sleep(0.1)


def check_cell(cell: Cell) -> None:
    """Whatever the machine was like: everything was counted once."""
    assert cell.fault == ""
    assert cell.requests > 0
    assert cell.capacity_per_s > 0
    assert cell.gateway_ms > 0
    for row in cell.rows:
        assert row.on_time + row.refused + row.failed == pytest.approx(1)
        assert 0 <= row.in_vain <= 1
        assert row.dropped <= row.refused
    assert sum(second.sent for second in cell.seconds) == cell.requests


def test_subjects_stand_and_go_and_workers_heal() -> None:
    async def play() -> list[psutil.Process]:
        async with workers_of(case("baseline")) as stand:
            await check_subjects(stand)
            await check_given(stand)
            check_trouble(stand)
            return [psutil.Process(server.process.pid) for server in stand.servers]

    left = uvloop.run(play())
    assert not any(is_alive(process) for process in left)


@pytest.mark.timeout(180)
def test_scenarios_are_played_by_subjects_and_each_result_is_kept(tmp_path: Path) -> None:
    said: list[str] = []
    kept = Kept(tmp_path / "series.json", Series("abc"), said.append)
    routers = filter(case("baseline").is_for, SUBJECTS)
    there = [subject for subject in routers if subject.is_router or subject.name == "haproxy"]
    subjects = [subject for subject in there if not subject.missing()]
    jobs = [(played, subject) for played in (case("baseline"), case("slow_worker")) for subject in subjects]
    playing = Playing(workers_of, jobs, said.append, kept.keep, "a test", PACE)
    uvloop.run(playing.all())
    last, by = jobs[-1]
    assert playing.doing == f"{len(jobs)} of {len(jobs)}, {last.name} by {by.title}"
    assert playing.takes_s > 0
    for cell in kept.series.cells.values():
        check_cell(cell)
    assert len(kept.series.cells) == len(jobs)
    first = kept.series.cell("baseline", WEIR.name)
    assert first is not None
    assert {tenant.name for tenant in first.rows[0].tenants} == {"tenant-1", "tenant-2", "tenant-3"}
    rows = [row for cell in kept.series.cells.values() if cell.subject == WEIR.name for row in cell.rows]
    assert any(row.answers_per_s > 0 for row in rows)  # late ones too: how fast the machine is was not asked here
    assert any(f"1 of {len(jobs)}" in line for line in said)


@pytest.mark.timeout(180)
def test_each_tenant_enters_by_its_own_frontend_and_each_subject_stands_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    made = case("two_frontends")
    subjects = [BY_NAME[name] for name in ("weir", "no_exchange", "one_router", "haproxy")]
    jobs = [(made, subject) for subject in subjects if not subject.missing()]
    fronts: list[int] = []

    async def watched(setup: Setup, *given: Any, **more: Any) -> Played:
        assert (setup.enters, setup.stand.weights) == (made.enters, made.weights)
        fronts.append(len(setup.stand.fronts))
        return await play(setup, *given, **more)

    monkeypatch.setattr(playing, "play", watched)
    cells: list[Cell] = []
    uvloop.run(Playing(workers_of, jobs, lambda text: None, cells.append, "a test", PACE).all())
    assert fronts == [2, 2, 1, 2][: len(jobs)]
    for cell in cells:
        check_cell(cell)
        assert cell.figures["miscounted"] == 0  # by all frontends together


def test_a_gateway_that_ends_is_a_fault_in_its_own_cell_and_no_more(tmp_path: Path) -> None:
    def build(program: Path, given: Mapping[str, str], folder: Path) -> Command:
        return Command([str(program), "-c", "echo cannot start; exit 3"], "http://127.0.0.1:9/health")

    broken = Subject("broken", "broken", "a gateway", program=lambda: Path("/bin/sh"), build=build)
    kept: list[Cell] = []
    said: list[str] = []
    jobs = [(case("baseline"), broken)]
    asyncio.run(Playing(workers_of, jobs, said.append, kept.append, "here", PACE).all())
    (cell,) = kept
    assert cell.key == "baseline broken"
    assert "gateway has ended; its last words:\ncannot start" in cell.fault
    assert any("could not be played" in line for line in said)


@installed
@pytest.mark.parametrize("subject", PROXIES, ids=lambda subject: subject.name)
def test_haproxy_itself_accepts_the_configuration(subject: Subject, tmp_path: Path) -> None:
    assert subject.build is not None
    made = subject.build(Path("/bin/the-program"), values(a_stand(tmp_path), DEADLINES, 6001, 6002), tmp_path)
    checked = subprocess.run(
        [str(haproxy()), "-c", *made.line[2:]], env=dict(made.env or {}), capture_output=True, text=True, check=False
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    assert "warning" not in checked.stderr.lower()
