"""`weir up`: the whole platform on one machine, from one supervising process.

1. Take the folder's lease, and refuse taken ports, all at once.
2. Start what depends on nothing: PostgreSQL, Valkey, the workers, the router (which waits for workers), the governor.
3. Migrate the embedded database as its owner. Start retrieval, whose user owns nothing; in lab mode the storm bench.
4. Once the schema is there, ingest the first corpus in the background: unchanged documents are skipped, each is
   searchable at once, and the shortest come first, so that the first questions find something within seconds.
5. Print the addresses, and wait for Ctrl-C, SIGTERM, or the end of a vital child.
6. Stop in reverse order, within bounds.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any

from rich.console import Console

from services.cli import devices, parts, seed
from services.cli.child import describe_exit
from services.cli.child_group import together
from services.cli.config import LabSettings
from services.cli.errors import LabError
from services.cli.internal import kept, with_token
from services.cli.lease import Lease, StackNote
from services.cli.ports import Port, refuse_taken
from services.cli.postgres import EmbeddedPostgres
from services.cli.supervisor import StartPlan, Supervisor
from services.cli.valkey import EmbeddedValkey
from services.cli.welcome import welcome

POSTGRES, VALKEY, RETRIEVAL, ROUTER = "PostgreSQL", "Valkey", "retrieval", "router"
GOVERNOR, STORM, CORPUS = "governor", "storm", "corpus"
STORES, BEHIND, FRONT, BEFORE_IT = range(4)  # tiers: each depends on those before it
STORE_STOP_S = 5.0
ONCE_STOP_S = 2.0
MIGRATE = "services.retrieval.migrate"


def up(settings: LabSettings, console: Console) -> int:
    """Run the stack until it is stopped. Returns the exit code. Raises LabError."""
    with Lease(settings.folder) as lease:
        refuse_taken_ports(settings)
        if settings.own_workers:
            devices.refuse(settings)
        settings = with_token(settings)
        with kept(settings):
            return asyncio.run(Stack(settings, lease, console).run())


def refuse_taken_ports(settings: LabSettings) -> None:
    """Raises LabError that names every conflict, before anything is started."""
    if clashes := parts.clashes(settings):
        raise LabError(
            "Two parts would share a port (metrics ports are 1000 higher, the governor's 1230, the storm bench's 918).",
            notes=tuple(clashes),
        )
    refuse_taken(parts.ports(settings), another_way)


def another_way(conflicts: list[Port]) -> str:
    """The command that moves the conflicting services up by a hundred ports."""
    moved: dict[str, int] = {}
    for port in conflicts:
        number = port.number - parts.metrics_offset(port.setting) if port.name.endswith("metrics") else port.number
        moved[port.setting] = min(moved.get(port.setting, 65535), number + 100)
    return "make up " + " ".join(f"{setting}={number}" for setting, number in moved.items())


class Stack:
    def __init__(self, settings: LabSettings, lease: Lease, console: Console) -> None:
        self._settings = settings
        self._lease = lease
        self._urls = {POSTGRES: settings.postgres_url, VALKEY: settings.redis_url}
        workers = [parts.worker_name(index) for index in range(len(settings.worker_ports))]
        storm = [STORM] if settings.tenants_file is None else []
        names = [POSTGRES, VALKEY, *workers, RETRIEVAL, ROUTER, GOVERNOR, *storm, CORPUS]
        self._supervisor = Supervisor(console, names, settings.folder / "logs", leave_s=settings.leave_s)
        self._display = self._supervisor.display

    async def run(self) -> int:
        return await self._supervisor.play(StartPlan(self._start))

    async def _start(self) -> None:
        schema = asyncio.Event()
        await together(self._serve_all(schema), self._seed(schema))

    async def _serve_all(self, schema: asyncio.Event) -> None:
        """Start all services. Sets `schema` once the database has its tables."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await together(self._retrieval_behind_its_stores(schema), self._answers())
        self._publish()
        self._display.show(welcome(self._settings, loop.time() - began_s))

    async def _answers(self) -> None:
        """Start workers and router. The router waits for workers, but not for minutes, so models load first."""
        settings = self._settings
        placed = await devices.placed(settings) if settings.own_workers else []
        workers, router = parts.workers(settings, placed), parts.router(settings)
        if settings.loads_a_model:
            await together(*(self._supervisor.serve(worker, BEHIND) for worker in workers))
            await together(*self._entry_points(router))
        else:
            behind = (self._supervisor.serve(worker, BEHIND) for worker in workers)
            await together(*behind, *self._entry_points(router))

    def _entry_points(self, router: parts.ServicePart) -> list[Coroutine[Any, Any, None]]:
        """The router, and the governor, which needs the router with its first job only."""
        governor = parts.governor(self._settings, self._settings.router_url)
        return [self._supervisor.serve(router, FRONT), self._supervisor.serve(governor, BEFORE_IT)]

    async def _retrieval_behind_its_stores(self, schema: asyncio.Event) -> None:
        settings = self._settings
        database = EmbeddedPostgres(
            settings.folder / "postgres", settings.embedded_postgres_port, log=self._supervisor.logs / "postgres.log"
        )
        cache = EmbeddedValkey(
            settings.folder / "valkey", settings.embedded_redis_port, log=self._supervisor.logs / "valkey.log"
        )
        await together(
            self._embed(POSTGRES, "POSTGRES_URL", database, "" if database.exists else "a new database"),
            self._embed(VALKEY, "REDIS_URL", cache),
        )
        if not settings.postgres_url:
            await self._migrate(database)
            schema.set()
        retrieval = parts.retrieval(settings, self._urls[POSTGRES], self._urls[VALKEY])
        await together(self._supervisor.serve(retrieval, BEHIND), *self._storm())
        schema.set()  # retrieval makes the tables of a database that is not embedded

    async def _migrate(self, database: EmbeddedPostgres) -> None:
        """Migrate as the owner in a process that ends: no service knows the owner's password."""
        urls = {"POSTGRES_MIGRATE_URL": database.url, "POSTGRES_URL": database.service_url}
        child = self._supervisor.child("migrate", ["-m", MIGRATE], urls)
        child.spawn()
        try:
            code = await asyncio.to_thread(child.wait)
        finally:
            child.stop(ONCE_STOP_S)
        if code != 0:
            raise LabError(
                f"The database's schema could not be brought up to date ({describe_exit(code)}); see {child.log}.",
                notes=child.tail(),
            )
        self._urls[POSTGRES] = database.service_url

    def _storm(self) -> list[Coroutine[Any, Any, None]]:
        """In lab mode, the storm bench. It needs the other services with its first run only."""
        if self._settings.tenants_file is not None:
            return []
        return [self._supervisor.serve(parts.storm(self._settings, self._urls[VALKEY]), BEFORE_IT, vital=False)]

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
        self._supervisor.child_group.take(server.child, STORES, STORE_STOP_S)
        self._urls[name] = server.url
        self._display.ready(name, server.pid)

    async def _seed(self, schema: asyncio.Event) -> None:
        """Ingest the first corpus. A fault is reported, and the platform keeps running."""
        corpus, tenant = self._settings.seed_corpus, self._settings.seed_tenant
        if reason := seed.no_corpus(corpus):
            self._display.skipped(CORPUS, reason)
            return
        await schema.wait()
        self._display.starting(CORPUS, corpus, f"for tenant {tenant}")
        stores = {"POSTGRES_URL": self._urls[POSTGRES], "REDIS_URL": self._urls[VALKEY]}
        child = self._supervisor.child("ingest", seed.arguments(corpus, tenant), stores)
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

    def _publish(self) -> None:
        settings = self._settings
        workers = settings.worker_urls
        stores, governor = (self._urls[POSTGRES], self._urls[VALKEY]), settings.governor_address
        storm = settings.storm_url if settings.tenants_file is None else ""
        self._lease.publish(
            StackNote(os.getpid(), settings.router_url, settings.retrieval_url, workers, *stores, governor, storm)
        )
