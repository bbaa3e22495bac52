"""`weir up`: the whole platform on one machine, from one process that cleans up after itself.

The story, in order:

1. take the folder's lease (one stack per folder), refuse ports that are taken, all of them at once;
2. start what depends on nothing: PostgreSQL, Valkey, the workers, the router (it waits for workers by itself);
3. start retrieval as soon as the database answers;
4. ingest the first corpus, skipping what has not changed;
5. say where everything is; then wait for Ctrl-C, SIGTERM, or a child that dies;
6. stop in reverse order, within bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Coroutine, Mapping
from typing import Any

import httpx2
from rich.console import Console
from rich.text import Text

from services.lab import parts, seed
from services.lab.child import Child
from services.lab.config import LabSettings
from services.lab.display import Display, display_for
from services.lab.errors import LabError, complain
from services.lab.lease import Lease, StackNote
from services.lab.parts import Part
from services.lab.ports import Port, holder, taken
from services.lab.postgres import EmbeddedPostgres
from services.lab.supervisor import Supervisor, raise_if_dead, together
from services.lab.valkey import EmbeddedValkey
from services.lab.welcome import welcome
from services.runtime.settings import environment

POSTGRES, VALKEY, RETRIEVAL, ROUTER, CORPUS = "PostgreSQL", "Valkey", "retrieval", "router", "corpus"
STORES, BEHIND, FRONT = range(3)  # tiers: each leans on those before it
EXIT_FAILED = 1
READY_WITHIN_S = 60.0
PROBE_EVERY_S = 0.05
STORE_STOP_S = 5.0
ONCE_STOP_S = 2.0
SPARE_S = 2.0  # a service gets its drain timeout and this much more before SIGKILL


def up(settings: LabSettings, console: Console) -> int:
    """Run the stack until it is told to stop. The exit code."""
    with Lease(settings.folder) as lease:
        refuse_taken_ports(settings)
        return asyncio.run(Stack(settings, lease, console).run())


def refuse_taken_ports(settings: LabSettings) -> None:
    """All of them at once, before anything is started."""
    if clashes := parts.clashes(settings):
        raise LabError("Two parts would share a port (metrics listen 1000 above); move one.", notes=tuple(clashes))
    conflicts = taken(parts.ports(settings))
    if conflicts:
        lines = tuple(f"{port.number} ({port.name}): held by {holder(port.number)}" for port in conflicts)
        several = "These ports are" if len(conflicts) > 1 else "This port is"
        raise LabError(f"{several} taken, nothing was started. Choose others: {another_way(conflicts)}", notes=lines)


def another_way(conflicts: list[Port]) -> str:
    """The command that would move what is in the way, a hundred ports up."""
    moved: dict[str, int] = {}
    for port in conflicts:
        number = port.number - 1000 if port.name.endswith("metrics") else port.number
        moved[port.setting] = min(moved.get(port.setting, 65535), number + 100)
    return "make up " + " ".join(f"{setting}={number}" for setting, number in moved.items())


class Stack:
    """What `up` starts; one object per run."""

    def __init__(self, settings: LabSettings, lease: Lease, console: Console) -> None:
        self._settings = settings
        self._lease = lease
        self._console = console
        self._logs = settings.folder / "logs"
        self._supervisor = Supervisor()
        self._environment = environment()
        self._ready_at = 0.0
        self._urls = {POSTGRES: settings.postgres_url, VALKEY: settings.redis_url}
        names = [POSTGRES, VALKEY, *(part.name for part in parts.workers(settings)), RETRIEVAL, ROUTER, CORPUS]
        self._display: Display = display_for(console, names)

    async def run(self) -> int:
        leaving = asyncio.Event()
        self._obey_signals(leaving)
        began_s = asyncio.get_running_loop().time()
        try:
            with self._display.shown():
                await self._unless_told_to_leave(leaving, self._start())
            if not leaving.is_set():
                whole_s = asyncio.get_running_loop().time() - began_s
                self._display.say(welcome(self._settings, self._ready_at - began_s, whole_s))
                await self._unless_told_to_leave(leaving, asyncio.Event().wait())
        except LabError as error:
            complain(self._console, error)
            return EXIT_FAILED
        finally:
            await self._stop()
        return 0

    async def _start(self) -> None:
        settings = self._settings
        simulated = [self._serve(part, BEHIND) for part in parts.workers(settings)]
        await together(self._retrieval_behind_its_stores(), *simulated, self._serve(parts.router(settings), FRONT))
        self._ready_at = asyncio.get_running_loop().time()
        self._publish()
        await self._seed()

    async def _retrieval_behind_its_stores(self) -> None:
        settings = self._settings
        database = EmbeddedPostgres(
            settings.folder / "postgres", settings.embedded_postgres_port, log=self._logs / "postgres.log"
        )
        cache = EmbeddedValkey(settings.folder / "valkey", settings.embedded_redis_port, log=self._logs / "valkey.log")
        await together(
            self._embed(POSTGRES, "POSTGRES_URL", database, "" if database.exists else "a new database"),
            self._embed(VALKEY, "REDIS_URL", cache),
        )
        await self._serve(parts.retrieval(settings, self._urls[POSTGRES], self._urls[VALKEY]), BEHIND)

    async def _embed(self, name: str, setting: str, server: EmbeddedPostgres | EmbeddedValkey, note: str = "") -> None:
        if self._urls[name]:
            self._display.skipped(name, f"yours, from {setting}")
            return
        self._display.starting(name, f"127.0.0.1:{server.port}", note)
        try:
            await asyncio.to_thread(server.prepare)
            server.spawn()
            while not await asyncio.to_thread(server.wait_ready):
                server.spawn()
        except BaseException:
            server.stop()
            raise
        self._supervisor.take(server.child, STORES, STORE_STOP_S)
        self._urls[name] = server.url
        self._display.ready(name, server.pid)

    async def _serve(self, part: Part, tier: int) -> None:
        self._display.starting(part.name, f"{part.host}:{part.port}")
        child = self._child(part.name, ["-m", part.module], part.env)
        child.spawn()
        self._supervisor.take(child, tier, self._settings.drain_timeout_s + SPARE_S)
        await self._until_ready(part, child)
        self._display.ready(part.name, child.pid)

    async def _until_ready(self, part: Part, child: Child) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_WITHIN_S
        said = "it does not answer"
        async with httpx2.AsyncClient(timeout=2.0, trust_env=False) as client:
            while loop.time() < deadline:
                raise_if_dead(child)
                try:
                    reply = await client.get(part.ready_url)
                    if reply.status_code == 200:
                        return
                    said = reply.text[:200]
                except httpx2.HTTPError:
                    pass
                await asyncio.sleep(PROBE_EVERY_S)
        raise LabError(
            f"{part.name} was not ready within {READY_WITHIN_S:.0f} s ({said}); its log: {child.log}",
            notes=child.tail(8),
        )

    async def _seed(self) -> None:
        """Ingest the first corpus. What cannot be ingested is said, and no reason to stop the platform."""
        corpus, tenant = self._settings.seed_corpus, self._settings.seed_tenant
        if reason := seed.no_corpus(corpus):
            self._display.skipped(CORPUS, reason)
            return
        self._display.starting(CORPUS, corpus, f"for tenant {tenant}")
        stores = {"POSTGRES_URL": self._urls[POSTGRES], "REDIS_URL": self._urls[VALKEY]}
        child = self._child("ingest", seed.words(corpus, tenant), stores)
        child.spawn()
        finished = None
        try:
            async for step in seed.steps(child):
                if step.name == seed.FINISHED:
                    finished = step
                else:
                    self._display.progress(CORPUS, step.done, step.total, step.name)
        finally:
            child.stop(ONCE_STOP_S)
        there, became = seed.summary(finished, child)
        if there:
            self._display.ready(CORPUS, note=became)
        else:
            self._display.skipped(CORPUS, became)

    def _child(self, name: str, words: list[str], env: Mapping[str, str]) -> Child:
        return Child(name, [sys.executable, *words], {**self._environment, **env}, self._logs / f"{name}.log")

    def _publish(self) -> None:
        settings = self._settings
        workers = settings.worker_urls
        stores = self._urls[POSTGRES], self._urls[VALKEY]
        self._lease.publish(StackNote(os.getpid(), settings.router_url, settings.retrieval_url, workers, *stores))

    async def _stop(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        self._mutter("Stopping (Ctrl-C again: at once) ...")
        killed = await self._supervisor.stop()
        if killed:
            self._mutter(f"These did not stop when asked and were killed: {', '.join(killed)}.")
        self._mutter(f"Stopped in {loop.time() - began_s:.1f} s. Nothing is left running.")

    def _mutter(self, words: str) -> None:
        """Say it if anyone is there: a closed terminal or pipe must not keep us from stopping."""
        with contextlib.suppress(OSError, LabError):
            self._display.say(Text(words, style="dim"))

    async def _unless_told_to_leave(self, leaving: asyncio.Event, work: Coroutine[Any, Any, object]) -> None:
        """Until the work is done, a signal arrives, or a child dies (which raises), whichever is first."""
        tasks = [asyncio.ensure_future(each) for each in (work, leaving.wait(), self._supervisor.watch())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _obey_signals(self, leaving: asyncio.Event) -> None:
        """The first signal asks everyone to finish; a second one does not wait for that."""

        def received() -> None:
            if leaving.is_set():
                self._supervisor.kill()
            leaving.set()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, received)
