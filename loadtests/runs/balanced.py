"""Routers that share their workers, behind HAProxy: what the runs of restarted and of killed routers stand on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from loadtests.cluster.processes import Process, free_ports, until_ready
from loadtests.cluster.sharing import sharing
from loadtests.cluster.stand import Server, Shape
from loadtests.runs.matrix.subjects import haproxy


@dataclass
class Balanced:
    """The running setup. Clients use `url`; `all_url` answers 200 once HAProxy has seen all routers ready."""

    url: str
    all_url: str
    balancer: Process
    routers: list[Server]

    async def all_ready(self) -> None:
        await until_ready(self.balancer, self.all_url)


@asynccontextmanager
async def balanced(
    config: Path, shape: Shape, tenants: Sequence[str], routers: int, settings: Mapping[str, str]
) -> AsyncIterator[Balanced]:
    """Start everything, and stop it afterwards. `config`: HAProxy's, which gets the ports from its environment. Raises
    RuntimeError if HAProxy is not installed.
    """
    program = haproxy()
    if program is None:
        raise RuntimeError("HAProxy is not installed: apt-get install haproxy")
    async with AsyncExitStack() as stack:
        shared = await stack.enter_async_context(sharing(shape, tenants, routers, settings))
        port, health_port = free_ports(2)
        env = {"PORT": str(port), "HEALTH_PORT": str(health_port)}
        env |= {f"ROUTER_{index}": str(urlsplit(router.url).port) for index, router in enumerate(shared.routers)}
        balancer = Process("haproxy", [str(program), "-db", "-f", str(config)], env, shared.folder)
        made = Balanced(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{health_port}/all", balancer, shared.routers)
        balancer.start()
        stack.push_async_callback(balancer.stop)
        await made.all_ready()
        yield made
