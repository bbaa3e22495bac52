"""Faults by name. Starting one returns the function that ends it; its details are drawn from the seed.

Every fault ends: a killed process restarts, a cut link heals. So a scenario can check the state after all faults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

import asyncpg

from loadtests.cluster.loop import SimLoop
from loadtests.cluster.network import Host, Network
from loadtests.cluster.node import Node
from loadtests.cluster.postgres import Lie as DatabaseLie
from loadtests.cluster.valkey import Lie as CacheLie
from loadtests.cluster.valkey import Refusal
from services.worker.engines.faults import Faults

if TYPE_CHECKING:
    from loadtests.world.system import System

End = Callable[[], None]
Started = tuple[str, End]
"""A description of the fault, and the function that ends it."""


def _nothing() -> None:
    return None


NO_TARGET: Started = ("nobody", _nothing)


@dataclass(slots=True, frozen=True)
class Stage:
    """What a fault may affect, and its source of chance. `number`: the worker. `factor`: its slowdown."""

    system: System
    clients: list[SimLoop]
    rng: Random
    number: int | None = None
    factor: float | None = None

    @property
    def network(self) -> Network:
        return self.system.simulation.network

    def worker(self) -> Node | None:
        """The worker with `number` if it runs; without a number, a random running one."""
        up = [node for node in self.system.workers if node.up]
        if self.number is not None:
            return next((node for node in up if node.name == f"worker-{self.number}"), None)
        return self.rng.choice(up) if up else None

    def router(self) -> Node:
        """The router, or any of several."""
        routers = self.system.routers
        return routers[0] if len(routers) == 1 else self.rng.choice(routers)

    def hosts(self) -> list[Host]:
        loops = [node.loop for node in self.system.nodes if node.loop is not None and node.up]
        return [loop.host for loop in (*loops, *self.clients)]

    def begin(self, kind: str, lasts_s: float) -> tuple[float, float]:
        """Start a fault now for `lasts_s`. Returns its begin and end."""
        simulation = self.system.simulation
        began, (detail, end) = simulation.now, FAULTS[kind](self)
        simulation.note("fault", kind, detail)

        def over() -> None:
            simulation.note("fault", f"{kind} is over", detail)
            end()

        simulation.at(began + lasts_s, over)
        return began, began + lasts_s


# Network


def _latency(stage: Stage) -> Started:
    one, other = stage.rng.sample(stage.hosts(), 2)
    link = stage.network.link(one, other)
    before = link.latency_s, link.jitter_s
    link.latency_s, link.jitter_s = stage.rng.uniform(0.005, 0.1), stage.rng.uniform(0.0, 0.1)

    def end() -> None:
        link.latency_s, link.jitter_s = before

    return f"{one.name} to {other.name}: {link.latency_s * 1000:.0f} ms + {link.jitter_s * 1000:.0f} ms", end


def _partition(stage: Stage) -> Started:
    one, other = stage.rng.sample(stage.hosts(), 2)
    ways = [(one, other)] + ([(other, one)] if stage.rng.random() < 0.7 else [])
    return f"{one.name} and {other.name}, {len(ways)} way(s)", _cut(stage, ways)


def _unreachable_governor(stage: Stage) -> Started:
    """Cut one or both directions between the governor and a client machine."""
    loop = stage.system.governor.loop
    assert loop is not None
    client = stage.rng.choice(stage.clients).host
    ways = [(client, loop.host), (loop.host, client)]
    ways = [ways[stage.rng.randrange(2)]] if stage.rng.random() < 0.3 else ways
    return f"{client.name}, {len(ways)} way(s)", _cut(stage, ways)


def _cut(stage: Stage, ways: list[tuple[Host, Host]]) -> End:
    """Cut each link from first to second until the end."""
    for way in ways:
        stage.network.cut(*way)

    def end() -> None:
        for way in ways:
            stage.network.heal(*way)

    return end


def _resets(stage: Stage) -> Started:
    """Reset a tenth of all connections now, at any byte."""
    chosen = [each for each in stage.network.connections if stage.rng.random() < 0.1]
    for connection in chosen:
        connection.reset()
    return f"{len(chosen)} ends of connections", _nothing


def _half_open(stage: Stage) -> Started:
    """Silence connections to a worker without telling either end; reset them at the end."""
    node = stage.worker()
    router = stage.router().loop
    if node is None or node.loop is None or router is None:
        return NO_TARGET
    chosen = stage.network.between(router.host, node.loop.host)
    for connection in chosen:
        connection.silent = connection.peer.silent = True

    def end() -> None:
        for connection in chosen:
            connection.silent = connection.peer.silent = False
            connection.reset()

    return f"{len(chosen)} connections of {router.name} to {node.name}", end


# Processes


def _frozen(loop: SimLoop | None) -> Started:
    if loop is None or loop.is_closed():
        return NO_TARGET
    loop.freeze()
    return loop.name, loop.thaw


def _killed(node: Node | None) -> Started:
    """Kill a running process; restart it at the end."""
    if node is None or not node.up:
        return NO_TARGET
    node.kill()

    def end() -> None:
        if not node.up:
            node.start()

    return node.name, end


def _drained(node: Node) -> Started:
    """Send SIGTERM under load. The process restarts when it has ended and the fault is over."""
    if not node.leave():
        return NO_TARGET

    def end() -> None:
        if node.ended:
            node.kill()  # only its loop is left
            node.start()
        else:
            node.simulation.at(node.simulation.now + 0.1, end)

    return node.name, end


def _frozen_worker(stage: Stage) -> Started:
    node = stage.worker()
    return _frozen(node.loop if node is not None else None)


def _slow_worker(stage: Stage) -> Started:
    node = stage.worker()
    if node is None or node.inside is None:
        return NO_TARGET
    faults: Faults = node.inside.executor.engine.faults
    factor = stage.factor or stage.rng.choice((2.0, 5.0, 20.0))
    faults.replace(replace(faults.plan, slow_factor=factor))

    def end() -> None:
        faults.replace(replace(faults.plan, slow_factor=1.0))

    return f"{node.name}, {factor:g} times", end


def _jumping_clock(stage: Stage) -> Started:
    """Move a process's clock forward, as after a suspended machine."""
    node = stage.rng.choice([node for node in (*stage.system.routers, *stage.system.workers) if node.up])
    seconds = stage.rng.uniform(0.1, 3.0)
    assert node.loop is not None
    node.loop.jump(seconds)
    return f"{node.name} by {seconds:.2f} s", _nothing


