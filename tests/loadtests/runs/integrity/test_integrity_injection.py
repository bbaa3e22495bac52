"""Faults are spread over a part of the run; where they are to be alone, each waits for the end of the one before."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from loadtests.cluster.processes import StandError
from loadtests.cluster.stack import Stack
from loadtests.runs.integrity import schedule
from loadtests.runs.integrity.injection import FaultInjector
from loadtests.runs.integrity.schedule import ROUTER, WORKER, PlannedFault, What
from tests.virtual import run

BACK_S = 5.0  # virtual seconds until a killed part is ready again
SEEN_S = 2.0  # and until the router has seen it


class Part:
    """A part that takes a while to come back."""

    def __init__(self, stack: FakeStack) -> None:
        self._stack = stack

    def kill(self) -> None:
        self._stack.lacking_at_kills.append(self._stack.lacking)
        self._stack.lacking += 1

    async def start(self) -> None:
        await asyncio.sleep(BACK_S)
        asyncio.get_running_loop().call_later(SEEN_S, self._seen)

    def _seen(self) -> None:
        self._stack.lacking -= 1


class FakeStack:
    """Three workers and a router with a log of ten bytes."""

    def __init__(self, log: Path) -> None:
        log.write_bytes(b"0123456789")
        names = [f"worker-{number}" for number in range(3)]
        self.workers = [SimpleNamespace(process=SimpleNamespace(name=name)) for name in names]
        self.parts = {name: Part(self) for name in (*names, "router")}
        self.router = SimpleNamespace(process=SimpleNamespace(log=log))
        self.lacking = 0
        self.lacking_at_kills: list[int] = []
        self.never_whole = False

    async def until_whole(self, within_s: float) -> None:
        if self.never_whole:
            await asyncio.sleep(within_s)
            raise StandError("not whole")
        while self.lacking:
            await asyncio.sleep(0.1)


def played(stack: FakeStack, count: int, **how: Any) -> FaultInjector:
    injector = FaultInjector(cast(Stack, stack), schedule.kills(1), count, seconds=4.0, chance=Random(1), **how)
    run(injector.run)
    return injector


def test_faults_of_different_parts_may_be_at_once_unless_they_are_to_be_alone(tmp_path: Path) -> None:
    together, alone = FakeStack(tmp_path / "log"), FakeStack(tmp_path / "log")
    played(together, 3)
    assert max(together.lacking_at_kills) > 0
    injector = played(alone, 3, alone=True)
    assert alone.lacking_at_kills == [0, 0, 0]  # not before the router has seen that the last one is back
    assert len(injector.spans) == len(injector.kills()) == 3
    assert injector.troubles() == []  # clients feel nothing of a worker at their own connections


def test_a_router_that_lacks_something_for_long_has_to_bear_the_next_fault_too(tmp_path: Path) -> None:
    stack = FakeStack(tmp_path / "log")
    stack.never_whole = True
    assert len(played(stack, 2, alone=True).spans) == 2


def test_where_a_new_life_of_the_router_begins_in_its_log_is_noted(tmp_path: Path) -> None:
    injector = FaultInjector(
        cast(Stack, FakeStack(tmp_path / "log")), iter([PlannedFault(ROUTER, What.KILL)] * 40), 1, 1.0, Random(1)
    )  # fmt: skip
    run(injector.run)
    assert injector.router_logged == [10]
    assert [trouble.kills for trouble in injector.troubles()] == [True]
    assert injector.kills() == []
    assert PlannedFault(WORKER, What.KILL) not in {span.card for span in injector.spans}
