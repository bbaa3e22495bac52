"""The workers' capacity, measured directly with one closed-loop client per slot.

All loads and goodputs are multiples of it. It includes the time a worker loses between two answers, when a new request
waits for the running step to end.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import count
from urllib.parse import urlsplit

from loadtests.cluster.stand import Shape, Stand
from loadtests.load.arrivals import Ask
from loadtests.load.asking import Asking
from loadtests.load.closed import LoopResults, closed_loop
from loadtests.load.figures import Quantiles, quantiles
from loadtests.load.plan import Step, Tenant

WARM_UP_S = 1.0
MEASURE_S = 4.0
ANSWER_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """Answers and tokens per second at the usual size, and the service time with every slot busy."""

    per_s: float
    tokens_per_s: float
    service_ms: Quantiles


async def measure(stand: Stand, seconds: float = MEASURE_S, warm_up_s: float = WARM_UP_S) -> Capacity:
    """Raises RuntimeError if a worker fails to answer, or none answers in time."""
    try:
        async with asyncio.timeout(warm_up_s + seconds + ANSWER_WITHIN_S):
            loads = (_of(worker.url, stand.shape, seconds, warm_up_s) for worker in stand.workers)
            tallies = await asyncio.gather(*loads)
    except (OSError, TimeoutError, RuntimeError) as error:
        raise RuntimeError(f"the capacity could not be measured: {str(error) or 'there was no answer'}") from error
    per_s = sum(results.per_second for results in tallies)
    if not per_s:
        raise RuntimeError(f"the capacity could not be measured: there was no answer in {seconds:.1f} s")
    return Capacity(
        per_s, per_s * stand.shape.answer_tokens, quantiles(s for results in tallies for s in results.seconds)
    )


async def _of(url: str, shape: Shape, seconds: float, warm_up_s: float) -> LoopResults:
    """Load one worker; each answer has its full requested length."""
    asking, numbers = Asking(url, "generate"), count()
    ask = Ask(0.0, Tenant("capacity", (Step(0, 0),)), shape.prompt_tokens, shape.answer_tokens, False)
    port = urlsplit(url).port or 80
    results = await closed_loop(
        port, lambda: asking.bytes_of(ask, next(numbers)), shape.slots, seconds, warm_up_s=warm_up_s
    )
    results.only(200)
    return results
