"""Two routers, each with a worker of its own, behind HAProxy; and how one of them is restarted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from loadtests.cluster.processes import Process, free_ports, until_ready
from loadtests.cluster.stand import Server, Shape, ready, stand, start_router
from loadtests.runs.matrix.subjects import haproxy

CONFIG = Path(__file__).with_name("haproxy.cfg")
ROUTERS = 2
TENANTS = ("whole", "streams")
SHAPE = Shape(workers=1, slots=16, step_ms=10.0, answer_tokens=8)
DRAIN_DELAY_S = 2.0
DRAIN_TIMEOUT_S = 10.0
SPARE_S = 5.0  # beyond both, before a router that does not end is a fault


class NotPossible(RuntimeError):
    """The run cannot be made on this machine."""


@dataclass
class Rolling:
    """What runs: clients ask at `url`."""

    url: str
    balancer: Process
    both_url: str
    routers: list[Server]

    async def restart(self, number: int) -> bool:
        """Restart a router as a supervisor does it, and wait until HAProxy sends requests to both again.

        Returns whether it left by itself and with status 0. Raises StandError where it does not come back.
        """
        router = self.routers[number % len(self.routers)]
        status = await router.process.leave(DRAIN_DELAY_S + DRAIN_TIMEOUT_S + SPARE_S)
        if status is None:
            router.process.kill()
        router.process.start()
        await ready(router)
        await self.both_ready()
        return status == 0

    async def both_ready(self) -> None:
        """Until HAProxy has seen both routers ready."""
        await until_ready(self.balancer, self.both_url)


@asynccontextmanager
async def rolling() -> AsyncIterator[Rolling]:
    """Start it all, and stop it whatever happens. Raises NotPossible where HAProxy is not installed."""
    program = haproxy()
    if program is None:
        raise NotPossible("HAProxy is not installed: apt-get install haproxy")
    async with AsyncExitStack() as stack:
        # A worker belongs to one router: two routers would each plan with all of its slots.
        opening = (stack.enter_async_context(stand(SHAPE, TENANTS, router=False)) for _ in range(ROUTERS))
        stands = await asyncio.gather(*opening)
        settings = {"DRAIN_DELAY_S": str(DRAIN_DELAY_S), "DRAIN_TIMEOUT_S": str(DRAIN_TIMEOUT_S)}
        await asyncio.gather(*(start_router(made, TENANTS, settings) for made in stands))
        routers = [made.router for made in stands if made.router is not None]
        port, health_port = free_ports(2)
        env = {"PORT": str(port), "HEALTH_PORT": str(health_port)}
        env |= {f"ROUTER_{index}": str(urlsplit(router.url).port) for index, router in enumerate(routers)}
        balancer = Process("haproxy", [str(program), "-db", "-f", str(CONFIG)], env, stands[0].folder)
        made = Rolling(f"http://127.0.0.1:{port}", balancer, f"http://127.0.0.1:{health_port}/both", routers)
        balancer.start()
        stack.push_async_callback(balancer.stop)
        await made.both_ready()
        yield made
