"""Children in order: started together where they may be, watched, and stopped in reverse.

`ChildGroup` decides nothing about what runs; it keeps the promises. A child that ends unasked becomes a `LabError`
that names it, its exit code, its last words and its log; one that the others do without is only told of. `stop` goes
through the tiers in reverse (the front door first, so that what runs can finish; the stores last), asks each politely,
and insists after a bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, NoReturn

from services.cli.child import Child, describe_exit, trim
from services.cli.errors import LabError

LOOK_EVERY_S = 0.1
TRIM_EVERY_LOOKS = 100


@dataclass
class Watched:
    child: Child
    tier: int  # higher tiers lean on lower ones, and are stopped before them
    stop_within_s: float
    vital: bool = True
    lost: bool = False


@dataclass
class ChildGroup:
    children: list[Watched] = field(default_factory=list)
    on_lost: Callable[[str], None] = lambda why: None

    def take(self, child: Child, tier: int, stop_within_s: float, *, vital: bool = True) -> None:
        """Watch a child that has been started, and stop it when its tier's turn comes."""
        self.children.append(Watched(child, tier, stop_within_s, vital))

    async def watch(self) -> NoReturn:
        """Return never; raise when a child has ended that nobody asked to end."""
        looks = 0
        while True:
            for watched in self.children:
                self._look(watched)
            if looks % TRIM_EVERY_LOOKS == 0:
                for watched in self.children:
                    trim(watched.child.log)
            looks += 1
            await asyncio.sleep(LOOK_EVERY_S)

    def _look(self, watched: Watched) -> None:
        if watched.vital:
            raise_if_dead(watched.child)
        elif not watched.lost and (code := watched.child.poll()) is not None:
            watched.lost = True
            self.on_lost(
                f"{watched.child.name} ended ({describe_exit(code)}), and the others go on: {watched.child.log}"
            )

    async def stop(self) -> list[str]:
        """Stop everything, highest tier first. The names of those that had to be killed."""
        killed: list[str] = []
        for tier in sorted({watched.tier for watched in self.children}, reverse=True):
            members = [watched for watched in self.children if watched.tier == tier]
            left = await asyncio.gather(*(asyncio.to_thread(m.child.stop, m.stop_within_s) for m in members))
            killed += [m.child.name for m, by_itself in zip(members, left, strict=True) if not by_itself]
        return killed

    def kill(self) -> None:
        """No more patience: SIGKILL to every child."""
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
