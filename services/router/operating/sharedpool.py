"""What several routers need: a store that keeps what they add up, a name of its own for each, workers that lend, and a
desk for each server that cannot.

`look` asks the store and the workers, and changes nothing; the verdicts are pure. For `weir doctor`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from random import Random
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from redis.exceptions import RedisError

from services.contracts.finding import ProductionFinding
from services.router.config import RouterSettings
from services.router.leases.fault import StoreFault
from services.router.leases.store import routers_calling
from services.router.upstreams.call import Lender
from services.router.workers.connect import connect
from services.router.workers.fleet import Fleet
from services.router.workers.prober import Prober
from services.router.workers.worker import Worker
from services.router.workers.workersfile import WorkerSpec
from services.runtime.log import Log
from services.runtime.upstream import UpstreamError
from services.runtime.valkey import redis_client

WITHIN_S = 3.0
CALLED_WITHIN_S = 2.0
"""A router that is alone calls once a second."""
MIN_VERSION = 5
NAMED = 5
"""Workers that a finding names."""
HAS_LEASES = HTTPStatus.METHOD_NOT_ALLOWED
HAS_NONE = HTTPStatus.NOT_FOUND

WHY_STORE = "without it a tenant behind several routers may count as several tenants"
WHY_NAME = "of two routers with one name only one gets slots"
WHY_LEASES = "a router that shares gets no slot of a worker that does not lend"
WHY_DESK = "without its desk nothing is sent to the server"
WHY_SLOTS = "each router counts its own requests there: together they send as many times `slots` as there are routers"
WHY_LEARNED = "each router learns a limit of its own, and takes the others' load for slowness of the server"


class Seen(NamedTuple):
    """What was found. `store`: the answer to INFO, or why there was none. `callers`: routers that call its exchange, or
    why they are not known. `runs_here`: a router listens on ROUTER_PORT. `leases`: by what lends, a Weir worker or the
    desk of another server, the status of `GET /lease`, or why there was none.
    """

    store: Mapping[str, Any] | str
    callers: Collection[str] | str
    runs_here: bool
    leases: Mapping[str, int | str]


def verdicts(settings: RouterSettings, seen: Seen) -> list[ProductionFinding]:
    """The findings about one of several routers."""
    specs = settings.worker_specs()
    desks = {spec.name: spec.desk for spec in specs if spec.desk is not None}
    return [
        *_store(settings.exchange_url, seen.store),
        _name(settings, seen),
        *_leases({name: answer for name, answer in seen.leases.items() if name not in desks}),
        *_desks(desks, seen.leases),
        *_other_servers(specs),
    ]


# ---- the verdicts


def _store(url: str, found: Mapping[str, Any] | str) -> Iterator[ProductionFinding]:
    at = f"EXCHANGE_URL, {_place(url)}"
    if isinstance(found, str):
        remedy = "check EXCHANGE_URL, and that the server runs and is reached from here"
        yield ProductionFinding("exchange", "fail", f"{at}: {found}", WHY_STORE, remedy)
        return
    name = "Valkey" if "valkey_version" in found else "Redis"
    version = str(found.get("valkey_version") or found.get("redis_version") or "0")
    shown = f"{at}: {name} {version}"
    if int(version.partition(".")[0]) < MIN_VERSION:
        remedy = f"use Redis {MIN_VERSION} or newer, or Valkey"
        yield ProductionFinding("exchange", "fail", shown, "its script needs a newer server", remedy)
    elif found.get("role") != "master":
        remedy = "let EXCHANGE_URL name the primary"
        yield ProductionFinding("exchange", "fail", f"{shown}, a replica", "a replica takes no writes", remedy)
    else:
        yield ProductionFinding("exchange", "ok", shown)
    policy = found.get("maxmemory_policy")
    if policy == "noeviction":
        yield ProductionFinding("exchange memory", "ok", "maxmemory-policy noeviction")
        return
    why = "an evicted key begins all sums anew"
    yield ProductionFinding(
        "exchange memory", "warn", f"maxmemory-policy {policy}", why, "`CONFIG SET maxmemory-policy noeviction`"
    )


def _place(url: str) -> str:
    """The address without user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _name(settings: RouterSettings, seen: Seen) -> ProductionFinding:
    name, several = settings.own_name, settings.router_processes > 1
    own = {f"{name}-{index}" for index in range(settings.router_processes)} if several else {name}
    shown = name if settings.router_name else f"{name}, the host's name"
    if isinstance(seen.callers, str):
        return ProductionFinding("router name", "skip", f"{shown}; other routers are not known: {seen.callers}")
    others, same = sorted(set(seen.callers) - own), sorted(own & set(seen.callers))
    beside = f"beside {_list(others)}" if others else "no other router calls the exchange"
    if same and not seen.runs_here:
        found = f"{shown}: no router runs here, and one with this name calls the exchange; {beside}"
        return ProductionFinding("router name", "fail", found, WHY_NAME, "give each router its own ROUTER_NAME")
    return ProductionFinding("router name", "ok", f"{shown}; {beside}")


