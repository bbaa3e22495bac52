"""Child processes that are watched together and stopped in reverse order: the router first, the stores last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, NoReturn

from services.cli.child import Child, describe_exit, trim
from services.cli.errors import LabError

WATCH_INTERVAL_S = 0.1
TRIM_INTERVAL_LOOKS = 100


@dataclass
class Watched:
    child: Child
    tier: int  # higher tiers depend on lower ones, and are stopped first
    stop_within_s: float
    vital: bool = True
    lost: bool = False


@dataclass
class ChildGroup:
    children: list[Watched] = field(default_factory=list)
    on_lost: Callable[[str], None] = lambda why: None

    def take(self, child: Child, tier: int, stop_within_s: float, *, vital: bool = True) -> None:
        """Watch a child that has been started; `stop` stops it with its tier."""
        self.children.append(Watched(child, tier, stop_within_s, vital))

    async def watch(self) -> NoReturn:
        """Never returns. Raises LabError when a vital child ends."""
        looks = 0
        while True:
            for watched in self.children:
                self._look(watched)
            if looks % TRIM_INTERVAL_LOOKS == 0:
                for watched in self.children:
                    trim(watched.child.log)
            looks += 1
            await asyncio.sleep(WATCH_INTERVAL_S)

    def _look(self, watched: Watched) -> None:
        if watched.vital:
            raise_if_dead(watched.child)
        elif not watched.lost and (code := watched.child.poll()) is not None:
            watched.lost = True
            self.on_lost(
                f"{watched.child.name} ended ({describe_exit(code)}); the other processes continue: {watched.child.log}"
            )

    async def stop(self) -> list[str]:
        """Stop everything, highest tier first. Returns the names of children killed after their time."""
        killed: list[str] = []
        for tier in sorted({watched.tier for watched in self.children}, reverse=True):
            members = [watched for watched in self.children if watched.tier == tier]
            left = await asyncio.gather(*(asyncio.to_thread(m.child.stop, m.stop_within_s) for m in members))
            killed += [m.child.name for m, by_itself in zip(members, left, strict=True) if not by_itself]
        return killed

    def kill(self) -> None:
        for watched in self.children:
            if watched.child.running:
                watched.child.kill()


def raise_if_dead(child: Child) -> None:
    code = child.poll()
    if code is not None:
        raise LabError(f"{child.name} ended ({describe_exit(code)}); its log: {child.log}", notes=child.tail(8))


async def together(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run all; the first failure cancels the others and is raised as itself, not as a group."""
    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in coroutines:
                group.create_task(coroutine)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
