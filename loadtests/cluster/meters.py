"""What the workers say of their own time: read off their metrics before and after a load."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from functools import reduce

from loadtests.cluster.processes import get
from loadtests.cluster.stand import Server

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Meter:
    """Slot time is steps times the sequences in them: mean batch size by the time of all steps. `tokens`: written."""

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
        """Share of the slot time that went into answers nobody got."""
        return self.wasted_s / self.slot_s if self.slot_s > 0 else 0.0


async def read(workers: Iterable[Server]) -> Meter:
    """All workers together. Raises OSError if one does not answer."""
    texts = await asyncio.gather(*(asyncio.to_thread(get, worker.metrics_url) for worker in workers))
    return reduce(Meter.__add__, (parse(text.decode()) for text in texts), Meter())


def parse(text: str) -> Meter:
    """One worker's metrics, in Prometheus' text format."""
    sums: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        sums[name] = sums.get(name, 0.0) + float(value)
    steps = sums.get("weir_worker_batch_size_count", 0.0)
    mean_batch = sums.get("weir_worker_batch_size_sum", 0.0) / steps if steps else 0.0
    return Meter(
        wasted_s=sums.get("weir_wasted_seconds_total", 0.0),
        slot_s=mean_batch * sums.get("weir_worker_step_seconds_sum", 0.0),
        requests=sums.get("weir_worker_requests_total", 0.0),
        tokens=sums.get("weir_worker_completion_tokens_total", 0.0),
    )