def _leases(found: Mapping[str, int | str]) -> Iterator[ProductionFinding]:
    if not found:
        return
    lending = [name for name, answer in found.items() if answer == HAS_LEASES]
    old = [name for name, answer in found.items() if answer == HAS_NONE]
    silent = {name: answer for name, answer in found.items() if answer not in (HAS_LEASES, HAS_NONE)}
    if old:
        seen = f"{_list(old)}: 404 to /lease, older than leases"
        yield ProductionFinding("leases", "fail", seen, WHY_LEASES, "upgrade the workers before the routers")
    if silent:
        seen = _list([f"{name} ({answer})" for name, answer in silent.items()])
        remedy = "check that the worker runs, its address, and INTERNAL_TOKEN"
        yield ProductionFinding("leases", "fail", seen, WHY_LEASES, remedy)
    if lending:
        yield ProductionFinding("leases", "ok", f"{len(lending)} of {len(found)} Weir workers lend")


def _desks(desks: Mapping[str, str], found: Mapping[str, int | str]) -> Iterator[ProductionFinding]:
    unknown = [f"{name} ({_place(desks[name])})" for name in desks if found.get(name) == HAS_NONE]
    silent = [
        f"{name} ({_place(desks[name])}: {found.get(name, 'not asked')})"
        for name in desks
        if found.get(name) not in (HAS_LEASES, HAS_NONE)
    ]
    if unknown:
        remedy = "let `desk` end with the server's name in DESK_SERVERS"
        yield ProductionFinding("desk", "fail", f"{_list(unknown)}: 404, not in DESK_SERVERS", WHY_DESK, remedy)
    if silent:
        remedy = "check that the desk runs, its address, and INTERNAL_TOKEN"
        yield ProductionFinding("desk", "fail", _list(silent), WHY_DESK, remedy)
    if lending := len(desks) - len(unknown) - len(silent):
        yield ProductionFinding("desk", "ok", f"slots of {lending} of {len(desks)} servers are lent by a desk")


def _other_servers(specs: Sequence[WorkerSpec]) -> Iterator[ProductionFinding]:
    alone = [spec for spec in specs if spec.kind != "weir" and spec.desk is None]
    fixed = [f"{spec.name} (slots: {spec.slots})" for spec in alone if spec.slots != "auto"]
    learned = [spec.name for spec in alone if spec.slots == "auto"]
    if learned:
        remedy = "a desk with `name=auto` learns one limit for all routers"
        yield ProductionFinding("other servers", "warn", f"{_list(learned)} (slots: auto)", WHY_LEARNED, remedy)
    if fixed:
        remedy = "a desk, or let `slots` be the server's, divided by the number of routers"
        yield ProductionFinding("other servers", "warn", _list(fixed), WHY_SLOTS, remedy)


def _list(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


# ---- the look


async def look(settings: RouterSettings, log: Log) -> Seen:
    """Ask the store, the workers and ROUTER_PORT, each for WITHIN_S at most."""
    workers = [
        connect(spec, settings.max_inflight, settings.shared_token, several_routers=True)
        for spec in settings.worker_specs()
    ]
    prober = Prober(Fleet(workers, Random(0)), settings.probe_interval_s, log, Random(0))
    try:
        await prober.look_at_all()  # what they serve, and so the names of the pools
        shared = [worker for worker in workers if worker.is_shared]
        pools = dict.fromkeys(worker.pools[0] for worker in shared if worker.pools)
        statuses = await asyncio.gather(*(_lease_status(worker) for worker in shared))
        store, callers = await _ask_store(settings.exchange_url, list(pools))
    finally:
        await prober.stop()
    leases = {worker.name: status for worker, status in zip(shared, statuses, strict=True)}
    return Seen(store, callers, await _listens(settings), leases)


async def _lease_status(worker: Worker) -> int | str:
    try:
        async with asyncio.timeout(WITHIN_S):
            return await cast(Lender, worker.upstream).lease_status()
    except (UpstreamError, TimeoutError) as error:
        return str(error) or type(error).__name__


async def _ask_store(url: str, pools: Sequence[str]) -> tuple[Mapping[str, Any] | str, Collection[str] | str]:
    try:
        client = redis_client(url, timeout_s=WITHIN_S, connections=1, socket_timeout_s=WITHIN_S)
    except ValueError as error:
        return str(error), "the store's address cannot be read"
    try:
        info: Mapping[str, Any] | str = await client.info()
    except (RedisError, OSError) as error:
        return f"{type(error).__name__}: {error}", "the store does not answer"
    else:
        return info, await _calling(client, pools)
    finally:
        with suppress(RedisError, OSError):
            await client.aclose()


async def _calling(client: Any, pools: Sequence[str]) -> Collection[str] | str:
    if not pools:
        return "no worker that is shared says what it serves"
    try:
        return set().union(*[await routers_calling(client, pool, CALLED_WITHIN_S) for pool in pools])
    except StoreFault as error:
        return str(error)


async def _listens(settings: RouterSettings) -> bool:
    """Whether something accepts connections at ROUTER_PORT of this machine."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "") else "::1" if settings.host == "::" else settings.host
    try:
        async with asyncio.timeout(WITHIN_S):
            _, writer = await asyncio.open_connection(host, settings.router_port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
