"""Bugs that are planted one at a time, to see that the world finds them: `python -m loadtests.world.planted`.

Each is a change of one method of the product that its author could have made: something is forgotten, done twice, or
not asked. A bug is found by a seed in which the judge names a broken promise. In between the product is as it is.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock
from zlib import crc32

from loadtests.world.play import play
from services.core.account import Usage as Waiting
from services.core.hint import Appointments
from services.core.limit import InflightCap
from services.core.outcome import Outcome
from services.core.pool import Pool
from services.core.retries import RetryBudget
from services.core.weir import Weir
from services.governor.gate import Gate, Place
from services.governor.protocol import Conversation
from services.governor.server import _Connection as GovernorConnection
from services.router.asking.alarm import Alarm
from services.router.deciding.dispatcher import Dispatcher
from services.router.observing.metrics import RouterMetrics
from services.router.serving.attempts import Attempts
from services.router.workers.fleet import Fleet
from services.router.workers.health import Health
from services.router.workers.turn import Turn
from services.runtime import drain, keepalive, serve
from services.runtime.connection import Connection
from services.runtime.guard import Inbound
from services.runtime.keepalive import _Connection as Upstream
from services.worker.engines.simulated import SimulatedEngine

MOST_SEEDS = 200
SIZE = 300

Planted = Iterator[tuple[Any, str, Any]]


@dataclass(frozen=True, slots=True)
class Bug:
    """`plant` yields what `mock.patch.object` takes: an object, the name of its attribute, and what stands there.

    `seed` is the first that shows it, of scenarios of `SIZE` requests.
    """

    name: str
    plant: Callable[[], Planted]
    seed: int

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The product with this bug."""
        with ExitStack() as stack:
            for target, name, value in self.plant():
                stack.enter_context(mock.patch.object(target, name, value))
            yield


def _slot_kept_on_cancel() -> Planted:
    release = Dispatcher.release

    def forgetful(self: Dispatcher, now: float, turn: Turn, outcome: Outcome, *used: Any) -> None:
        if outcome is not Outcome.CLIENT_GONE:
            release(self, now, turn, outcome, *used)

    yield Dispatcher, "release", forgetful


def _charge_settled_twice() -> Planted:
    settle = Pool.settle

    def twice(self: Pool, *arguments: Any) -> None:
        settle(self, *arguments)
        settle(self, *arguments)

    yield Pool, "settle", twice


def _request_ended_twice() -> Planted:
    finish = Weir.finish

    def twice(self: Weir, *arguments: Any) -> None:
        finish(self, *arguments)
        finish(self, *arguments)

    yield Weir, "finish", twice


def _wake_up_lost() -> Planted:
    wake = Turn.wake

    def sleepy(self: Turn) -> None:
        if self.refusal is not None or crc32(str(self.id).encode()) % 8:
            wake(self)

    yield Turn, "wake", sleepy


def _retry_outside_the_budget() -> Planted:
    yield RetryBudget, "try_retry", lambda self, now: True


def _second_retry() -> Planted:
    may_retry = Attempts._may_retry

    def again(self: Attempts, call: Any, turn: Turn, *arguments: Any) -> bool:
        turn.retried = False
        return may_retry(self, call, turn, *arguments)

    yield Attempts, "_may_retry", again


def _stale_connection_for_a_post() -> Planted:
    yield keepalive, "REPEATABLE", (b"GET", b"HEAD", b"POST")


def _hint_without_a_reservation() -> Planted:
    def soon(self: Appointments, *arguments: Any, **named: Any) -> float:
        return 0.05

    yield Appointments, "hint", soon


def _drain_that_waits_for_nobody() -> Planted:
    async def at_once(tasks: Any, grace_s: float) -> None:
        for task in list(tasks):
            task.cancel()
        await asyncio.sleep(0)

    yield serve, "let_end", at_once
    yield drain, "let_end", at_once


def _deadline_not_watched() -> Planted:
    yield Alarm, "_ring", lambda self: None


def _queue_without_a_bound() -> Planted:
    yield Waiting, "broken_by", lambda self, *arguments: None


def _cap_not_asked() -> Planted:
    def taken(self: InflightCap) -> bool:
        self.inflight += 1
        self.taken_total += 1
        return True

    yield InflightCap, "try_take", taken
    yield Dispatcher, "_pump", _pump_without_the_cap(Dispatcher._pump)


def _pump_without_the_cap(pump: Callable[..., bool]) -> Callable[..., bool]:
    def unbounded(self: Dispatcher, now: float, pool: str) -> bool:
        cap, self.cap.cap = self.cap.cap, 10_000
        try:
            return pump(self, now, pool)
        finally:
            self.cap.cap = cap

    return unbounded


def _slot_given_back_twice() -> Planted:
    give_back = Fleet.give_back

    def twice(self: Fleet, worker: Any, turn: Turn, **named: Any) -> None:
        give_back(self, worker, turn, **named)
        worker.inflight -= 1

    yield Fleet, "give_back", twice


def _request_counted_twice() -> Planted:
    ended = RouterMetrics.ended

    def twice(self: RouterMetrics, label: str, outcome: Outcome, seconds: float) -> None:
        ended(self, label, outcome, seconds)
        if outcome is Outcome.DEADLINE_EXCEEDED:
            ended(self, label, outcome, seconds)

    yield RouterMetrics, "ended", twice


