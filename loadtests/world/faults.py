"""What goes wrong, by name. A fault begins, and returns how it ends; its particulars are drawn from the seed.

Every fault ends by itself: a connection that is reset is gone, a process that was killed is started again, a link that
was cut heals. So a scenario can ask what is left when all faults are over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import asyncpg

from loadtests.cluster.loop import SimLoop, Simulation
from loadtests.cluster.network import Host, Network
from loadtests.cluster.node import Node
from loadtests.cluster.postgres import Lie as DatabaseLie
from loadtests.cluster.valkey import Lie as CacheLie
from loadtests.cluster.valkey import Refusal
from loadtests.world.system import System
from services.worker.engines.faults import Faults

End = Callable[[], None]
Begin = Callable[["Stage"], tuple[str, End]]


class Stage:
    """What a fault may touch, and the chance that chooses."""

    def __init__(
        self,
        system: System,
        clients: list[SimLoop],
        rng: Random,
        worker: int | None = None,
        factor: float | None = None,
    ) -> None:
        self.system = system
        self.clients = clients
        self.rng = rng
        self.factor = factor
        self._worker = worker

    @property
    def router(self) -> Node:
        return self.system.router

    def worker(self) -> Node | None:
        """The one that is named, if it runs; else one that runs, by chance."""
        up = [node for node in self.system.workers if node.up]
        if self._worker is not None:
            return next((node for node in up if node.name == f"worker-{self._worker}"), None)
        return self.rng.choice(up) if up else None

    def hosts(self) -> list[Host]:
        """Of everything that runs, clients included."""
        loops = [node.loop for node in self.system.nodes if node.loop is not None and node.up]
        return [loop.host for loop in (*loops, *self.clients)]

    def begin(self, kind: str, begin: Begin, lasts_s: float) -> tuple[float, float]:
        """Let it go wrong now, and for so long. Returns from when to when."""
        simulation = self.system.simulation
        began, (detail, end) = simulation.now, begin(self)
        simulation.note("fault", kind, detail)

        def over() -> None:
            simulation.note("fault", f"{kind} is over", detail)
            end()

        simulation.at(began + lasts_s, over)
        return began, began + lasts_s


def _nothing() -> None:
    return None


def _latency(stage: Stage) -> tuple[str, End]:
    """One direction between two hosts becomes slow and uneven."""
    one, other = stage.rng.sample(stage.hosts(), 2)
    link = stage.system.simulation.network.link(one, other)
    before = link.latency_s, link.jitter_s
    link.latency_s, link.jitter_s = stage.rng.uniform(0.005, 0.1), stage.rng.uniform(0.0, 0.1)

    def end() -> None:
        link.latency_s, link.jitter_s = before

    return f"{one.name} to {other.name}: {link.latency_s * 1000:.0f} ms + {link.jitter_s * 1000:.0f} ms", end


def _partition(stage: Stage) -> tuple[str, End]:
    """Nothing gets through between two hosts, in one direction or in both."""
    one, other = stage.rng.sample(stage.hosts(), 2)
    network = stage.system.simulation.network
    ways = [(one, other)] + ([(other, one)] if stage.rng.random() < 0.7 else [])
    return f"{one.name} and {other.name}, {len(ways)} way(s)", cut(network, ways)


def cut(network: Network, ways: list[tuple[Host, Host]]) -> End:
    """Nothing gets through from the first to the second of each, until the end."""
    for way in ways:
        network.cut(*way)

    def end() -> None:
        for way in ways:
            network.heal(*way)

    return end


def _resets(stage: Stage) -> tuple[str, End]:
    """Connections are reset, now: a tenth of all, at whatever byte they are."""
    network = stage.system.simulation.network
    chosen = [each for each in network.connections if stage.rng.random() < 0.1]
    for connection in chosen:
        connection.reset()
    return f"{len(chosen)} ends of connections", _nothing


def _half_open(stage: Stage) -> tuple[str, End]:
    """Connections to workers go silent: nothing gets through, and neither end is told. They are reset at the end."""
    node = stage.worker()
    router = stage.router.loop
    if node is None or node.loop is None or router is None:
        return "nobody", _nothing
    chosen = stage.system.simulation.network.between(router.host, node.loop.host)
    for connection in chosen:
        connection.silent = connection.peer.silent = True

    def end() -> None:
        for connection in chosen:
            connection.silent = connection.peer.silent = False
            connection.reset()

    return f"{len(chosen)} connections of the router to {node.name}", end


def frozen(node: Node | None) -> tuple[str, End]:
    """That process stands still."""
    if node is None or node.loop is None:
        return "nobody", _nothing
    loop = node.loop
    loop.freeze()
    return node.name, loop.thaw


def _freeze_worker(stage: Stage) -> tuple[str, End]:
    """A worker's process stands still."""
    return frozen(stage.worker())


def _stall_router(stage: Stage) -> tuple[str, End]:
    """The router's process stands still."""
    return frozen(stage.router if stage.router.up else None)


def _stall_clients(stage: Stage) -> tuple[str, End]:
    """A client machine stands still: it reads nothing."""
    loop = stage.rng.choice(stage.clients)
    loop.freeze()
    return loop.name, loop.thaw


def killed(node: Node | None) -> tuple[str, End]:
    """That process is killed, and started again at the end."""
    if node is None:
        return "nobody", _nothing
    node.kill()

    def end() -> None:
        if not node.up:
            node.start()

    return node.name, end


def _kill_worker(stage: Stage) -> tuple[str, End]:
    """A worker is killed, and started again at the end."""
    return killed(stage.worker())


