"""The whole stack as processes on loopback, with a wire that can fail before every part.

clients -+------------> router -> wire -> worker-0, -1, -2
         +---> wire --->        -> evil workers
                                -> wire -> retrieval -> wire -> PostgreSQL
                                                     -> wire -> Valkey
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtests.cluster import books
from loadtests.cluster.books import total
from loadtests.cluster.making import ASK, CLIENTS, Making, Shape
from loadtests.cluster.parts import Part, Service, Store
from loadtests.cluster.processes import StandError, child_environment, get, python
from loadtests.cluster.stand import Server, ready
from loadtests.cluster.steadyports import HOST, steady_ports
from loadtests.faults.wires import Wire
from loadtests.paths import ROOT

WHOLE_WITHIN_S = 60.0
INGEST_WITHIN_S = 120.0
LOOK_EVERY_S = 0.1
DOCUMENTS = {
    "lock.md": "# The lock\n\nThe lock-keeper opens the upper gate at half past six, and never on a Sunday.\n",
    "mill.md": "# The mill\n\nThe mill below the weir grinds barley slowly while the water is high.\n",
    "toll.md": "# The toll\n\nA barge pays a toll of four pence at the lock, and a rowing boat pays nothing.\n",
}


@dataclass
class Stack:
    """The running parts. `evil` workers are not started. `wires` is empty if the shape has none."""

    folder: Path
    router: Server
    retrieval: Server | None
    workers: list[Server]
    evil: list[Server]
    stores: list[Store]
    wires: dict[str, Wire]

    @property
    def services(self) -> list[Server]:
        return [*self.workers, *([self.retrieval] if self.retrieval is not None else []), self.router]

    @property
    def parts(self) -> dict[str, Part]:
        parts: list[Part] = [*self.stores, *map(Service, self.services)]
        return {part.name: part for part in parts}

    @property
    def wired_url(self) -> str:
        """The address for clients behind the fault proxy."""
        return f"http://{HOST}:{self.wires[CLIENTS].port}" if self.wires else self.router.url

    async def metrics(self) -> str:
        """The router's metrics. Raises OSError."""
        return (await asyncio.to_thread(get, self.router.metrics_url)).decode()

    async def read(self, metric: str, having: str = "") -> float:
        """The sum of a router metric over the series whose labels contain `having`. Raises OSError."""
        return total(await self.metrics(), metric, having)

    async def held(self) -> float:
        """Requests in flight, as reported by the router, in total and at its workers. Raises OSError."""
        text = await self.metrics()
        return total(text, "weir_inflight") + total(text, "weir_worker_inflight")

    async def counted(self) -> tuple[Counter[str], int]:
        """Requests by outcome, and retries, since the router's last start. Raises OSError."""
        text = await self.metrics()
        return +books.of_router(text), round(total(text, "weir_retries_total"))

    async def lacks(self) -> list[str]:
        """What the router reports as missing; empty if everything is up."""
        try:
            status = json.loads(await asyncio.to_thread(get, f"{self.router.url}/health/ready"))
        except OSError as error:
            return [f"a router that is ready ({error})"]
        up = status["workers"]  # by name in lab mode, else a number
        missing = len(self.workers) - (up if isinstance(up, int) else len(up))
        degraded = [what for what in status.get("degraded", []) if not what.endswith(" workers")]  # not the evil ones
        peers = degraded if self.retrieval is not None else []
        return [*([f"{missing} of its workers"] if missing > 0 else []), *peers]

    async def until_whole(self, within_s: float = WHOLE_WITHIN_S) -> None:
        """Wait until nothing is missing. Raises StandError after `within_s`."""
        lacks: list[str] = []
        for _ in range(int(within_s / LOOK_EVERY_S)):
            lacks = await self.lacks()
            if not lacks:
                return
            await asyncio.sleep(LOOK_EVERY_S)
        raise StandError(f"not whole after {within_s:g} s; the router lacks {', '.join(lacks)}")


@contextmanager
def new_folder() -> Iterator[Path]:
    """A folder for the parts' files, deleted when the block ends."""
    with tempfile.TemporaryDirectory(prefix="weir-stack-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # the database, started by root, runs as another user and must have access
        yield folder


@asynccontextmanager
async def stack(shape: Shape | None = None) -> AsyncIterator[Stack]:
    """Run a stack without its byzantine workers, and stop it in every case. Raises StandError if it cannot start."""
    async with AsyncExitStack() as leaving:
        folder = leaving.enter_context(new_folder())
        making = Making(folder, leaving.enter_context(closing(steady_ports())), shape or Shape())
        stores = await _started(making, leaving)
        if stores:
            await _ingest(folder, stores[0].server.url, _written(folder / "corpus"), ASK)
        workers, evil = making.workers(), making.evil()
        retrieval = making.retrieval(stores) if stores else None
        router = making.router(workers, evil, retrieval)
        made = Stack(folder, router, retrieval, workers, evil, stores, making.wires)
        for process in (*(server.process for server in made.services), *(wire.process for wire in made.wires.values())):
            leaving.push_async_callback(process.stop)
            process.start()
        for server in evil:
            leaving.push_async_callback(server.process.stop)
        await asyncio.gather(*(wire.ready() for wire in made.wires.values()))
        await asyncio.gather(*map(ready, made.services))
        await made.until_whole()
        yield made


@asynccontextmanager
async def retrieval_over(corpus: Path, tenants: Sequence[str], settings: Mapping[str, str]) -> AsyncIterator[Server]:
    """Run retrieval and its stores with a folder of documents for these tenants.

    Raises StandError if it cannot start.
    """
    async with AsyncExitStack() as leaving:
        folder = leaving.enter_context(new_folder())
        making = Making(folder, leaving.enter_context(closing(steady_ports())), Shape(wires=False))
        stores = await _started(making, leaving)
        for tenant in tenants:
            await _ingest(folder, stores[0].server.url, corpus, tenant)
        retrieval = making.retrieval(stores, settings)
        leaving.push_async_callback(retrieval.process.stop)
        retrieval.process.start()
        await ready(retrieval)
        yield retrieval


async def _started(making: Making, leaving: AsyncExitStack) -> list[Store]:
    """PostgreSQL and Valkey, stopped when the stack ends."""
    stores = making.stores()
    for store in stores:
        leaving.push_async_callback(asyncio.to_thread, store.server.stop)
    await asyncio.gather(*(store.start() for store in stores))
    return stores


def _written(corpus: Path) -> Path:
    corpus.mkdir()
    for name, text in DOCUMENTS.items():
        (corpus / name).write_text(text, encoding="utf-8")
    return corpus


async def _ingest(folder: Path, postgres_url: str, corpus: Path, tenant: str) -> None:
    words = python("-m", "services.retrieval.ingest", str(corpus), "--tenant", tenant)
    environment = child_environment({"PYTHONPATH": str(ROOT), "POSTGRES_URL": postgres_url})
    with (folder / "ingest.log").open("wb") as log:
        ingest = await asyncio.create_subprocess_exec(*words, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        async with asyncio.timeout(INGEST_WITHIN_S):
            code = await ingest.wait()
    except TimeoutError:
        ingest.kill()
        code = await ingest.wait()
    if code != 0:
        log_tail = (folder / "ingest.log").read_text(encoding="utf-8", errors="replace")[-2000:]
        raise StandError(f"the documents could not be ingested:\n{log_tail}")
