"""`weir worker run`: several workers of this machine, for a router elsewhere.

Worker i listens on port P + i, with metrics 1000 above. Each process loads a model of its own.
"""

from __future__ import annotations

import asyncio
import re

from rich.console import Console, Group, RenderableType
from rich.text import Text

from services.cli import devices, parts
from services.cli.child_group import together
from services.cli.config import EVERYWHERE, HIGHEST_PORT, LabSettings
from services.cli.errors import LabError
from services.cli.ports import Port, refuse_taken
from services.cli.supervisor import StartPlan, Supervisor

ALL = 0  # one tier: workers depend on nothing
PREFIX = re.compile(r"[A-Za-z0-9._-]{1,60}")


def run(settings: LabSettings, console: Console, *, prefix: str) -> int:
    """Run WORKERS_COUNT workers until stopped, whatever list of workers is set for a router. Returns the exit code."""
    settings = settings.model_copy(update={"workers": "", "workers_file": None})
    if not PREFIX.fullmatch(prefix):
        raise LabError(f"--name {prefix!r}: give 1 to 60 letters, digits, dots, dashes or underscores.")
    last = settings.worker_ports[-1]
    if last > HIGHEST_PORT:
        raise LabError(f"The last worker would listen on {last}, and its metrics above 65535: choose a lower --port.")
    if faults := list(settings.inner_faults("HOST", "METRICS_HOST")):
        raise LabError("Anyone who reaches these workers could use them.", notes=tuple(faults))
    devices.refuse(settings)
    refuse_taken(parts.worker_ports(settings, settings.host), lambda conflicts: another_way(settings, conflicts))
    return asyncio.run(Replicas(settings, console, prefix).run())


def another_way(settings: LabSettings, conflicts: list[Port]) -> str:
    """The command that moves all of them to the next hundred above the conflicts."""
    highest = max(port.number - 1000 if port.name.endswith("metrics") else port.number for port in conflicts)
    clear = settings.worker_port + 100 * ((highest - settings.worker_port) // 100 + 1)
    return f"weir worker run --replicas {settings.workers_count} --port {min(clear, HIGHEST_PORT)}"


class Replicas:
    def __init__(self, settings: LabSettings, console: Console, prefix: str) -> None:
        self._settings = settings
        self._prefix = prefix
        names = [parts.worker_name(index, prefix) for index in range(len(settings.worker_ports))]
        logs = settings.folder / "logs" / f"workers-{settings.worker_port}"
        self._supervisor = Supervisor(console, names, logs, leave_s=settings.leave_s)

    async def run(self) -> int:
        return await self._supervisor.play(StartPlan(self._start, self._ending))

    async def _start(self) -> None:
        placed = await devices.placed(self._settings)
        workers = parts.workers(self._settings, placed, prefix=self._prefix, host=self._settings.host)
        await together(*(self._supervisor.serve(worker, ALL) for worker in workers))

    def _ending(self) -> RenderableType:
        """The setting for a router, on one line to be copied."""
        settings = self._settings
        urls = ",".join(f"http://{settings.reach}:{port}" for port in settings.worker_ports)
        lines = [Text(f"WORKERS={urls}", style="cyan", overflow="fold")]
        if settings.host in EVERYWHERE:
            lines.append(Text("For a router elsewhere: this machine's address in place of 127.0.0.1.", style="dim"))
        lines.append(Text(f"logs: {self._supervisor.logs}   Ctrl-C finishes what runs, and stops.", style="dim"))
        return Group(*lines)
