"""SIGHUP: read the tenants file and the worker list again (docs/operations/tenants.md#reloading-files).

The tenants file is read in a thread, since 10,000 tenants take long to validate. A half-written list is valid YAML and
shorter: so both files are read once neither has changed for SETTLED_S seconds, or after TRIES looks at the latest, and
`read_yaml` refuses a file that changes while it is read.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from services.router.config import RouterSettings
from services.router.deciding.dispatcher import Dispatcher
from services.router.telemetry.metrics import RouterMetrics
from services.router.tenancy import exposure, tenantsfile
from services.router.tenancy.tenants import FileTenants, Reading, Tenants
from services.router.workers.fleet import Connect
from services.router.workers.prober import Prober
from services.router.yamlfile import state
from services.runtime.log import Log

SETTLED_S = 0.1
TRIES = 20


class Reloading:
    """Reloads one at a time; a signal during a reload starts one more after it."""

    def __init__(
        self,
        settings: RouterSettings,
        tenants: Tenants,
        dispatcher: Dispatcher,
        prober: Prober,
        metrics: RouterMetrics,
        log: Log,
        connect: Connect,
    ) -> None:
        self._settings = settings
        self._connect = connect
        self._tenants = tenants
        self._dispatcher = dispatcher
        self._prober = prober
        self._metrics = metrics
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._again = False

    def begin(self) -> None:
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._again:
            self._again = False
            await self._until_settled()
            await self._read_tenants()
            self._read_workers()

    async def _until_settled(self) -> None:
        """Wait until neither file changes, or for TRIES looks."""
        seen = self._states()
        for _ in range(TRIES):
            await asyncio.sleep(SETTLED_S)
            before, seen = seen, self._states()
            if before == seen:
                return

    def _states(self) -> list[object]:
        files = (self._settings.tenants_file, self._settings.workers_file)
        return [_state(file) for file in files if file is not None]

    async def _read_tenants(self) -> None:
        tenants = self._tenants
        if not isinstance(tenants, FileTenants):
            return
        try:
            reading = await asyncio.to_thread(tenants.read)
        except tenantsfile.Faulty as error:
            self._log.error("TENANTS_FILE rejected", faults=list(error.faults))
            return
        fault = exposure.fault(self._settings.lab, reading.file)
        if fault is None:
            fault = self._reclass(reading)
        if fault is not None:
            self._log.error("TENANTS_FILE rejected", faults=[fault])
            return
        change = tenants.adopt(reading)
        for id in change.joined:
            self._metrics.expect(id)
        self._log.info(
            "tenants reloaded", joined=len(change.joined), left=len(change.left), changed=len(change.changed)
        )

    def _reclass(self, reading: Reading) -> str | None:
        """Give the scheduler the classes and tenants, all or none; the fault if it refuses them."""
        now = asyncio.get_running_loop().time()
        try:
            self._dispatcher.scheduler.reload(now, reading.classes, reading.specs)
        except ValueError as error:
            return f"classes: {error}"
        return None

    def _read_workers(self) -> None:
        settings = self._settings
        if settings.workers_file is None:
            return
        try:
            specs = settings.worker_specs()
        except ValueError as error:
            self._log.error("WORKERS_FILE rejected", faults=str(error))
            return
        self._prober.reload(specs, self._connect)
        self._log.info("workers reloaded", workers=len(specs))


def _state(file: Path) -> object:
    try:
        return state(file)
    except OSError:  # reported when it is read
        return None