def _set_wall_clock(stage: Stage) -> Started:
    """Set a process's wall clock back or forward. Nothing may depend on it."""
    node = stage.rng.choice([node for node in stage.system.nodes if node.up])
    seconds = stage.rng.uniform(-10_000, 10_000)
    assert node.loop is not None
    node.loop.wall_ahead_s += seconds
    return f"{node.name} by {seconds:.0f} s", _nothing


# Stores


def _killed_cache(stage: Stage) -> Started:
    """Kill the cache; it restarts empty."""
    stores = stage.system.stores
    if not stores.cache_up:
        return NO_TARGET
    stores.kill_cache()
    return "valkey", lambda: None if stores.cache_up else stores.start_cache()


def _bad_cache(stage: Stage) -> Started:
    """Make the cache slow, refuse, lie or cut its answers."""
    name, value, sound = stage.rng.choice(
        [
            ("slow_s", stage.rng.uniform(0.005, 0.5), 0.0),
            *(("refuses", refusal, None) for refusal in Refusal),
            *(("lies", lie, None) for lie in CacheLie),
            ("cuts_after", stage.rng.randrange(200), None),
        ]
    )
    return f"{name} {value}", _becomes(stage.system.stores.cache, name, value, sound)


def _bad_database(stage: Stage) -> Started:
    """Make the database slow, frozen, unreachable, stopped, failing or lying, or drop its connections."""
    database, rng = stage.system.stores.database, stage.rng
    which = rng.choice(("slow", "frozen", "unreachable", "gone", "lost", "failing", "lying"))
    match which:
        case "gone":
            database.stop()
            return which, database.start
        case "lost":
            database.hang_up()
            return which, _nothing
        case "slow":
            return which, _becomes(database, "query_s", rng.uniform(0.01, 1.0), 0.0)
        case "failing":
            return which, _becomes(database, "fails", asyncpg.InternalServerError, None)
        case "lying":
            lie = rng.choice((DatabaseLie.NO_NUMBER, DatabaseLie.TOO_FEW, DatabaseLie.OLD_VERSION))
            return f"{which}: {lie}", _becomes(database, "lies", lie, None)
        case _:
            return which, _becomes(database, which, True, False)


def _becomes(store: object, name: str, value: object, sound: object) -> End:
    setattr(store, name, value)
    return lambda: setattr(store, name, sound)


def _empty_exchange(stage: Stage) -> Started:
    """The store of the exchange loses all sums at once."""
    stage.system.exchange.begin_empty()
    return "", _nothing


WORLD_FAULTS: dict[str, Callable[[Stage], Started]] = {
    "latency": _latency,
    "partition": _partition,
    "resets": _resets,
    "half open": _half_open,
    "frozen worker": _frozen_worker,
    "stalled router": lambda stage: _frozen(stage.router().loop),
    "stalled clients": lambda stage: _frozen(stage.rng.choice(stage.clients)),
    "killed worker": lambda stage: _killed(stage.worker()),
    "killed router": lambda stage: _killed(stage.router()),
    "drained router": lambda stage: _drained(stage.router()),
    "killed retrieval": lambda stage: _killed(stage.system.retrieval),
    "frozen retrieval": lambda stage: _frozen(stage.system.retrieval.loop),
    "bad cache": _bad_cache,
    "killed cache": _killed_cache,
    "frozen cache": lambda stage: _frozen(stage.system.stores.cache_loop),
    "bad database": _bad_database,
    "slow worker": _slow_worker,
    "jumping clock": _jumping_clock,
    "set wall clock": _set_wall_clock,
}
GOVERNOR_FAULTS: dict[str, Callable[[Stage], Started]] = {
    "killed governor": lambda stage: _killed(stage.system.governor),
    "frozen governor": lambda stage: _frozen(stage.system.governor.loop),
    "drained governor": lambda stage: _drained(stage.system.governor),
    "unreachable governor": _unreachable_governor,
}
EXCHANGE_FAULTS: dict[str, Callable[[Stage], Started]] = {
    "frozen exchange": lambda stage: ("", _becomes(stage.system.exchange, "frozen", True, False)),
    "lost exchange": lambda stage: ("", _becomes(stage.system.exchange, "gone", True, False)),
    "empty exchange": _empty_exchange,
}
FAULTS = WORLD_FAULTS | GOVERNOR_FAULTS | EXCHANGE_FAULTS
KINDS = tuple(WORLD_FAULTS)
"""The kinds that a seed draws, in this order; the governor's and the exchange's are drawn separately."""
EXCHANGE_KINDS = tuple(EXCHANGE_FAULTS)
