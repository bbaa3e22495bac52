"""Workers' reported speeds -> the unit of work and the first estimates, before any request has run.

The time of a step and of reading a prompt token give the cost of a completion token in prompt tokens (a step serves all
slots, so a token takes its share of one) and the speed of a slot. The estimates hold until requests replace them; the
unit holds until the router stops. Without any report a completion token costs 2 prompt tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.core.cost import Weights
from services.core.estimator import Estimator
from services.core.scheduler import Scheduler
from services.router.workers.fleet import Fleet
from services.router.workers.worker import Worker


def begin_with(scheduler: Scheduler, fleet: Fleet, completion_weight: float) -> None:
    """Set the unit, unless it is given (above 0), and each pool's first estimates. Call before the first request."""
    reporting = [worker for worker in fleet.workers if worker.live and worker.step_ms > 0]
    scheduler.weigh(_weights(reporting, completion_weight))
    for pool in fleet.pools:
        own = [worker for worker in reporting if pool in worker.pools]
        if own:
            scheduler.announce(pool, _estimator(own, scheduler.settings.weights))


def _weights(workers: Sequence[Worker], completion_weight: float) -> Weights:
    if completion_weight > 0:
        return Weights(1.0, completion_weight)
    ratios = [
        worker.step_ms / worker.own_slots / worker.prefill_ms_per_token
        for worker in workers
        if worker.prefill_ms_per_token > 0 and worker.own_slots
    ]
    return Weights(1.0, sum(ratios) / len(ratios)) if ratios else Weights()


def _estimator(workers: Sequence[Worker], weights: Weights) -> Estimator:
    """Answers take nearly all of a slot's time, so a slot's rate is one completion token's weight per step.

    A Weir worker reads its prompts one after another, in chunks between steps: each worker is one reader.
    """
    step_s = sum(worker.step_ms for worker in workers) / len(workers) / 1000
    prefill_s = sum(worker.prefill_ms_per_token for worker in workers) / len(workers) / 1000
    return Estimator(
        work_per_slot_s=weights.completion / step_s,
        prefill_s_per_token=prefill_s or None,
        s_per_token=step_s,
        readers=len(workers),
    )
