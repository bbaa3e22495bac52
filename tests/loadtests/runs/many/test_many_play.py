"""One run from outside: it ends in time, and what it made is gone, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from loadtests.cluster.processes import StandError
from loadtests.runs.many import play as running
from loadtests.runs.many.sizes import QUICK
from tests.virtual import run


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was made and removed, in its order. Nothing is done to the machine."""
    taken: list[str] = []

    @contextmanager
    def step(name: str) -> Iterator[None]:
        taken.append(f"{name} made")
        try:
            yield
        finally:
            taken.append(f"{name} gone")

    @asynccontextmanager
    async def standing(*_: object) -> AsyncIterator[None]:
        with step("processes"):
            yield

    monkeypatch.setattr(running, "lacking", str)
    monkeypatch.setattr(running, "made", lambda net: step("network"))
    monkeypatch.setattr(running, "entered", lambda node: step("entry"))
    monkeypatch.setattr(running, "standing", standing)
    return taken


MADE = ["network made", "entry made", "processes made"]
GONE = ["processes gone", "entry gone", "network gone"]


def test_a_run_that_does_not_end_is_given_up_and_everything_is_removed(
    steps: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def endless(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(running, "_played", endless)
    with pytest.raises(StandError, match=f"not over after {QUICK.limit_s:.0f} s"):
        run(running.play(QUICK, tmp_path / "logs", lambda text: None))
    assert steps == [*MADE, *GONE]


def test_an_interrupted_run_removes_everything(
    steps: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(running, "_played", interrupted)
    with pytest.raises(asyncio.CancelledError):
        run(running.play(QUICK, tmp_path / "logs", lambda text: None))
    assert steps == [*MADE, *GONE]


def test_what_a_machine_lacks_is_an_error_before_anything_is_made(
    steps: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "lacking", lambda: "network namespaces need root: sudo make many")
    with pytest.raises(StandError, match="need root"):
        run(running.play(QUICK, tmp_path / "logs", lambda text: None))
    assert steps == []
    assert not (tmp_path / "logs").exists()


def test_the_faults_of_a_seed_are_listed_before_the_run(
    steps: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(running, "_played", nothing)
    listed: list[list[str]] = []
    for folder in ("one", "two"):
        lines: list[str] = []
        run(running.play(QUICK, tmp_path / folder, lines.append))
        listed.append(lines)
    assert listed[0] == listed[1]
    assert [line.split(":")[0] for line in listed[0]] == [f"seed 1, fault {number}" for number in range(1, 5)]
