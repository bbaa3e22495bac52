"""One seed, played from the start of the cluster to its end, and judged."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any
from unittest import mock

from loadtests.cluster.loop import SimLoop, Simulation
from loadtests.world.client import Ask, Client, Try
from loadtests.world.faults import Stage
from loadtests.world.governed import Governed
from loadtests.world.judge import Facts, Judge, Steps
from loadtests.world.metrics import counted
from loadtests.world.scenario import Fault, Group, Load, Scenario, Tight, scenario
from loadtests.world.system import GOVERNOR_METRICS, ROUTER_METRICS_PORT, ROUTER_PORT, System, router_address
from services.router.serving.pipeline import Pipeline
from services.runtime import connection, upstream_connection
from services.runtime.serve import Process

BEGINS_S = 1.5
"""Seconds after the start of the nodes; the router has probed its workers by then."""
RETRIES = {"naive": 3, "hint": 2, "early": 5}
EARLY_PARTS = (0.0, 0.0, 0.3, 0.9, 1.0)
"""Parts of its hint after which an early client comes back."""
EARLY_WAYS = ("same", "same", "same", "another tenant", "another prompt")
"""What an early client sends over its connection: the same request, or one that differs."""
OPEN_SHARE = 0.7
"""Share of requests that set no limit of their answer."""
CLIENT_TIMEOUT = 2.0
"""Deadlines after the last request by which every try must have ended."""

Trace = Callable[[float, str, str, str], None]


@dataclass(slots=True)
class Result:
    """The result of one seed. `violations` is empty for a good run; `digest` identifies it."""

    seed: int
    requests: int
    violations: list[str]
    digest: str
    virtual_s: float
    faults: int
    counts: Counter[str] = field(default_factory=Counter)
    on_time: dict[str, float] = field(default_factory=dict)
    """Share of requests answered right, by group of tenants, and by kind of client where a group has impatient ones. A
    retry counts for the original request."""
    cpu_s: float = 0.0
    """Processor time of the seed, if measured."""


class Play:
    def __init__(self, made: Scenario, trace: Trace | None = None) -> None:
        self.scenario = made
        self.facts = Facts(made)
        self.simulation = Simulation(made.seed)
        self._trace = trace
        if trace is not None:
            self.simulation.watch = lambda who, what, detail: trace(self.simulation.now, who, what, detail)
        network = self.simulation.network
        network.opaque_ports = frozenset({ROUTER_METRICS_PORT, GOVERNOR_METRICS[1]})
        if made.tight is not None:
            network.window_bytes = made.tight.window
        network.latency_s, network.jitter_s, network.short_reads = made.latency_s, made.jitter_s, made.short_reads
        self.system = System(
            self.simulation, made, on_line=self._line, on_error=self._error, executed=self._received
        )  # fmt: skip
        self._steps_found: list[str] = []
        for router in self.system.routers:
            steps = Steps(made, self._steps_found, self.system.workers)
            router.on_turn, router.on_built = steps.look, partial(_built, steps)
        self._rng = Random(f"clients {made.seed}")
        self._early = Random(f"early clients {made.seed}")
        self._open = Random(f"open-ended requests {made.seed}")
        self._lab = SimLoop(self.simulation, "lab", "10.0.9.1")
        self._lab.set_exception_handler(self._uncaught)
        self._machines: list[Client] = []
        self._loops: list[SimLoop] = []
        for number in range(made.machines):
            loop = SimLoop(self.simulation, f"clients-{number}", f"10.0.8.{number + 1}")
            loop.set_exception_handler(lambda _, context: self._error("clients", repr(context)))
            self._loops.append(loop)
            address = router_address(number % made.routers), ROUTER_PORT
            self._machines.append(Client(loop, address, self._ended))
        self._governed = Governed(self.system, self._loops)
        self._began = 0.0
        self._numbers = 0

    def run(self) -> Result:
        """Play to the end and free everything."""
        gc_was_on = gc.isenabled()
        gc.disable()  # a killed process's garbage must not be collected at a machine-dependent moment
        try:
            with _bounds(self.scenario.tight):
                self._lab.run_until_complete(self._play())
        except Exception as error:
            self.facts.errors.append(f"the run ended early: {error!r}")
        finally:
            self.simulation.close()
            if gc_was_on:
                gc.enable()
        self.facts.errors += self._steps_found
        verdict = Judge(self.facts)
        return Result(
            seed=self.scenario.seed,
            requests=len(self.facts.tries) + len(self._governed.facts.jobs),
            violations=verdict.verdicts() + self._governed.verdicts(self.facts.faults),
            digest=self.simulation.digest,
            virtual_s=self.simulation.now - self._began,
            faults=len(self.scenario.faults) + len(self.scenario.governor.faults),
            counts=verdict.counts() + self._governed.counts(),
            on_time=self._on_time(verdict),
        )

    def _on_time(self, verdict: Judge) -> dict[str, float]:
        groups = {load.group.name: load.group for load in self.scenario.loads if load.group is not None}
        of = {tenant: group for group in groups.values() for tenant in _members(group)}
        asked: dict[str, dict[int, bool]] = defaultdict(dict)
        for attempt in self.facts.tries:
            group, ask = of.get(attempt.ask.tenant), attempt.ask
            if group is None:
                continue
            impatient = "impatient" if ask.manner == "naive" else "others"
            for name in (group.name, f"{group.name}, {impatient}") if group.impatient else (group.name,):
                asked[name][id(ask)] = asked[name].get(id(ask), False) or verdict.is_right(attempt)
        return {name: sum(asks.values()) / len(asks) for name, asks in asked.items() if asks}

    async def _play(self) -> None:
        self._began = self.simulation.now
        self.system.start()
        await asyncio.sleep(BEGINS_S)
        zero = self.simulation.now
        for fault in self.scenario.faults:
            self.simulation.at(zero + fault.begins_s, self._begin, fault)
        for evil in self.system.evil:
            self.simulation.at(zero + self.scenario.faults_end_s, evil.reform)
        for load in self.scenario.loads:
            self._arrivals(zero, load)
        self._governed.begin(zero)
        await asyncio.sleep(self.scenario.ends_s)
        await asyncio.sleep(CLIENT_TIMEOUT * self.scenario.deadline_s)
        await self._settle()

    # Clients

    def _arrivals(self, zero: float, load: Load) -> None:
        """Schedule a load's arrivals one after the other."""
        of = "" if load.group is None else f" of {load.group.name}"
        rng = Random(f"arrivals {self.scenario.seed} {load.begins_s}{of}")
        until = zero + load.begins_s + load.lasts_s
        calm = load.begins_s >= self.scenario.faults_end_s
        of_tail = load.begins_s >= self.scenario.calm_from_s

        def arrive() -> None:
            ask = self._ask(rng, calm=calm, of_tail=of_tail) if load.group is None else _of_group(rng, load.group)
            retries = RETRIES.get(ask.manner, 0) if load.group is None else load.group.retries
            self._send(rng.choice(self._machines), ask, retries, of_tail=of_tail)
            next_arrival()

        def next_arrival() -> None:
            at = self.simulation.now + rng.expovariate(load.per_s)
            if at < until:
                self.simulation.at(at, arrive)

        self.simulation.at(zero + load.begins_s, next_arrival)

    def _ask(self, rng: Random, *, calm: bool, of_tail: bool) -> Ask:
        """`calm`: all faults have ended; slow readers count as one, because they hold a slot while they read."""
        made = self.scenario
        stream = rng.random() < made.stream_share
        kind = "ask" if rng.random() < made.ask_share else rng.choice(("chat", "chat", "completion"))
        leaves = rng.random() < made.leaver_share
        early = not of_tail and self._early.random() < made.early_share
        return Ask(
            tenant=f"tenant-{rng.randrange(made.tenants)}",
            kind=kind,
            stream=stream,
            deadline_s=made.deadline_s,
            manner="none" if of_tail else "early" if early else made.manner,
            leaves_after_s=rng.random() * made.deadline_s if leaves else None,
            reads_slowly=rng.random() < made.slow_share and not calm,
            repeats=early,
            open_ended=self._open.random() < OPEN_SHARE,
        )

    def _send(
        self, machine: Client, ask: Ask, retries_left: int, follows: Try | None = None, *, repeats: bool = False,
        of_tail: bool = False,
    ) -> None:  # fmt: skip
        self._numbers += 1
        attempt = Try(self._numbers, ask, retries_left, follows, repeats=repeats)
        attempt.of_tail = of_tail
        self.facts.tries.append(attempt)
        machine.loop.call_soon(machine.send, attempt)

    def _ended(self, attempt: Try) -> None:
        detail = f"{attempt.status} {attempt.end}".strip()
        self.simulation.note("client", "ends", f"{attempt.id} {detail}")
        if attempt.status in (200, 400, 422) or attempt.left or attempt.retries_left == 0 or attempt.of_tail:
            return
        machine = self._rng.choice(self._machines)
        pause_s = self._pause_s(attempt)
        if pause_s is None:
            return
        left, over = attempt.retries_left - 1, attempt.over
        if over is None or not self._may_repeat(attempt):
            again = partial(self._send, machine, attempt.ask, left)
        else:
            way = self._early.choice(EARLY_WAYS) if attempt.ask.manner == "early" else "same"
            ask = attempt.ask
            if way == "another tenant":
                ask = replace(ask, tenant=f"tenant-{self._early.randrange(self.scenario.tenants)}")
            again = partial(self._send, over.machine, ask, left, attempt, repeats=way != "another prompt")
        self.simulation.at(self.simulation.now + pause_s, again)

    def _pause_s(self, attempt: Try) -> float | None:
        """Seconds until the client of a request that failed comes back; None if it does not."""
        if attempt.ask.manner == "naive":
            return 0.0
        if not attempt.invited or attempt.hint_ms is None:
            return None
        pause_s = attempt.hint_ms / 1000
        if attempt.ask.manner == "early":
            pause_s *= self._early.choice(EARLY_PARTS)
        until = self._began + BEGINS_S + self.scenario.calm_from_s - 2 * self.scenario.deadline_s
        return pause_s if self.simulation.now + pause_s < until else None

    def _may_repeat(self, attempt: Try) -> bool:
        """Whether the next try may have this one's nonce: it was refused before a worker received it."""
        return attempt.ask.repeats and attempt.status == 429 and not self.facts.received.get(attempt.nonce)

    # Faults

    def _begin(self, fault: Fault) -> None:
        chance = Random(f"fault {self.scenario.seed} {fault.begins_s}")
        stage = Stage(self.system, self._loops, chance, fault.worker, fault.factor)
        self.facts.faults.append((*stage.begin(fault.kind, fault.lasts_s), fault))

    # Observations

    def _line(self, name: str, start: int, line: bytes) -> None:
        self.simulation.note(name, "logs", data=line)
        if self._trace is not None:
            self._trace(self.simulation.now, name, "logs", line.decode())
        self.facts.line(name, start, line)

    def _error(self, name: str, what: str) -> None:
        self.facts.errors.append(f"{name}: {what}")

    def _uncaught(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Record uncaught errors, except generators that a killed process cannot close."""
        if "aclose()" not in repr(context.get("exception")):
            self._error("lab", repr(context))

    def _received(self, worker: str, nonce: str, what: str) -> None:
        if self._governed.received(nonce):
            return
        self.facts.received[nonce].append((self.simulation.now, worker))

    # End

    async def _settle(self) -> None:
        """Collect what the router still holds and its counters, then what is left after it."""
        facts = self.facts
        facts.garbage = sum(len(machine.garbage) for machine in self._machines)
        for machine in self._machines:
            machine.loop.call_soon(machine.close)
        self._governed.close()
        await asyncio.sleep(0.5)
        await self._governed.settle()
        facts.governed = self._governed.facts.executed
        for number, router in enumerate(self.system.routers):
            facts.router_starts[router.name] = router.starts
            requests, retries, early_retries = await counted(number)
            facts.counted += requests
            facts.retries += retries
            facts.early_retries += early_retries
        facts.left += self._held()
        for node in self.system.nodes:
            facts.left += [f"{node.name}: {what}" for what in await node.stop(3 * self.scenario.deadline_s + 5)]

    def _held(self) -> list[str]:
        """Places, bytes and entries that were not returned."""
        held: dict[str, float] = {}
        for router, pipeline in zip(self.system.routers, self.system.pipelines(), strict=True):
            if pipeline is None:
                return [f"{router.name} does not run at the end"]
            held |= {f"{what} of {router.name}": count for what, count in _held_by(pipeline).items()}
        for node in self.system.workers:
            if node.inside is not None:
                held[f"running at {node.name}"] = node.inside.running
                held[f"waiting at {node.name}"] = node.inside.waiting
        return [f"{count} {what}" for what, count in held.items() if count]


def _built(steps: Steps, process: Process) -> None:
    steps.pipeline = process.inside  # type: ignore[assignment]


def _held_by(pipeline: Pipeline) -> dict[str, float]:
    """What a router has not returned."""
    dispatcher = pipeline.dispatcher
    usage = dispatcher.scheduler.usage
    held: dict[str, float] = {
        "places under the cap": dispatcher.cap.inflight,
        "requests in the queue": usage.requests,
        "bytes in the queue": usage.bytes,
        "requests that wait": len(dispatcher.waiting),
        "requests at work": pipeline.drain.inflight,
        "requests that ended twice": dispatcher.scheduler.second_finishes,
    }
    return held | {f"places at {worker.name}": worker.inflight for worker in dispatcher.fleet.workers}


def _members(group: Group) -> list[str]:
    return [group.name] if group.count == 1 else [f"{group.name}-{number + 1}" for number in range(group.count)]


def _of_group(rng: Random, group: Group) -> Ask:
    return Ask(
        tenant=_members(group)[rng.randrange(group.count)],
        kind=rng.choice(("chat", "completion")),
        stream=rng.random() < group.stream_share,
        deadline_s=group.deadline_s,
        manner="naive" if group.impatient and rng.random() < group.impatient else group.manner,
        leaves_after_s=group.leaves_after_s,
        repeats=group.repeats,
    )


@contextmanager
def _bounds(tight: Tight | None) -> Iterator[None]:
    """Apply the scenario's bounds of connections to the product."""
    with ExitStack() as stack:
        if tight is not None:
            stack.enter_context(mock.patch.object(connection, "MAX_UNREAD_BYTES", tight.unread))
            stack.enter_context(mock.patch.object(upstream_connection, "HIGH_WATER_BYTES", tight.ahead))
        yield


def play(seed: int, trace: Trace | None = None, *, size: int = 1000, one_router: bool = False) -> Result:
    return play_scenario(scenario(seed, size=size, one_router=one_router), trace)


def play_scenario(made: Scenario, trace: Trace | None = None) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # a killed process closes nothing; its kernel does
        stage = Play(made, trace)
        result = stage.run()
        del stage
        gc.collect()
    return result