def _memory_kept_when_cancelled() -> Planted:
    yield SimulatedEngine, "drop", lambda self, sequence: None


def _worker_never_trusted_again() -> Planted:
    answered = Health.answered

    def grudging(self: Health, *arguments: Any, **named: Any) -> None:
        if not self.missed_probes:
            answered(self, *arguments, **named)

    yield Health, "answered", grudging


def _part_of_a_body_lost() -> Planted:
    on_body = Inbound.on_body

    def careless(self: Inbound, data: bytes) -> None:
        on_body(self, data if data.endswith(b"}") else data[:-1] + b" ")

    yield Inbound, "on_body", careless


def _governor_slot_kept() -> Planted:
    give_back = Place.give_back

    def forgetful(self: Place, seconds: float | None = None) -> None:
        if seconds is not None:
            give_back(self, seconds)

    yield Place, "give_back", forgetful


def _governor_answers_another() -> Planted:
    write = GovernorConnection._write

    def astray(self: GovernorConnection, data: bytes) -> None:
        newest = next(reversed(list(self._server.connections)), self)
        write(newest if b'"status":"done"' in data else self, data)

    yield GovernorConnection, "_write", astray


def _governor_bytes_without_a_bound() -> Planted:
    def generous(self: Gate, more_bytes: int, of_this_connection: int) -> bool:
        self.held_bytes += more_bytes
        return True

    yield Gate, "hold", generous


def _governor_cap_not_asked() -> Planted:
    def taken(self: Gate) -> Place:
        self._slots.inflight += 1
        self._slots.taken_total += 1
        return Place(self)

    yield Gate, "try_take", taken


def _governor_counts_who_is_back() -> Planted:
    def never(self: Conversation, job: Any) -> None:
        job.told = False

    yield Conversation, "_back", never


def _upstream_not_resumed() -> Planted:
    def sleepy(self: Upstream) -> bytes:
        data = b"".join(self.pieces)
        self.pieces.clear()
        self.buffered_bytes = 0
        return data

    yield Upstream, "take", sleepy


def _client_not_resumed() -> Planted:
    def deaf(self: Connection) -> None:
        self.behind = False

    yield Connection, "resume_writing", deaf


BUGS = (
    Bug("a slot is not given back when the client leaves", _slot_kept_on_cancel, 3),
    Bug("a charge is settled twice", _charge_settled_twice, 1),
    Bug("a request ends twice for the scheduler", _request_ended_twice, 1),
    Bug("a wake-up is lost", _wake_up_lost, 87),
    Bug("retries ask no budget", _retry_outside_the_budget, 31),
    Bug("a request is tried a third time", _second_retry, 9),
    Bug("a POST is sent again when a stale connection closes", _stale_connection_for_a_post, 8),
    Bug("a hint reserves nothing", _hint_without_a_reservation, 2),
    Bug("a drain waits for nobody", _drain_that_waits_for_nobody, 9),
    Bug("a deadline is not watched", _deadline_not_watched, 3),
    Bug("the queue has no bound", _queue_without_a_bound, 10),
    Bug("the cap is not asked", _cap_not_asked, 3),
    Bug("a slot is given back twice", _slot_given_back_twice, 1),
    Bug("a late request is counted twice", _request_counted_twice, 3),
    Bug("a worker keeps the memory of cancelled requests", _memory_kept_when_cancelled, 1),
    Bug("a worker that was down is never trusted again", _worker_never_trusted_again, 37),
    Bug("a byte is lost where a body arrives in pieces", _part_of_a_body_lost, 2),
    Bug("the governor keeps the slot of a job that did not end well", _governor_slot_kept, 9),
    Bug("the governor's answer goes to another connection", _governor_answers_another, 1),
    Bug("the governor's bytes have no bound", _governor_bytes_without_a_bound, 8),
    Bug("the governor's cap is not asked", _governor_cap_not_asked, 3),
    Bug("whoever the governor told to come back is counted for ever", _governor_counts_who_is_back, 1),
    Bug("a worker's connection is not resumed after a pause", _upstream_not_resumed, 23),
    Bug("a client that reads again is not written to", _client_not_resumed, 4),
)


@dataclass(frozen=True, slots=True)
class Found:
    """The first seed that shows a bug, and what the judge says of it. `seed` is None where none did."""

    bug: Bug
    seed: int | None
    broken: str = ""


def hunt(bug: Bug, seeds: range = range(1, MOST_SEEDS + 1), size: int = SIZE) -> Found:
    """Play seeds with the bug in place until a promise is broken."""
    with bug.planted():
        for seed in seeds:
            violations = play(seed, size=size).violations
            if violations:
                return Found(bug, seed, violations[0])
    return Found(bug, None)


def main() -> int:
    """Hunt each, and tell; the exit status is 1 where one was not found."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.world.planted", description="Does the world find bugs?")
    parser.add_argument("--only", default="", help="those whose name contains this")
    parser.add_argument("--seeds", type=int, default=MOST_SEEDS)
    wanted = parser.parse_args()
    missed = 0
    for bug in BUGS:
        if wanted.only not in bug.name:
            continue
        found = hunt(bug, range(1, wanted.seeds + 1))
        missed += found.seed is None
        where = f"seed {found.seed}: {found.broken[:160]}" if found.seed is not None else "NOT FOUND"
        print(f"{bug.name}: {where}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
