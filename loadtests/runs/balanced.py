"""Routers that share their workers, behind HAProxy: what the runs of restarted and of killed routers stand on.

HAProxy has the configuration of the compose profile `ha`, on this machine's ports.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from loadtests.cluster.processes import Process, free_ports, until_ready
from loadtests.cluster.sharing import sharing
from loadtests.cluster.stand import Server, Shape
from loadtests.paths import ROOT
from loadtests.runs.matrix.subjects import haproxy

CONFIG = ROOT / "deploy" / "ha" / "haproxy.cfg"
CONFIG_NAME = CONFIG.relative_to(ROOT).as_posix()
"""For the runs' pages."""


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
    shape: Shape,
    tenants: Sequence[str],
    routers: int,
    settings: Mapping[str, str],
    *,
    connect_retries: int | None = None,
) -> AsyncIterator[Balanced]:
    """Start everything, and stop it afterwards. `connect_retries`: how often HAProxy connects again, if not as often as
    the configuration says. Raises RuntimeError if HAProxy is not installed.
    """
    program = haproxy()
    if program is None:
        raise RuntimeError("HAProxy is not installed: apt-get install haproxy")
    async with AsyncExitStack() as stack:
        shared = await stack.enter_async_context(sharing(shape, tenants, routers, settings))
        port, health_port = free_ports(2)
        env = {"BIND": f"127.0.0.1:{port}", "HEALTH_BIND": f"127.0.0.1:{health_port}", "ROUTERS_NEEDED": str(routers)}
        env |= {f"ROUTER_{index}": urlsplit(router.url).netloc for index, router in enumerate(shared.routers)}
        env |= {} if connect_retries is None else {"RETRIES": str(connect_retries)}
        balancer = Process("haproxy", [str(program), "-db", "-f", str(CONFIG)], env, shared.folder)
        all_url = f"http://127.0.0.1:{health_port}/health/ready"
        made = Balanced(f"http://127.0.0.1:{port}", all_url, balancer, shared.routers)
        balancer.start()
        stack.push_async_callback(balancer.stop)
        await made.all_ready()
        yield made
