"""A stand whose processes have not been started, and a drill that records what it is asked to run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from loadtests.cluster.processes import Process
from loadtests.cluster.stand import Server, Stand
from loadtests.load.capacity import Capacity
from loadtests.load.figures import Quantiles
from loadtests.load.plan import Tenant
from loadtests.runs.peers.cases import SHAPE, PeerDrill


def a_stand(folder: Path) -> Stand:
    workers = [
        Server(Process(f"worker-{n}", [sys.executable], {}, folder), f"http://127.0.0.1:{5000 + n}") for n in (0, 1)
    ]
    return Stand(SHAPE, folder, workers)


class Stopped(Exception):
    """The load was asked for, and not run."""


class Dry(PeerDrill):
    """Keeps the tenants of the load, and stops there."""

    asked: tuple[Tenant, ...] = ()

    async def run(self, name: str, *tenants: Tenant, **more: Any) -> Any:
        self.asked = tenants
        raise Stopped


def a_drill(folder: Path) -> Dry:
    return Dry(a_stand(folder), Capacity(200, 1600, Quantiles()), lambda text: None)
