"""Bugs planted one at a time to test that the world finds them: `python -m loadtests.world.planted`.

Each bug replaces methods of the product with plausible mistakes: something forgotten, doubled or unchecked. A seed
finds it if the judge reports a violation.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import ceil
from typing import Any
from unittest import mock
from zlib import crc32

from msgspec import structs

from loadtests.report.progress import by_share, progress
from loadtests.world.play import play
from services.core.account import QueueUsage
from services.core.limit import InflightCap
from services.core.outcome import Outcome
from services.core.pool import PoolQueue
from services.core.reservations import RetryReservations
from services.core.retries import RetryBudget
from services.core.scheduler import Scheduler
from services.governor.gate import Gate, Slot
from services.governor.protocol import GovernorSession
from services.governor.server import _Connection as GovernorConnection
from services.router.deadlinetimer import DeadlineTimer
from services.router.deciding import earlyretry
from services.router.deciding.dispatcher import Dispatcher
from services.router.deciding.earlyretry import DECIDING_HEADERS
from services.router.request import InferenceRequest
from services.router.serving.attempts import Attempts
from services.router.telemetry.metrics import RouterMetrics
from services.router.workers.fleet import Fleet
from services.router.workers.health import Health
from services.runtime import drain, keepalive, serve
from services.runtime.connection import Connection
from services.runtime.errors import Refused
from services.runtime.guard import Inbound
from services.runtime.http import Exchange
from services.runtime.server import Server
from services.runtime.upstream_connection import UpstreamConnection
from services.worker.engines.simulated import SimulatedEngine

MAX_SEEDS = 200
SIZE = 300

Change = tuple[Any, str, Any]
"""The arguments of `mock.patch.object`: object, attribute, replacement."""


class Bug:
    """`seed` is the first that shows the bug, in scenarios of `SIZE` requests."""

    def __init__(self, name: str, seed: int, *changes: Change) -> None:
        self.name = name
        self.seed = seed
        self._changes = changes

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for target, name, value in self._changes:
                stack.enter_context(mock.patch.object(target, name, value))
            yield


def _in_place_of(owner: Any, name: str) -> Callable[[Callable[..., Any]], Change]:
    """Decorator: the function replaces that method, and receives the original before the method's arguments."""
    method = getattr(owner, name)

    def changed(change: Callable[..., Any]) -> Change:
        def other(*arguments: Any, **named: Any) -> Any:
            return change(method, *arguments, **named)

        return owner, name, other

    return changed


def _twice(method: Callable[..., Any], *arguments: Any) -> None:
    method(*arguments)
    method(*arguments)


@_in_place_of(Dispatcher, "release")
def _kept_when_the_client_left(
    release: Any, dispatcher: Dispatcher, now: float, turn: InferenceRequest, outcome: Outcome, *used: Any
) -> None:
    if outcome is not Outcome.CLIENT_GONE:
        release(dispatcher, now, turn, outcome, *used)


@_in_place_of(InferenceRequest, "wake")
def _lost_for_one_in_eight(wake: Any, turn: InferenceRequest) -> None:
    if turn.refusal is not None or crc32(str(turn.id).encode()) % 8:
        wake(turn)


@_in_place_of(Attempts, "_may_retry")
def _forgetting_the_first_retry(may_retry: Any, attempts: Attempts, request: InferenceRequest, *arguments: Any) -> bool:
    request.retried = False
    return bool(may_retry(attempts, request, *arguments))


async def _not_waiting(server: Server) -> None:
    raise TimeoutError


async def _without_waiting(tasks: Any, grace_s: float) -> None:
    for task in list(tasks):
        task.cancel()
    await asyncio.sleep(0)


def _taken(cap: InflightCap) -> bool:
    cap.inflight += 1
    cap.taken_total += 1
    return True


@_in_place_of(Dispatcher, "_pump")
def _beyond_the_cap(pump: Any, dispatcher: Dispatcher, now: float, pool: str) -> bool:
    cap, dispatcher.cap.cap = dispatcher.cap.cap, 10_000
    try:
        return bool(pump(dispatcher, now, pool))
    finally:
        dispatcher.cap.cap = cap


@_in_place_of(Fleet, "give_back")
def _counted_down_once_more(give_back: Any, fleet: Fleet, worker: Any, turn: InferenceRequest, **named: Any) -> None:
    give_back(fleet, worker, turn, **named)
    worker.inflight -= 1


@_in_place_of(RouterMetrics, "ended")
def _late_ones_twice(ended: Any, metrics: RouterMetrics, label: str, outcome: Outcome, seconds: float) -> None:
    for _ in range(2 if outcome is Outcome.DEADLINE_EXCEEDED else 1):
        ended(metrics, label, outcome, seconds)


@_in_place_of(Health, "answered")
def _never_after_a_missed_probe(answered: Any, health: Health, *arguments: Any, **named: Any) -> None:
    if not health.missed_probes:
        answered(health, *arguments, **named)


@_in_place_of(Inbound, "on_body")
def _without_the_last_byte(on_body: Any, inbound: Inbound, data: bytes) -> None:
    on_body(inbound, data if data.endswith(b"}") else data[:-1] + b" ")


@_in_place_of(Slot, "release_slot")
def _only_after_a_good_end(release_slot: Any, slot: Slot, seconds: float | None = None) -> None:
    if seconds is not None:
        release_slot(slot, seconds)


@_in_place_of(GovernorConnection, "_write")
def _to_the_newest(write: Any, connection: GovernorConnection, data: bytes) -> None:
    newest = next(reversed(list(connection._server.connections)), connection)
    write(newest if b'"status":"done"' in data else connection, data)


