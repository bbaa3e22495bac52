"""What a busy router shows of itself: the admin JSON, the console's frame and the gauges, byte for byte.

One router in virtual time, with two pools, three classes, thirty tenants, requests in every stage, a worker that
is down and one that is leaving. It is looked at under each of four policies, each with its own file.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from services.core.account import ClassSpec, QueueBounds, TenantSpec
from services.core.policies import Policies
from services.router.console.feed import Feed
from services.router.operating.state import state
from services.router.telemetry.holdings import Holdings
from services.router.telemetry.journal import Journal
from services.router.telemetry.metrics import RouterMetrics
from services.router.tenancy.tenants import LabTenants
from services.runtime.drain import Drain
from services.runtime.telemetry import new_registry
from tests.oracles.oracle import PINNED, Oracle
from tests.router.fleetrig import worker
from tests.router.house import House, now, turn
from tests.virtual import run

CLASSES = (ClassSpec("default"), ClassSpec("gold", 3.0), ClassSpec("batch", 0.5, 0.05))
POLICIES = ("weir", "no-fairness", "no-admission", "fifo")
TENANTS = 32
REQUESTS = 160


def text_of(policy: str) -> str:
    """The three views of the router under the policy, one below the other."""
    return run(_busy(Policies.named(policy)))


async def _busy(policies: Policies) -> str:
    random = Random(7)
    workers = [worker("one", slots=4), worker("two", slots=3), worker("three", slots=2, models=("n",))]
    house = House(workers, queue=40)
    dispatcher, weir = house.dispatcher, house.scheduler
    named = [TenantSpec(f"t{at}", QueueBounds(12 + at), 1.0 + at % 3, CLASSES[at % 3].name) for at in range(4)]
    weir.reload(now(), CLASSES, named)
    weir.hold_level("batch", 2)
    dispatcher.switch(policies)
    for number in range(REQUESTS):
        _offer(house, random, number)
        await asyncio.sleep(0.05 * random.random())
        if number == REQUESTS // 2:
            house.down(workers[1])
    house.fleet.reload([workers[0].spec, workers[2].spec], lambda spec: worker(spec.name))
    views = _views(house, now())
    for task in house.rides.values():
        task.cancel()
    await asyncio.gather(*house.rides.values(), return_exceptions=True)
    return views


def _offer(house: House, random: Random, number: int) -> None:
    tenant = f"t{min(random.randrange(TENANTS) for _ in range(3))}"
    made = turn(
        tenant,
        model="n" if random.random() < 0.2 else "m",
        within_s=random.choice([2.0, 20.0, 60.0]),
        prompt_tokens=random.randrange(1, 900),
        max_tokens=random.randrange(1, 600),
        max_level=random.choice([0, 4]),
        may_clamp=random.random() < 0.3,
        class_name=random.choice(["", "", "batch"]),
        ready=random.random() < 0.9,
        bytes=random.randrange(5000),
    )
    made.id = f"r{number}"
    seconds = 0.2 + 0.004 * random.random() * made.max_tokens

    async def ride(_: Any) -> None:
        await asyncio.sleep(0.05)
        house.dispatcher.first_token(now(), made)
        await asyncio.sleep(seconds)

    if house.admit(made) is None:
        house.begin(made, ride)


def _views(house: House, at: float) -> str:
    dispatcher, tenants = house.dispatcher, LabTenants(100, 50.0)
    drain, registry = Drain(), CollectorRegistry()
    registry.register(Holdings(dispatcher, lambda id: id if len(id) == 2 else "other"))
    feed = Feed(dispatcher, RouterMetrics(new_registry()), Journal(), drain)
    frame = msgspec.to_builtins(feed.frame(at)) | {"at_ms": 0, "uptime_s": 0}
    admin = state(at, dispatcher, tenants, draining=drain.draining)
    gauges = generate_latest(registry).decode()
    return "\n".join((*_rows("admin", admin), *_rows("frame", frame), gauges))


def _rows(name: str, told: Any) -> Iterator[str]:
    """JSON with the name of its place before each row, so that a difference is short."""
    if isinstance(told, dict) and name.count(".") < 2:
        for key, value in told.items():
            yield from _rows(f"{name}.{key}", value)
    elif isinstance(told, list) and told:
        for at, row in enumerate(told):
            yield f"{name}[{at}] {json.dumps(row)}"
    else:
        yield f"{name} {json.dumps(told)}"


ORACLE = Oracle("views", PINNED / "views", lambda: {f"{policy}.txt": text_of(policy) for policy in POLICIES})
