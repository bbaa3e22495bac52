"""Starts services as child processes, waits until they are ready, and stops them in order at the end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console, RenderableType
from rich.text import Text

from services.cli.child import PRIVATE_FOLDER, Child
from services.cli.child_group import ChildGroup, raise_if_dead
from services.cli.display import display_for
from services.cli.errors import LabError, complain
from services.cli.internal import shown
from services.cli.parts import ServicePart
from services.runtime.settings import environment

EXIT_FAILED = 1
READY_WITHIN_S = 60.0  # plus the time to load a model
PROBE_INTERVAL_S = 0.05
PROGRESS_INTERVAL_S = 15.0  # between two messages that it still loads
SPARE_S = 2.0  # added to drain delay and drain timeout before SIGKILL


@dataclass(frozen=True, slots=True)
class StartPlan:
    start: Callable[[], Coroutine[Any, Any, None]]
    ending: Callable[[], RenderableType] | None = None


class Supervisor:
    def __init__(self, console: Console, names: Sequence[str], logs: Path, *, leave_s: float) -> None:
        self.display = display_for(console, list(names))
        self.child_group = ChildGroup(on_lost=lambda why: self._show_if_open(why))
        self.logs = logs
        logs.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        logs.chmod(PRIVATE_FOLDER)  # an earlier version made it readable for all
        self._console = console
        self._stop_within_s = leave_s + SPARE_S
        self._environment = environment()

    async def play(self, plan: StartPlan) -> int:
        """Start everything, and wait until it is stopped. Returns the exit code."""
        leaving = asyncio.Event()
        self._obey_signals(leaving)
        try:
            with self.display.shown():
                await self._until_stopped(leaving, plan.start())
            if not leaving.is_set():
                if plan.ending is not None:
                    self.display.show(plan.ending())
                await self._until_stopped(leaving, asyncio.Event().wait())
        except LabError as error:
            complain(self._console, error)
            return EXIT_FAILED
        finally:
            await self._stop()
        return 0

    def child(self, name: str, words: Sequence[str], env: Mapping[str, str]) -> Child:
        """A Python child process, not started yet."""
        return Child(name, [sys.executable, *words], {**self._environment, **env}, self.logs / f"{name}.log")

    async def serve(self, part: ServicePart, tier: int, *, vital: bool = True) -> None:
        """Start a service and wait until it is ready. The stack survives the end of one that is not `vital`."""
        self.display.starting(part.name, f"{part.host}:{part.port}", part.note)
        child = self.child(part.name, ["-m", part.module], part.env)
        child.spawn()
        self.child_group.take(child, tier, self._stop_within_s, vital=vital)
        await self._until_ready(part, child)
        self.display.ready(part.name, child.pid, part.note)

    async def _until_ready(self, part: ServicePart, child: Child) -> None:
        loop = asyncio.get_running_loop()
        began_s, reported_at = loop.time(), loop.time()
        within_s = READY_WITHIN_S + part.loads_s
        last_answer = "it does not answer"
        async with httpx2.AsyncClient(timeout=2.0, trust_env=False) as client:
            while (now := loop.time()) < began_s + within_s:
                raise_if_dead(child)
                ready, last_answer = await _look(client, part, last_answer)
                if ready:
                    return
                if now - reported_at >= PROGRESS_INTERVAL_S:
                    reported_at = now
                    self.display.starting(part.name, note=f"{part.note}, for {now - began_s:.0f} s".lstrip(", "))
                await asyncio.sleep(PROBE_INTERVAL_S)
        raise LabError(
            f"{part.name} was not ready within {within_s:.0f} s ({last_answer}); its log: {child.log}",
            notes=child.tail(8),
        )

    async def _stop(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        self._show_if_open("Stopping (Ctrl-C again: at once) ...")
        killed = await self.child_group.stop()
        if killed:
            self._show_if_open(f"These did not stop in time and were killed: {', '.join(killed)}.")
        self._show_if_open(f"Stopped in {loop.time() - began_s:.1f} s. Nothing is left running.")

    def _show_if_open(self, words: str) -> None:
        """A closed terminal or pipe must not keep the stack from stopping."""
        with contextlib.suppress(OSError, LabError):
            self.display.show(Text(words, style="dim"))

    async def _until_stopped(self, leaving: asyncio.Event, work: Coroutine[Any, Any, object]) -> None:
        """Wait for the work, a signal, or the end of a child (which raises), whichever is first."""
        tasks = [asyncio.ensure_future(each) for each in (work, leaving.wait(), self.child_group.watch())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _obey_signals(self, leaving: asyncio.Event) -> None:
        """The first signal stops everything in order; the second kills the children."""

        def received() -> None:
            if leaving.is_set():
                self.child_group.kill()
            leaving.set()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, received)


async def _look(client: httpx2.AsyncClient, part: ServicePart, last_answer: str) -> tuple[bool, str]:
    try:
        reply = await client.get(part.ready_url, headers=shown(part.env.get("INTERNAL_TOKEN", "")))
    except httpx2.HTTPError:
        return False, last_answer
    return reply.status_code == 200, reply.text[:200]
