"""Injects the faults of the deck one after another, keeps calm between groups, and records when each thing was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter

from loadtests.cluster.processes import frozen
from loadtests.runs.many.addresses import Node
from loadtests.runs.many.commands import Rules, adding, both_ways, cable, deleting, from_, reset, towards
from loadtests.runs.many.deck import HOLDS_S, Fault, What, groups
from loadtests.runs.many.namespaces import do_all
from loadtests.runs.many.record import Phase, Span, Stretch
from loadtests.runs.many.sizes import AGAIN_WITHIN_S, SETTLE_S, WATCHED_S, Sizes
from loadtests.runs.many.stand import Stand

RULES: dict[What, Callable[[Node], Rules]] = {
    What.TOWARDS_CUT: towards, What.BACK_CUT: from_, What.LINK_CUT: both_ways, What.LINK_RESET: reset,
}  # fmt: skip
KILLED = (What.ROUTER_KILLED, What.STORE_KILLED)
FROZEN = (What.ROUTER_FROZEN, What.WORKER_FROZEN, What.STORE_FROZEN)
"""The other faults are of cables."""
BACK_WITHIN_S = 60.0


@dataclass
class Injection:
    stand: Stand
    faults: Sequence[Fault]
    sizes: Sizes
    spans: list[Span] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)

    async def run(self) -> None:
        """The whole run, from the warm-up on. Raises StandError if a process does not come back."""
        await asyncio.sleep(self.sizes.warm_s)
        for group in groups(self.faults, self.sizes.per_group):
            for fault in group:
                began = perf_counter()
                await self._one(fault)
                self.spans.append(Span(fault, began, perf_counter()))
                await asyncio.sleep(AGAIN_WITHIN_S + WATCHED_S)
            await asyncio.sleep(SETTLE_S - AGAIN_WITHIN_S - WATCHED_S)
            async with self._during(Phase.CALM):
                await asyncio.sleep(self.sizes.calm_s)
        async with self._during(Phase.STORE_FROZEN):
            with frozen(self.stand.processes[self.stand.net.store.name].pid):
                await asyncio.sleep(self.sizes.frozen_s)
        await asyncio.sleep(AGAIN_WITHIN_S)

    @asynccontextmanager
    async def _during(self, phase: Phase) -> AsyncIterator[None]:
        began = perf_counter()
        yield
        self.stretches.append(Stretch(phase, began, perf_counter()))

    async def _one(self, fault: Fault) -> None:
        holds_s = HOLDS_S[fault.what]
        node = self.stand.net.node(fault.router or fault.worker or self.stand.net.store.name)
        if fault.what in KILLED:
            self.stand.processes[node.name].kill()
            await asyncio.sleep(holds_s)
            async with asyncio.timeout(BACK_WITHIN_S):
                await self.stand.start(node.name)
        elif fault.what in FROZEN:
            with frozen(self.stand.processes[node.name].pid):
                await asyncio.sleep(holds_s)
        elif fault.what in RULES:
            rules = RULES[fault.what](self.stand.net.node(fault.worker))
            try:
                await do_all(adding(node, rules))
                await asyncio.sleep(holds_s)
            finally:
                await do_all(deleting(node, rules))
        else:
            try:
                await do_all([cable(node, into=False)])
                await asyncio.sleep(holds_s)
            finally:
                await do_all([cable(node, into=True)])