def _any_bytes(gate: Gate, more_bytes: int, of_this_connection: int) -> bool:
    gate.held_bytes += more_bytes
    return True


def _any_job(gate: Gate) -> Slot:
    gate._slots.inflight += 1
    gate._slots.taken_total += 1
    return Slot(gate)


def _not_counted_back(session: GovernorSession, job: Any) -> None:
    job.deferred = False


def _of_any_body(exchange: Exchange) -> int:
    return hash((exchange.path, tuple(header for header in exchange.headers if header[0] in DECIDING_HEADERS)))


@_in_place_of(earlyretry, "repeated")
def _with_the_whole_hint(repeated: Any, exchange: Exchange, *arguments: Any) -> Refused | None:
    refusal: Refused | None = repeated(exchange, *arguments)
    last = exchange.connection_memo
    if refusal is not None and isinstance(last, earlyretry.StandingRefusal):
        refusal.details = structs.replace(refusal.details, retry_hint_ms=ceil(1000 * (last.until - last.refused_at)))
    return refusal


def _taken_without_resuming(upstream: UpstreamConnection) -> bytes:
    data = b"".join(upstream.pieces)
    upstream.pieces.clear()
    upstream.buffered_bytes = 0
    return data


def _not_written_to(connection: Connection) -> None:
    connection.write_paused = False


BUGS = (
    Bug("a slot is not given back when the client leaves", 5, _kept_when_the_client_left),
    Bug("a charge is settled twice", 1, _in_place_of(PoolQueue, "settle")(_twice)),
    Bug("a request ends twice for the scheduler", 1, _in_place_of(Scheduler, "finish")(_twice)),
    Bug("a wake-up is lost", 2, _lost_for_one_in_eight),
    Bug("retries ask no budget", 31, (RetryBudget, "try_retry", lambda budget, now: True)),
    Bug("a request is tried a third time", 9, _forgetting_the_first_retry),
    Bug(
        "a POST is sent again when a stale connection closes", 8, (keepalive, "REPEATABLE", (b"GET", b"HEAD", b"POST"))
    ),
    Bug("a hint reserves nothing", 2, (RetryReservations, "hint", lambda *arguments, **named: 0.05)),
    Bug(
        "a drain waits for nobody",
        9,
        (Server, "_wait_tasks_to_complete", _not_waiting),
        (serve, "let_end", _without_waiting),
        (drain, "let_end", _without_waiting),
    ),
    Bug("a deadline is not watched", 3, (DeadlineTimer, "_fire", lambda timer: None)),
    Bug("the queue has no bound", 12, (QueueUsage, "limit_exceeded_by", lambda usage, *arguments: None)),
    Bug("the cap is not asked", 5, (InflightCap, "try_take", _taken), _beyond_the_cap),
    Bug("a slot is given back twice", 1, _counted_down_once_more),
    Bug("a late request is counted twice", 3, _late_ones_twice),
    Bug("a worker keeps the memory of cancelled requests", 1, (SimulatedEngine, "drop", lambda engine, sequence: None)),
    Bug("a worker that was down is never trusted again", 37, _never_after_a_missed_probe),
    Bug("a byte is lost where a body arrives in pieces", 2, _without_the_last_byte),
    Bug("the governor keeps the slot of a job that did not end well", 9, _only_after_a_good_end),
    Bug("the governor's answer goes to another connection", 1, _to_the_newest),
    Bug("the governor's bytes have no bound", 8, (Gate, "reserve", _any_bytes)),
    Bug("the governor's cap is not asked", 5, (Gate, "try_acquire", _any_job)),
    Bug("a deferred job of the governor is counted for ever", 1, (GovernorSession, "_resume", _not_counted_back)),
    Bug(
        "a worker's connection is not resumed after a pause", 23, (UpstreamConnection, "take", _taken_without_resuming)
    ),
    Bug("a client that reads again is not written to", 23, (Connection, "resume_writing", _not_written_to)),
    Bug("an early retry's body is not compared", 2, (earlyretry, "_fingerprint", _of_any_body)),
    Bug("an early retry's hint is not counted down", 12, _with_the_whole_hint),
    Bug("an early retry is counted twice", 12, _in_place_of(RouterMetrics, "early_retry")(_twice)),
)


@dataclass(frozen=True, slots=True)
class Found:
    """The first seed that shows a bug (None if none did) and the judge's message."""

    bug: Bug
    seed: int | None
    broken: str = ""


def hunt(bug: Bug, seeds: range = range(1, MAX_SEEDS + 1), size: int = SIZE) -> Found:
    """Play seeds with the bug until one has a violation."""
    with bug.planted():
        for seed in seeds:
            violations = play(seed, size=size, one_router=True).violations
            if violations:
                return Found(bug, seed, violations[0])
    return Found(bug, None)


def main() -> int:
    """Hunt each bug and print the result. Exit status 1 if one was not found."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.world.planted", description="Does the world find bugs?")
    parser.add_argument("--only", default="", help="only bugs whose name contains this")
    parser.add_argument("--seeds", type=int, default=MAX_SEEDS)
    wanted = parser.parse_args()
    bugs = [bug for bug in BUGS if wanted.only in bug.name]
    hunted: list[Found] = []
    with progress(
        "planted bugs", by_share(lambda: len(hunted) / len(bugs)), far=lambda: f"{len(hunted)} of {len(bugs)}"
    ):
        for bug in bugs:
            found = hunt(bug, range(1, wanted.seeds + 1))
            hunted.append(found)
            where = f"seed {found.seed}: {found.broken[:160]}" if found.seed is not None else "NOT FOUND"
            print(f"{bug.name}: {where}", flush=True)
    return 1 if any(found.seed is None for found in hunted) else 0


if __name__ == "__main__":
    sys.exit(main())