def _kill_router(stage: Stage) -> tuple[str, End]:
    """The router is killed, and started again at the end."""
    return killed(stage.router if stage.router.up else None)


def _drained_router(stage: Stage) -> tuple[str, End]:
    """The router gets SIGTERM under load: it drains and ends. It is started again when both are over."""
    return drained(stage.router, stage.system.simulation)


def drained(node: Node, simulation: Simulation) -> tuple[str, End]:
    """That process gets SIGTERM. It is started again when it has ended, and the fault is over."""
    if not node.leave():
        return "nobody", _nothing

    def end() -> None:
        if node.ended:
            node.kill()  # nothing of it is left but its loop
            node.start()
        else:
            simulation.at(simulation.now + 0.1, end)

    return node.name, end


def _slow_worker(stage: Stage) -> tuple[str, End]:
    """A worker computes several times more slowly."""
    node = stage.worker()
    if node is None or node.inside is None:
        return "nobody", _nothing
    faults: Faults = node.inside.host.engine.faults
    factor = stage.factor or stage.rng.choice((2.0, 5.0, 20.0))
    faults.replace(replace(faults.plan, slow_factor=factor))

    def end() -> None:
        faults.replace(replace(faults.plan, slow_factor=1.0))

    return f"{node.name}, {factor:g} times", end


def _killed_retrieval(stage: Stage) -> tuple[str, End]:
    """Retrieval is killed, and started again at the end."""
    node = stage.system.retrieval
    return killed(node if node.up else None)


def _frozen_retrieval(stage: Stage) -> tuple[str, End]:
    """Retrieval's process stands still."""
    node = stage.system.retrieval
    return frozen(node if node.up else None)


def _bad_cache(stage: Stage) -> tuple[str, End]:
    """The cache is slow, refuses, lies, or cuts its answers."""
    cache = stage.system.stores.cache
    name, value, sound = stage.rng.choice(
        [
            ("slow_s", stage.rng.uniform(0.005, 0.5), 0.0),
            *(("refuses", refusal, None) for refusal in Refusal),
            *(("lies", lie, None) for lie in CacheLie),
            ("cuts_after", stage.rng.randrange(200), None),
        ]
    )
    setattr(cache, name, value)
    return f"{name} {value}", lambda: setattr(cache, name, sound)


def _killed_cache(stage: Stage) -> tuple[str, End]:
    """The cache's process is killed, and starts again empty."""
    stores = stage.system.stores
    if stores.cache_loop is None or stores.cache_loop.is_closed():
        return "nobody", _nothing
    stores.kill_cache()

    def end() -> None:
        if stores.cache_loop is not None and stores.cache_loop.is_closed():
            stores.start_cache()

    return "valkey", end


def _frozen_cache(stage: Stage) -> tuple[str, End]:
    """The cache's process stands still."""
    loop = stage.system.stores.cache_loop
    if loop is None or loop.is_closed():
        return "nobody", _nothing
    loop.freeze()
    return "valkey", loop.thaw


def _bad_database(stage: Stage) -> tuple[str, End]:
    """The database is slow, frozen, out of reach, gone, failing, or lies."""
    database = stage.system.stores.database
    rng = stage.rng
    which = rng.choice(("slow", "frozen", "unreachable", "gone", "lost", "failing", "lying"))
    if which == "slow":
        database.query_s = rng.uniform(0.01, 1.0)
        return which, lambda: setattr(database, "query_s", 0.0)
    if which == "gone":
        database.stop()
        return which, database.start
    if which == "lost":
        database.hang_up()
        return which, _nothing
    if which == "failing":
        database.fails = asyncpg.InternalServerError
        return which, lambda: setattr(database, "fails", None)
    if which == "lying":
        database.lies = rng.choice((DatabaseLie.NO_NUMBER, DatabaseLie.TOO_FEW, DatabaseLie.OLD_VERSION))
        return f"{which}: {database.lies}", lambda: setattr(database, "lies", None)
    setattr(database, which, True)
    return which, lambda: setattr(database, which, False)


def _jump(stage: Stage) -> tuple[str, End]:
    """A process's clock jumps forward, as after a suspended machine."""
    node = stage.rng.choice([node for node in (stage.router, *stage.system.workers) if node.up])
    seconds = stage.rng.uniform(0.1, 3.0)
    assert node.loop is not None
    node.loop.jump(seconds)
    return f"{node.name} by {seconds:.2f} s", _nothing


def _wall_clock(stage: Stage) -> tuple[str, End]:
    """A process's wall clock is set, back or forth; nothing may depend on it."""
    node = stage.rng.choice([node for node in stage.system.nodes if node.up])
    seconds = stage.rng.uniform(-10_000, 10_000)
    assert node.loop is not None
    node.loop.wall_ahead_s += seconds
    return f"{node.name} by {seconds:.0f} s", _nothing


FAULTS: dict[str, Begin] = {
    "latency": _latency,
    "partition": _partition,
    "resets": _resets,
    "half open": _half_open,
    "frozen worker": _freeze_worker,
    "stalled router": _stall_router,
    "stalled clients": _stall_clients,
    "killed worker": _kill_worker,
    "killed router": _kill_router,
    "drained router": _drained_router,
    "killed retrieval": _killed_retrieval,
    "frozen retrieval": _frozen_retrieval,
    "bad cache": _bad_cache,
    "killed cache": _killed_cache,
    "frozen cache": _frozen_cache,
    "bad database": _bad_database,
    "slow worker": _slow_worker,
    "jumping clock": _jump,
    "set wall clock": _wall_clock,
}
KINDS = tuple(FAULTS)
