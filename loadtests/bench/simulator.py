"""Requests that the simulator processes for a policy in a second of one core, at ten times capacity.

Processor time, with ledger, histograms, fairness and predictions. Measuring the capacity does not count.
"""

from __future__ import annotations

import time
from typing import Any

from loadtests.report.figure import Figure
from loadtests.scenarios.model import PolicyChoice, Scenario, parse
from loadtests.simulator import capacity, engine

LOAD = 10
SIMULATED_S_PER_S = 15  # simulated seconds of this scenario a second, roughly, with Weir
SLOTS = {"kind": "slots", "count": 4, "slots": 16, "prefill_tokens_per_s": 20_000, "s_per_token": 0.01}
STEPS = {"kind": "steps", "count": 4, "slots": 16, "base_ms": 8, "per_sequence_ms": 0.1, "per_prefill_token_ms": 0.05}
PROMPTS = {"kind": "log_normal", "median": 200, "p95": 1000}
ANSWERS = {"kind": "log_normal", "median": 20, "p95": 100}


async def measure(seconds: float) -> list[Figure]:
    return [
        _figure("slot workers, Weir", SLOTS, "weir", seconds, target=30_000),
        _figure("slot workers, bounded FIFO", SLOTS, "bounded_fifo", seconds, target=100_000),
        _figure("step workers, Weir", STEPS, "weir", seconds, target=5_000),
        _figure("step workers, bounded FIFO", STEPS, "bounded_fifo", seconds),
    ]


def _figure(name: str, worker: dict[str, Any], policy: Any, seconds: float, target: float | None = None) -> Figure:
    world = _scenario(worker, SIMULATED_S_PER_S * seconds)
    choice = PolicyChoice(policy=policy)
    measured = capacity.measure(world)
    began = time.process_time()
    report = engine.run(world, choice, measured=measured)
    spent_s = time.process_time() - began
    note = (
        f"{report.simulated_requests:,} requests in {spent_s:.1f} s; "
        f"{report.ledger.rejected_total / max(1, report.ledger.distinct):.0%} refused, {report.dispatches:,} started"
    )
    return Figure(name, report.simulated_requests / spent_s, "requests/s", target, note=note)


def _scenario(worker: dict[str, Any], duration_s: float) -> Scenario:
    sizes = {"prompt_tokens": PROMPTS, "completion_tokens": ANSWERS}
    deadline = {"kind": "uniform", "low": 1, "high": 5}
    return parse(
        {
            "title": "bench",
            "duration_s": duration_s,
            "warm_up_s": 0,
            "cool_down_s": 0,
            "workers": [worker],
            "tenants": [
                {"name": name, "arrivals": {"kind": "poisson", "load": load}, "deadline_s": deadline, **sizes}
                for name, load in (("big", LOAD * 0.8), ("small", LOAD * 0.2))
            ],
        }
    )
