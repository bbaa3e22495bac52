"""A test bed with several routers that share its workers, and exchange through a Valkey of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from loadtests.cluster.processes import free_ports
from loadtests.cluster.stand import Server, Shape, Stand, stand, start_router
from services.cli.valkey import EmbeddedValkey


@dataclass
class Sharing:
    """The running processes. `folder` is theirs, and removed with them."""

    folder: Path
    workers: list[Server]
    routers: list[Server]
    exchange: EmbeddedValkey


@asynccontextmanager
async def sharing(
    shape: Shape, tenants: Sequence[str], routers: int, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Sharing]:
    """Run so many routers before the workers of this shape, and stop all of it in every case. Raises LabError without a
    Valkey for this platform.
    """
    async with (
        stand(shape, tenants, router=False) as workers,
        routers_before(workers, tenants, routers, settings) as made,
    ):
        yield made


@asynccontextmanager
async def routers_before(
    workers: Stand, tenants: Sequence[str], routers: int, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Sharing]:
    """The same before workers that run. `settings` may have another EXCHANGE_URL: an empty one for routers alone."""
    async with AsyncExitStack() as stack:
        (port,) = free_ports(1)
        exchange = EmbeddedValkey(workers.folder / "valkey", port, log=workers.folder / "valkey.log")
        exchange.start()
        stack.callback(exchange.stop)
        made = Sharing(workers.folder, workers.workers, [], exchange)
        for number in range(routers):
            name = f"router-{number}"
            own = replace(workers, folder=workers.folder / name, router=None, beside=[])
            own.folder.mkdir()
            await start_router(own, tenants, {"EXCHANGE_URL": exchange.url, "ROUTER_NAME": name, **(settings or {})})
            assert own.router is not None
            stack.push_async_callback(own.router.process.stop)
            made.routers.append(own.router)
        yield made
