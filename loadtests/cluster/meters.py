"""The workers' own time: their metrics before and after a load."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from functools import reduce

from loadtests.cluster.books import total
from loadtests.cluster.processes import get
from loadtests.cluster.stand import Server


@dataclass(frozen=True, slots=True)
class Meter:
    """Slot time: mean batch size times the total time of all steps. `tokens`: generated tokens."""

    wasted_s: float = 0.0
    slot_s: float = 0.0
    requests: float = 0.0
    tokens: float = 0.0

    def __add__(self, other: Meter) -> Meter:
        return Meter(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: Meter) -> Meter:
        return Meter(*(mine - theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    @property
    def wasted(self) -> float:
        """Share of slot time spent on answers that no client received."""
        return self.wasted_s / self.slot_s if self.slot_s > 0 else 0.0


async def read(workers: Iterable[Server]) -> Meter:
    """Sum over all workers. Raises OSError if one does not answer."""
    texts = await asyncio.gather(*(asyncio.to_thread(get, worker.metrics_url) for worker in workers))
    return reduce(Meter.__add__, (parse(text.decode()) for text in texts), Meter())


def parse(text: str) -> Meter:
    """One worker's metrics from Prometheus' text format."""
    steps = total(text, "weir_worker_batch_size_count")
    mean_batch = total(text, "weir_worker_batch_size_sum") / steps if steps else 0.0
    return Meter(
        wasted_s=total(text, "weir_wasted_seconds_total"),
        slot_s=mean_batch * total(text, "weir_worker_step_seconds_sum"),
        requests=total(text, "weir_worker_requests_total"),
        tokens=total(text, "weir_worker_completion_tokens_total"),
    )
