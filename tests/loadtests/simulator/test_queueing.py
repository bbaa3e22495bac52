"""The simulator against queueing theory: where a formula is known, it must come out."""

from __future__ import annotations

import math
from typing import Any

import pytest

from loadtests.simulator.capacity import measure
from tests.loadtests.simulator.worlds import run, scenario, unmeasured

FOREVER = 1e5


def erlang_c_wait_s(servers: int, load: float, service_s: float) -> float:
    """The mean wait in M/M/c at `load` per server (Erlang, 1917)."""
    offered = servers * load
    blocked = offered**servers / math.factorial(servers) / (1 - load)
    probability = blocked / (sum(offered**k / math.factorial(k) for k in range(servers)) + blocked)
    return probability * service_s / (servers * (1 - load))


def mean_wait_s(slots: int, load: float, completion: Any, jitter: float) -> float:
    worker = {"kind": "slots", "slots": slots, "prefill_tokens_per_s": 1e9, "s_per_token": 1e-5, "jitter": jitter}
    tenant = {
        "arrivals": {"kind": "poisson", "rate_per_s": slots * load / 0.1},
        "prompt_tokens": 1,
        "completion_tokens": completion,
        "max_tokens": 1_000_000,
        "deadline_s": FOREVER,
    }
    report = unmeasured(scenario(tenant, worker=worker, duration_s=4000 / slots, warm_up_s=20, cool_down_s=5))
    assert report.wait_s.mean is not None
    return report.wait_s.mean


@pytest.mark.parametrize(("slots", "load"), [(1, 0.6), (4, 0.7)])
def test_the_mean_wait_of_exponential_services_is_erlangs(slots: int, load: float) -> None:
    measured = mean_wait_s(slots, load, {"kind": "exponential", "mean": 10_000}, jitter=0.0)
    assert measured == pytest.approx(erlang_c_wait_s(slots, load, 0.1), rel=0.08)


def test_the_mean_wait_of_equal_services_is_half_of_that() -> None:
    measured = mean_wait_s(1, 0.7, 10_000, jitter=0.0)
    assert measured == pytest.approx(0.1 * 0.7 / (2 * (1 - 0.7)), rel=0.05)  # Pollaczek and Khinchine, M/D/1


def test_capacity_is_slots_over_mean_service() -> None:
    worker = {"kind": "slots", "slots": 8, "prefill_tokens_per_s": 10_000, "s_per_token": 0.001, "jitter": 0.1}
    tenant = {"prompt_tokens": 500, "completion_tokens": 50}
    capacity = measure(scenario(tenant, worker=worker)).capacity
    assert capacity.requests_per_s == pytest.approx(8 / 0.1, rel=0.01)
    assert capacity.service_s == pytest.approx(0.1, rel=0.01)
    assert capacity.completion_weight == pytest.approx(10)
    assert capacity.cost_per_s == pytest.approx(80 * (500 + 50 * 10), rel=0.01)


def test_loads_of_different_mixes_add_up_in_worker_time() -> None:
    short = {"arrivals": {"kind": "poisson", "load": 0.4}, "completion_tokens": 10}
    long = {"arrivals": {"kind": "poisson", "load": 0.4}, "completion_tokens": 400, "max_tokens": 400}
    rates = measure(scenario(short, long)).rates
    assert rates["t0"] * 0.03 / 4 == pytest.approx(0.4, rel=0.03)
    assert rates["t1"] * 0.42 / 4 == pytest.approx(0.4, rel=0.03)


def test_a_sweep_keeps_proportions_and_meets_its_total() -> None:
    world = scenario({"arrivals": {"kind": "poisson", "load": 3}}, {"arrivals": {"kind": "poisson", "load": 1}})
    swept = world.at_load(2.0)
    assert [group.arrivals.load for group in swept.tenants] == [1.5, 0.5]  # type: ignore[union-attr]
    assert run(swept).offered_load == pytest.approx(2.0, rel=0.1)
